//! One server: its connections, its scripts, and how often it is dialled.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::{Cmd, Pipeline};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::{Reply, Script, StoreError};
use super::access::Access;
use super::epoch::Epoch;
use super::target::Address;
use crate::limits::{STORE_BACKOFF_MAX, STORE_BACKOFF_MIN, STORE_WAIT};

/// One server. Calls share one connection; those that wait for replicas share a second one, since a waiting
/// connection answers nobody else.
pub(super) struct Node {
    pub(super) address: Address,
    access: Arc<Access>,
    calls: Lane,
    waits: Lane,
    /// Serializes SCRIPT LOAD; counts them.
    loads: tokio::sync::Mutex<()>,
    loaded: AtomicU64,
    /// The last call failed as it does when this is not the server to ask.
    suspect: AtomicBool,
    /// Cancelled when another server has taken its place.
    retired: CancellationToken,
}

/// How a call goes out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Manner {
    /// `ASKING` first: the slot is on its way here.
    pub(super) asking: bool,
    /// `WAIT` behind it, for so many replicas.
    pub(super) replicas: u32,
}

impl Node {
    pub(super) fn new(address: Address, access: Arc<Access>) -> Self {
        Self {
            address,
            access,
            calls: Lane::default(),
            waits: Lane::default(),
            loads: tokio::sync::Mutex::default(),
            loaded: AtomicU64::new(0),
            suspect: AtomicBool::new(false),
            retired: CancellationToken::new(),
        }
    }

    /// Sends one command. Errors say whether it may have run.
    pub(super) async fn send(&self, call: &Cmd, manner: Manner) -> Result<Reply, StoreError> {
        let lane = if manner.replicas > 0 { &self.waits } else { &self.calls };
        let (answer, epoch) = match self.epoch(lane).await {
            Ok(epoch) => {
                let answer = match manner {
                    Manner { asking: false, replicas: 0 } => epoch.send(call).await,
                    Manner { asking, replicas } => Box::pin(send_with(&epoch, call, asking, replicas)).await,
                };
                (answer, Some(epoch))
            }
            Err(error) => (Err(error), None),
        };
        let suspect = answer.as_ref().is_err_and(is_elsewhere);
        if suspect != self.suspect.load(Ordering::Relaxed) {
            self.suspect.store(suspect, Ordering::Relaxed);
        }
        if let (Err(StoreError::Away(text)), Some(epoch)) = (&answer, &epoch)
            && LEAVE.iter().any(|code| text.starts_with(code))
        {
            // The connection leads to the wrong server, or to an address that another server has now.
            lane.leave(epoch);
        }
        answer
    }

    /// The lane's connection; none once the server is retired, not even one that was being dialled: a primary that was
    /// frozen and wakes up takes itself for the primary still, until somebody tells it.
    async fn epoch(&self, lane: &Lane) -> Result<Arc<Epoch>, StoreError> {
        let replaced = || StoreError::Away(format!("another server has taken the place of {}", self.address));
        let epoch = tokio::select! { biased;
            () = self.retired.cancelled() => return Err(replaced()),
            epoch = lane.epoch(&self.address, &self.access) => epoch?,
        };
        // Retired in the very instant in which the connection was there.
        if self.retired.is_cancelled() {
            lane.leave(&epoch);
            return Err(replaced());
        }
        Ok(epoch)
    }

    /// Whether this may no longer be the server to ask.
    pub(super) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// Takes no more calls: it serves nothing any more. What is pending goes on.
    pub(super) fn retire(&self) {
        self.retired.cancel();
    }

    /// Ends its connections, with what is pending: another server has taken its place.
    pub(super) fn end(&self) {
        self.retired.cancel();
        self.calls.end();
        self.waits.end();
    }

    /// How often scripts were loaded; for [`Node::load`].
    pub(super) fn loaded(&self) -> u64 {
        self.loaded.load(Ordering::Acquire)
    }

    /// Loads a script unless another caller has done so since `seen`.
    pub(super) async fn load(&self, script: &Script, seen: u64) -> Result<(), StoreError> {
        let _turn = self.loads.lock().await;
        if self.loaded() != seen {
            return Ok(());
        }
        self.send(::redis::cmd("SCRIPT").arg("LOAD").arg(&script.text), Manner::default()).await?;
        self.loaded.fetch_add(1, Ordering::Release);
        metrics::counter!("voxgate_script_loads_total").increment(1);
        Ok(())
    }
}

/// Error replies after which a connection is of no use.
const LEAVE: [&str; 2] = ["READONLY", "MASTERDOWN"];

/// Error replies of a server that is still the one to ask, for its other keys at least.
const HERE: [&str; 4] = ["NOSCRIPT", "ASK ", "MOVED ", "TRYAGAIN"];

/// Whether an error may mean that another server is the one to ask now.
fn is_elsewhere(error: &StoreError) -> bool {
    match error {
        StoreError::Late(_) | StoreError::Lost(_) => true,
        StoreError::Away(text) => !HERE.iter().any(|code| text.starts_with(code)),
        StoreError::Busy
        | StoreError::Refuses(_)
        | StoreError::Corrupt(_)
        | StoreError::Denied(_)
        | StoreError::Odd(_)
        | StoreError::Thin { .. } => false,
    }
}

