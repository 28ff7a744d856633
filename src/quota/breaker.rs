//! The breaker: while the store gives no usable answer, nobody new waits for it.
//!
//! New streams, tokens and look-ups of credentials pass a [`Gate`]. Live streams, settles and operators do not: they
//! are held, bounded by `HOLD`, and what they hear is what moves the breaker.
//!
//! # States
//! | state | new streams | left by |
//! |---|---|---|
//! | closed | pass, and wait at most [`STORE_PATIENCE`] | [`BREAKER_FAILURES`] calls of one kind in a row without a usable answer, over [`BREAKER_AFTER`] at least; or calls pending and no answer to any for [`BREAKER_SLOW`] |
//! | open | refused at once | a good answer to what had failed; a good probe, if the probe had failed too → closed; a good probe that never failed → half-open |
//! | half-open | one at a time, as a trial; tokens, balances and look-ups pass | the trial's good answer → closed; a failed probe → open |
//!
//! The probe is [`Quota::probe_any`], every [`BREAKER_PROBE`] while not closed, and before that from the first sign on: a
//! plain command without a usable answer, or half of [`BREAKER_SLOW`] without any. So where nobody streams an outage is known
//! within a second of readiness' failed probe, and one silent primary is not taken for the whole cluster. It may miss what failed
//! (it reserves nothing): then only the verb that failed can close the breaker, hence the trial.
//!
//! # What counts
//! *Without a usable answer*: busy, not serving, refusing writes, denying access, lost, late, or answered after more than
//! [`BREAKER_SLOW`]. A corrupt value says nothing about the store, nor does a slot that is moving. One break of a connection fails many calls in one
//! instant and does not open the breaker; nor does a cluster's one dead shard while the others answer in between: its
//! streams are refused after [`STORE_PATIENCE`] each. What a store consists of is often known from memory, so only failing to learn it
//! counts.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::store::StoreError;
use super::{Quota, ms};
use crate::limits::{BREAKER_AFTER, BREAKER_FAILURES, BREAKER_PROBE, BREAKER_SLOW, STORE_PATIENCE};

/// Error replies of a server that is well, about one slot.
const MOVING: [&str; 3] = ["TRYAGAIN", "MOVED ", "ASK "];

/// Calls that fail or work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// `admit`: every live stream.
    Admit,
    /// `reserve`: every new stream.
    Reserve,
    /// Plain commands (credentials, accounts) and the probe of `admit`, as one. Some only read, so a good answer tells
    /// little.
    Command,
    /// Other scripts, and each call of a probe: they count as pending calls, no more.
    Other,
}

impl Lane {
    /// The lane of a script.
    pub(super) fn of(script: &str) -> Self {
        match script {
            "admit" => Self::Admit,
            "reserve" => Self::Reserve,
            _ => Self::Other,
        }
    }
}

/// What keeps new work from a store that gives no usable answer.
pub(super) struct Breaker {
    born: Instant,
    /// Calls without an answer.
    owed: AtomicU64,
    /// When the last answer came, or the first call after a quiet time; milliseconds after `born`.
    moved: AtomicU64,
    admit: Streak,
    reserve: Streak,
    command: Streak,
    /// Whether `outage` is some: what a good answer looks at.
    broken: AtomicBool,
    outage: Mutex<Option<Outage>>,
    /// Wakes who waits at a gate.
    shut: watch::Sender<bool>,
}

/// Failures in a row.
#[derive(Default)]
struct Streak {
    count: AtomicU32,
    /// Of the first one, milliseconds after the breaker's birth.
    since: AtomicU64,
}

/// Not closed.
struct Outage {
    since: Instant,
    /// What opened the breaker; `None`: no answer to any call.
    by: Option<Lane>,
    probe_failed: bool,
    half: bool,
    trial: bool,
}

impl Breaker {
    pub(super) fn new() -> Self {
        metrics::gauge!("voxgate_breaker_open").set(0.0);
        Self {
            born: Instant::now(),
            owed: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            admit: Streak::default(),
            reserve: Streak::default(),
            command: Streak::default(),
            broken: AtomicBool::new(false),
            outage: Mutex::default(),
            shut: watch::Sender::new(false),
        }
    }

