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
//! | half-open | one at a time, as a trial | the trial's good answer → closed; a failed probe → open |
//!
//! The probe is [`Quota::probe`], every [`BREAKER_PROBE`] while not closed. It may miss what failed (it reserves
//! nothing): then only the verb that failed can close the breaker, hence the trial.
//!
//! # What counts
//! *Without a usable answer*: busy, not serving, refusing writes, denying access, lost, late, or answered after more than
//! [`BREAKER_SLOW`]. A corrupt value says nothing about the store, nor does a slot that is moving. One break of a connection fails many calls in one
//! instant and does not open the breaker; nor does a cluster's one dead shard while the others answer: its streams are
//! refused after [`STORE_PATIENCE`] each.

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
    /// Plain commands: credentials, accounts, the probe's key. Some only read, so a good answer tells little.
    Command,
    /// Other scripts: they count as pending calls, no more.
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
        let quiet = self.now().saturating_sub(self.moved.load(Ordering::Relaxed));
        if self.owed.load(Ordering::Relaxed) > 0 && quiet > ms(BREAKER_SLOW) {
            self.open(None, "pending");
        }
    }

    fn heard(&self, lane: Lane, took: Duration, error: Option<&StoreError>) {
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

    /// How a probe went while not closed.
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

    /// Whether new work may go on, and whether it does so as the trial.
    fn enter(&self) -> Result<bool, Unasked> {
        if !self.broken.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match self.outage().as_mut() {
            None => Ok(false),
            Some(outage) if outage.half && !outage.trial => {
                outage.trial = true;
                Ok(true)
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
        if !self.trial {
            self.trial = breaker.enter()?;
        }
        let mut shut = breaker.shut.subscribe();
        let opened = async {
            // A trial has been let through an open breaker; the sender lives as long as this borrow.
            let _ = shut.wait_for(|shut| *shut && !self.trial).await;
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
    /// The gate that one handshake, or one request for a token or a balance, goes through.
    pub fn gate(&self) -> Gate {
        Gate { quota: self.clone(), until: Instant::now() + STORE_PATIENCE, trial: false }
    }

    /// Watches for calls that nothing comes back to, and probes a store that gave no usable answer, until `stop`.
    pub async fn mend_until(&self, stop: CancellationToken) {
        stop.run_until_cancelled(self.mend_for_ever()).await;
    }

    async fn mend_for_ever(&self) {
        let breaker = &self.0.breaker;
        loop {
            // Jitter, so that many gateways do not meet at a store that comes back.
            tokio::time::sleep(BREAKER_PROBE.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
            breaker.look();
            if breaker.broken.load(Ordering::Relaxed) {
                let start = Instant::now();
                let answer = self.probe().await;
                breaker.probed(answer.is_ok() && start.elapsed() <= BREAKER_SLOW);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Settings;
    use crate::quota::store::Store;

    fn quota() -> Quota {
        Quota::new(Store::open("embedded").unwrap(), Settings::default())
    }

    fn fail(quota: &Quota, lane: Lane) {
        quota.0.breaker.begin(lane).done::<()>(&Err(StoreError::Busy));
    }

    fn work(quota: &Quota, lane: Lane) {
        quota.0.breaker.begin(lane).done(&Ok(()));
    }

    async fn fail_for_a_while(quota: &Quota, lane: Lane) {
        for _ in 0..BREAKER_FAILURES {
            fail(quota, lane);
            tokio::time::advance(BREAKER_AFTER / (BREAKER_FAILURES - 1)).await;
        }
    }

    async fn passes(gate: &mut Gate) -> bool {
        gate.pass(std::future::ready(())).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn one_lost_connection_opens_nothing() {
        let quota = quota();
        for _ in 0..100 {
            fail(&quota, Lane::Admit);
        }
        work(&quota, Lane::Admit);
        tokio::time::advance(BREAKER_AFTER).await;
        fail(&quota, Lane::Admit);
        assert!(passes(&mut quota.gate()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn moving_slot_opens_nothing() {
        let quota = quota();
        for _ in 0..=BREAKER_FAILURES {
            let moving = StoreError::from_text("TRYAGAIN Multiple keys request during rehashing of slot");
            quota.0.breaker.begin(Lane::Reserve).done::<()>(&Err(moving));
            tokio::time::advance(BREAKER_AFTER).await;
        }
        assert!(passes(&mut quota.gate()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn failing_verb_opens_and_closes() {
        let quota = quota();
        fail_for_a_while(&quota, Lane::Reserve).await;
        assert_eq!(quota.gate().pass(std::future::pending::<()>()).await, Err(Unasked::Shut));
        work(&quota, Lane::Admit);
        work(&quota, Lane::Command);
        assert!(!passes(&mut quota.gate()).await, "admits work, reserves need not");
        work(&quota, Lane::Reserve);
        assert!(passes(&mut quota.gate()).await);
    }

    /// The probe reserves nothing: where it always was well, one new stream at a time tries.
    #[tokio::test(start_paused = true)]
    async fn blind_probe_lets_one_trial_through() {
        let quota = quota();
        fail_for_a_while(&quota, Lane::Reserve).await;
        quota.0.breaker.probed(true);
        let (mut trial, mut other) = (quota.gate(), quota.gate());
        assert!(passes(&mut trial).await && !passes(&mut other).await && passes(&mut trial).await);
        drop(trial);
        assert!(passes(&mut other).await, "the next trial");
        quota.0.breaker.probed(false);
        assert!(!passes(&mut quota.gate()).await, "open again");
        quota.0.breaker.probed(true);
        assert!(passes(&mut quota.gate()).await, "a probe that failed and works again is enough");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_opens_and_wakes_who_waits() {
        let quota = quota();
        let breaker = &quota.0.breaker;
        let pending = breaker.begin(Lane::Other);
        tokio::time::advance(BREAKER_SLOW / 2).await;
        breaker.look();
        let mut gate = quota.gate();
        let watch = async {
            assert!(!breaker.broken.load(Ordering::Relaxed), "too early");
            tokio::time::sleep(BREAKER_SLOW / 2 + Duration::from_millis(2)).await;
            breaker.look();
        };
        let (answer, ()) = tokio::join!(gate.pass(std::future::pending::<()>()), watch);
        assert_eq!(answer, Err(Unasked::Shut));
        assert!(gate.until > Instant::now(), "woken, not timed out");
        assert!(breaker.broken.load(Ordering::Relaxed));
        pending.done(&Ok(()));
        assert!(breaker.broken.load(Ordering::Relaxed), "that answer was late");
        work(&quota, Lane::Reserve);
        assert!(!breaker.broken.load(Ordering::Relaxed));
    }

    #[tokio::test(start_paused = true)]
    async fn new_work_waits_one_patience() {
        let quota = quota();
        let (start, mut gate) = (Instant::now(), quota.gate());
        assert!(gate.pass(tokio::time::sleep(STORE_PATIENCE / 2)).await.is_ok());
        assert!(gate.pass(std::future::pending::<()>()).await.is_err());
        assert_eq!(start.elapsed().as_millis(), STORE_PATIENCE.as_millis());
    }
}