/// A call with `ASKING` before it, `WAIT` behind it, or both, in one write.
async fn send_with(epoch: &Epoch, call: &Cmd, asking: bool, replicas: u32) -> Result<Reply, StoreError> {
    let mut calls = Pipeline::new();
    if asking {
        calls.cmd("ASKING");
    }
    calls.add_command(call.clone());
    if replicas > 0 {
        calls.cmd("WAIT").arg(replicas).arg(u64::try_from(STORE_WAIT.as_millis()).unwrap_or(u64::MAX));
    }
    let mut replies = epoch.send_all(&calls).await?.into_iter().skip(usize::from(asking));
    let lost = || StoreError::Odd("fewer replies than commands".into());
    let reply = replies.next().ok_or_else(lost)??;
    if replicas == 0 {
        return Ok(reply);
    }
    // The call itself has run, whatever `WAIT` says: a refused one is no replica.
    let have = match replies.next() {
        Some(Ok(Reply::Int(have))) => u32::try_from(have).unwrap_or(0),
        Some(Ok(Reply::Nil | Reply::Bulk(_) | Reply::Status(_) | Reply::List(_)) | Err(_)) | None => 0,
    };
    if have >= replicas {
        return Ok(reply);
    }
    Err(StoreError::Thin { have, want: replicas, reply: Box::new(reply) })
}

/// One connection at a time, dialled anew when it has ended, not too often.
#[derive(Default)]
struct Lane {
    /// The running connection. Held for a few instructions only, never across an await.
    epoch: Mutex<Option<Arc<Epoch>>>,
    /// Serializes connecting, and remembers failures.
    dial: tokio::sync::Mutex<Dial>,
}

#[derive(Default)]
struct Dial {
    /// Failures in a row; a connection that does not live for [`STORE_BACKOFF_MAX`] counts as one.
    failures: u32,
    opened: Option<Instant>,
    not_before: Option<Instant>,
    last_error: Option<StoreError>,
}

impl Dial {
    fn opened(&mut self) {
        let brief = self.opened.is_some_and(|at| at.elapsed() < STORE_BACKOFF_MAX);
        self.failures = if brief { self.failures.saturating_add(1) } else { 0 };
        self.opened = Some(Instant::now());
        self.not_before = Some(Instant::now() + backoff(self.failures));
        self.last_error = Some(StoreError::Away("the connection was lost as soon as it was open".into()));
    }

    /// Counts as failed until something else is told: its caller may give up half way.
    fn begun(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.failed(StoreError::Away("connecting was given up".into()));
    }

    fn failed(&mut self, error: StoreError) {
        self.not_before = Some(Instant::now() + backoff(self.failures));
        self.last_error = Some(error);
    }
}

impl Lane {
    /// The running connection, or a new one; the last failure while it is too early for another try.
    async fn epoch(&self, address: &Address, access: &Access) -> Result<Arc<Epoch>, StoreError> {
        if let Some(epoch) = self.running() {
            return Ok(epoch);
        }
        let mut dial = self.dial.lock().await;
        if let Some(epoch) = self.running() {
            return Ok(epoch);
        }
        if let Some(error) =
            dial.last_error.clone().filter(|_| dial.not_before.is_some_and(|at| Instant::now() < at))
        {
            return Err(error);
        }
        dial.begun();
        // Boxed: a call that finds its connection open need not carry the room for dialling.
        match Box::pin(Epoch::open(address, access)).await {
            Ok(epoch) => {
                let epoch = Arc::new(epoch);
                dial.opened();
                *self.lock() = Some(Arc::clone(&epoch));
                metrics::counter!("voxgate_store_connects_total", "outcome" => "open").increment(1);
                Ok(epoch)
            }
            Err(error) => {
                dial.failed(error.clone());
                metrics::counter!("voxgate_store_connects_total", "outcome" => error.word()).increment(1);
                Err(error)
            }
        }
    }

    fn running(&self) -> Option<Arc<Epoch>> {
        let mut current = self.lock();
        if current.as_ref().is_some_and(|epoch| !epoch.is_alive()) {
            *current = None;
        }
        current.clone()
    }

    /// No more calls on this connection; those that are pending stay so.
    fn leave(&self, epoch: &Arc<Epoch>) {
        let mut current = self.lock();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, epoch)) {
            *current = None;
        }
    }

    fn end(&self) {
        if let Some(epoch) = self.lock().take() {
            epoch.end();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Epoch>>> {
        self.epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Grows from [`STORE_BACKOFF_MIN`] to [`STORE_BACKOFF_MAX`], with full jitter in its upper half.
pub(super) fn backoff(failures: u32) -> Duration {
    let most = STORE_BACKOFF_MIN.saturating_mul(1 << failures.min(10)).min(STORE_BACKOFF_MAX);
    most / 2 + most.mul_f64(fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::{STORE_BACKOFF_MAX, backoff};

    #[test]
    fn waits_grow_and_stay_bounded() {
        assert!(backoff(1) < backoff(4) && backoff(4) < STORE_BACKOFF_MAX);
        for failures in 0..100 {
            assert!(backoff(failures) <= STORE_BACKOFF_MAX);
        }
        let (one, two) = (backoff(20), backoff(20));
        assert!(one != two || backoff(20) != one, "gateways must not dial in step");
    }
}