    /// Counts a call as pending until what is given is dropped.
    pub(super) fn begin(&self, lane: Lane) -> Pending<'_> {
        if self.owed.fetch_add(1, Ordering::Relaxed) == 0 {
            self.moved.store(self.now(), Ordering::Relaxed);
        }
        Pending { breaker: self, lane, start: Instant::now() }
    }

    /// Opens when calls are pending and nothing comes back. To be called often.
    fn look(&self) {
        if self.silent_for(BREAKER_SLOW) {
            self.open(None, "pending");
        }
    }

    /// Whether the store should be probed: it gives no usable answer, or seems to.
    fn suspects(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
            || self.command.count.load(Ordering::Relaxed) > 0
            || self.silent_for(BREAKER_SLOW / 2)
    }

    /// Whether calls are pending and nothing came back for longer than `time`.
    fn silent_for(&self, time: Duration) -> bool {
        let quiet = self.now().saturating_sub(self.moved.load(Ordering::Relaxed));
        self.owed.load(Ordering::Relaxed) > 0 && quiet > ms(time)
    }

    /// An answer of the store, or that there was none.
    pub(super) fn heard(&self, lane: Lane, took: Duration, error: Option<&StoreError>) {
        self.moved.store(self.now(), Ordering::Relaxed);
        let fault = match error {
            None | Some(StoreError::Corrupt(_) | StoreError::Odd(_)) => {
                (took > BREAKER_SLOW).then_some("slow")
            }
            // A slot on its way says nothing about the others.
            Some(StoreError::Away(text)) if MOVING.iter().any(|code| text.starts_with(code)) => return,
            Some(error) => Some(error.word()),
        };
        let streak = match lane {
            Lane::Admit => &self.admit,
            Lane::Reserve => &self.reserve,
            Lane::Command => &self.command,
            Lane::Other => return,
        };
        match fault {
            Some(kind) if streak.fail(self.now()) => self.open(Some(lane), kind),
            Some(_) => {}
            None => {
                streak.end();
                if self.broken.load(Ordering::Relaxed) && lane != Lane::Command {
                    self.close_if(|outage| outage.by.is_none_or(|by| by == lane));
                }
            }
        }
    }

    /// How a probe went.
    fn probed(&self, good: bool) {
        if good {
            self.close_if(|outage| {
                let told = outage.probe_failed || matches!(outage.by, None | Some(Lane::Command));
                outage.half = !told;
                told
            });
        } else if let Some(outage) = self.outage().as_mut() {
            (outage.probe_failed, outage.half) = (true, false);
        }
    }

    fn open(&self, by: Option<Lane>, kind: &'static str) {
        let mut outage = self.outage();
        if outage.is_none() {
            *outage =
                Some(Outage { since: Instant::now(), by, probe_failed: false, half: false, trial: false });
            self.tell(true);
            metrics::counter!("voxgate_breaker_opened_total").increment(1);
            tracing::warn!(kind, calls = ?by, "the store gives no usable answer: new streams are refused");
        }
    }

    fn close_if(&self, mended: impl FnOnce(&mut Outage) -> bool) {
        let mut outage = self.outage();
        if outage.as_mut().is_some_and(mended)
            && let Some(over) = outage.take()
        {
            for streak in [&self.admit, &self.reserve, &self.command] {
                streak.end();
            }
            self.tell(false);
            tracing::info!(lasted = ?over.since.elapsed(), "the store answers again: new streams are taken");
        }
    }

    /// Called under the lock, so that gauge and flags follow the state in its order.
    fn tell(&self, broken: bool) {
        self.broken.store(broken, Ordering::Relaxed);
        self.shut.send_replace(broken);
        metrics::gauge!("voxgate_breaker_open").set(if broken { 1.0 } else { 0.0 });
    }

    /// Whether new work may go on, and how; only what `opens` a stream tells by its reserve whether all is well again.
    fn enter(&self, opens: bool) -> Result<Way, Unasked> {
        if !self.broken.load(Ordering::Relaxed) {
            return Ok(Way::Clear);
        }
        match self.outage().as_mut() {
            None => Ok(Way::Clear),
            Some(outage) if outage.half && !opens => Ok(Way::Aside),
            Some(outage) if outage.half && !outage.trial => {
                outage.trial = true;
                Ok(Way::Trial)
            }
            Some(_) => Err(Unasked::Shut),
        }
    }

    fn end_trial(&self) {
        if let Some(outage) = self.outage().as_mut() {
            outage.trial = false;
        }
    }

    fn outage(&self) -> MutexGuard<'_, Option<Outage>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        ms(self.born.elapsed())
    }
}

