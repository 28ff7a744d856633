//! Whether new streams can be served, and why not. Answers from what was noted last; never asks anybody.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::time::MissedTickBehavior;

use crate::quota::Quota;
use crate::telemetry::Metrics;

/// How often the store is probed.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How old the last good probe may be.
const PROBE_FRESH: Duration = Duration::from_secs(3);

/// What is known about this gateway's parts. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Readiness(Arc<Parts>);

struct Parts {
    draining: AtomicBool,
    probe: Mutex<Option<Probe>>,
    workers: Box<dyn Fn() -> usize + Send + Sync>,
}

#[derive(Clone, Copy)]
struct Probe {
    at: Instant,
    good: bool,
}

/// One part's state, as `/readyz` shows it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Part {
    name: &'static str,
    ready: bool,
    reason: &'static str,
}

impl Readiness {
    /// Nothing probed yet, not draining. `workers` gives the number of healthy workers and must be quick.
    pub fn new(workers: impl Fn() -> usize + Send + Sync + 'static) -> Self {
        let parts =
            Parts { draining: AtomicBool::new(false), probe: Mutex::new(None), workers: Box::new(workers) };
        Self(Arc::new(parts))
    }

    /// From now on this gateway takes no new streams.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
        self.publish();
    }

    /// Notes how a call to the store went.
    pub fn note_probe(&self, good: bool) {
        let probe = Probe { at: Instant::now(), good };
        *self.0.probe.lock().unwrap_or_else(PoisonError::into_inner) = Some(probe);
        self.publish();
    }

    /// Whether every part is ready.
    pub fn is_ready(&self) -> bool {
        self.parts().iter().all(|part| part.ready)
    }

    pub(super) fn parts(&self) -> [Part; 3] {
        let draining = self.0.draining.load(Ordering::Acquire);
        let gateway = if draining { "draining" } else { "ok" };
        let store = match *self.0.probe.lock().unwrap_or_else(PoisonError::into_inner) {
            None => "not probed yet",
            Some(probe) if !probe.good => "last probe failed",
            Some(probe) if probe.at.elapsed() > PROBE_FRESH => "no answer to the last probe",
            Some(_) => "ok",
        };
        let workers = if (self.0.workers)() > 0 { "ok" } else { "no healthy worker" };
        [("gateway", gateway), ("store", store), ("workers", workers)].map(|(name, reason)| Part {
            name,
            ready: reason == "ok",
            reason,
        })
    }

    fn publish(&self) {
        metrics::gauge!("voxgate_ready").set(if self.is_ready() { 1.0 } else { 0.0 });
    }
}

impl std::fmt::Debug for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Readiness").field(&self.parts()).finish()
    }
}

/// Probes the store for as long as it is polled, and keeps the metrics folded.
pub async fn watch(quota: Quota, readiness: Readiness, metrics: Metrics) {
    let mut beat = tokio::time::interval(PROBE_EVERY);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut was_good = true;
    loop {
        beat.tick().await;
        // The probe works on a key of its own, so giving up on it moves no units.
        let outcome = tokio::time::timeout(PROBE_FRESH, quota.probe()).await;
        let good = match outcome {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                if was_good {
                    tracing::warn!(kind = error.word(), %error, "store fails its probe");
                }
                false
            }
            Err(_) => {
                if was_good {
                    tracing::warn!(within = ?PROBE_FRESH, "store does not answer its probe");
                }
                false
            }
        };
        if good && !was_good {
            tracing::info!("store answers its probe again");
        }
        was_good = good;
        readiness.note_probe(good);
        metrics.fold();
    }
}

#[cfg(test)]
mod tests {
    use super::Readiness;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_part_must_be_ready() {
        let workers = Arc::new(AtomicUsize::new(1));
        let seen = Arc::clone(&workers);
        let readiness = Readiness::new(move || seen.load(Ordering::Relaxed));
        assert!(!readiness.is_ready(), "nothing was probed");
        readiness.note_probe(true);
        assert!(readiness.is_ready());
        workers.store(0, Ordering::Relaxed);
        assert!(!readiness.is_ready(), "no worker");
        workers.store(1, Ordering::Relaxed);
        readiness.note_probe(false);
        assert!(!readiness.is_ready(), "store fails");
        readiness.note_probe(true);
        readiness.drain();
        assert!(!readiness.is_ready(), "draining");
    }
}