impl Streak {
    /// One more failure; whether that is enough.
    fn fail(&self, now: u64) -> bool {
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            self.since.store(now, Ordering::Relaxed);
        }
        let lasted = now.saturating_sub(self.since.load(Ordering::Relaxed));
        before >= BREAKER_FAILURES - 1 && lasted >= ms(BREAKER_AFTER)
    }

    fn end(&self) {
        if self.count.load(Ordering::Relaxed) != 0 {
            self.count.store(0, Ordering::Relaxed);
        }
    }
}

/// How new work goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Until the breaker opens.
    Clear,
    /// Half-open, as the trial.
    Trial,
    /// Half-open, beside the trial: it opens no stream.
    Aside,
}

/// One call that was sent. Dropped without [`Pending::done`], it tells nothing: its caller went away.
pub(super) struct Pending<'a> {
    breaker: &'a Breaker,
    lane: Lane,
    start: Instant,
}

impl Pending<'_> {
    /// The call's end; gives how long it took.
    pub(super) fn done<T>(self, answer: &Result<T, StoreError>) -> Duration {
        let took = self.start.elapsed();
        self.breaker.heard(self.lane, took, answer.as_ref().err());
        took
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.breaker.owed.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why new work got no answer of the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unasked {
    /// Refused at once, or given up soon: the store gives no usable answer.
    #[error("the store gives no usable answer")]
    Shut,
    /// Asked, and this is what came.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Where new work waits for the store: not at all while the breaker is open, and for [`STORE_PATIENCE`] in all.
pub struct Gate {
    quota: Quota,
    until: Instant,
    opens: bool,
    trial: bool,
}

impl Gate {
    /// What is asked behind the gate.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Waits for work of the store. The work is dropped when the breaker opens or the time is over, so it must not move
    /// units by itself.
    ///
    /// # Errors
    /// [`Unasked::Shut`].
    pub async fn pass<F: Future>(&mut self, work: F) -> Result<F::Output, Unasked> {
        let breaker = &self.quota.0.breaker;
        let way = if self.trial { Way::Trial } else { breaker.enter(self.opens)? };
        self.trial = way == Way::Trial;
        let mut shut = breaker.shut.subscribe();
        let opened = async {
            // Others have been let through a breaker that is not closed; the sender lives as long as this borrow.
            let _ = shut.wait_for(|shut| *shut && way == Way::Clear).await;
        };
        tokio::select! { biased;
            done = work => Ok(done),
            () = opened => Err(Unasked::Shut),
            () = tokio::time::sleep_until(self.until) => {
                tracing::warn!(patience = ?STORE_PATIENCE, "the store took too long for new work");
                Err(Unasked::Shut)
            }
        }
    }

    /// As [`Gate::pass`], for one question to the store.
    ///
    /// # Errors
    /// [`Unasked::Shut`], or the question's own.
    pub async fn ask<T>(
        &mut self,
        question: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Unasked> {
        Ok(self.pass(question).await??)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if self.trial {
            self.quota.0.breaker.end_trial();
        }
    }
}

impl Quota {
    /// The gate that one request for a token or a balance goes through.
    pub fn gate(&self) -> Gate {
        Gate { quota: self.clone(), until: Instant::now() + STORE_PATIENCE, opens: false, trial: false }
    }

    /// The gate that one handshake goes through; it may be the trial.
    pub fn stream_gate(&self) -> Gate {
        let mut gate = self.gate();
        gate.opens = true;
        gate
    }

    /// Watches for calls that nothing comes back to, and probes a store that gave no usable answer, until `stop`.
    pub async fn mend_until(&self, stop: CancellationToken) {
        stop.run_until_cancelled(self.mend_for_ever()).await;
    }

    async fn mend_for_ever(&self) {
        // Side by side: a probe that hangs must not hide that nothing comes back.
        tokio::join!(self.look_for_ever(), self.try_for_ever());
    }

    async fn look_for_ever(&self) {
        loop {
            tokio::time::sleep(BREAKER_PROBE).await;
            self.0.breaker.look();
        }
    }

    async fn try_for_ever(&self) {
        loop {
            // Jitter, so that many gateways do not meet at a store that comes back.
            tokio::time::sleep(BREAKER_PROBE.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
            if self.0.breaker.suspects() {
                let answer = tokio::time::timeout(BREAKER_SLOW, self.probe_any()).await;
                self.0.breaker.probed(matches!(answer, Ok(Ok(_))));
            }
        }
    }
}

#[cfg(test)]
mod tests;
