//! Whether new streams can be served, and why not. Answers from what was noted last; never asks anybody.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::limits::{PROBE_ALL_EVERY, PROBE_ALL_TIME, PROBE_EVERY, PROBE_FRESH, WATCH_EVERY};
use crate::quota::Quota;
use crate::quota::store::{Shard, StoreError};
use crate::quota::watch::{Vitals, Watch};
use crate::telemetry::Metrics;

/// What is known about this gateway's parts. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Readiness(Arc<Parts>);

struct Parts {
    draining: AtomicBool,
    notes: Mutex<Notes>,
    workers: Box<dyn Fn() -> usize + Send + Sync>,
}

/// What was noted last; an inner `None` is: all is well.
#[derive(Default)]
struct Notes {
    probe: Option<(Instant, Option<String>)>,
    scripts: Option<Option<String>>,
    role: Option<String>,
    eviction: Option<String>,
}

impl Notes {
    /// A replica says what it is in `INFO`, or, where it is left at once, by refusing the probe.
    fn role(&self) -> Option<String> {
        let fault = self.probe.as_ref().and_then(|(_, fault)| fault.as_ref());
        let refused = fault.and_then(|fault| fault.strip_prefix("readonly"));
        self.role.clone().or_else(|| refused.map(|place| format!("replica{place}")))
    }
}

/// One part's state, as `/readyz` shows it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Part {
    name: &'static str,
    ready: bool,
    reason: Cow<'static, str>,
}

impl Readiness {
    /// Nothing probed yet, not draining. `workers` gives the number of healthy workers and must be quick.
    pub fn new(workers: impl Fn() -> usize + Send + Sync + 'static) -> Self {
        let parts =
            Parts { draining: AtomicBool::new(false), notes: Mutex::default(), workers: Box::new(workers) };
        Self(Arc::new(parts))
    }

    /// From now on this gateway takes no new streams.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
        self.publish();
    }

    /// Notes how the quick probe of the store went; a fault in a few words.
    pub fn note_probe(&self, fault: Option<String>) {
        self.notes().probe = Some((Instant::now(), fault));
        self.publish();
    }

    /// Notes how the probe of every script went.
    pub fn note_scripts(&self, fault: Option<String>) {
        self.notes().scripts = Some(fault);
        self.publish();
    }

    /// Notes what the primaries say of themselves; one that says nothing counts as well.
    pub fn note_vitals(&self, vitals: &[(Shard, Vitals)]) {
        let of = |bad: fn(&Vitals) -> bool, word: fn(&Vitals) -> String| {
            let first = vitals.iter().find(|(_, vitals)| bad(vitals));
            first.map(|(shard, vitals)| format!("{} on {}", word(vitals), shard.name))
        };
        let role = of(Vitals::is_replica, |_| "replica".to_owned());
        let eviction = of(Vitals::may_evict, |vitals| vitals.policy.clone());
        let mut notes = self.notes();
        (notes.role, notes.eviction) = (role, eviction);
        drop(notes);
        self.publish();
    }

    /// Whether every part is ready.
    pub fn is_ready(&self) -> bool {
        self.parts().iter().all(|part| part.ready)
    }

    pub(super) fn parts(&self) -> [Part; 6] {
        let ok = || Cow::Borrowed("ok");
        let draining = self.0.draining.load(Ordering::Acquire);
        let gateway = if draining { "draining".into() } else { ok() };
        let workers = if (self.0.workers)() > 0 { ok() } else { "no healthy worker".into() };
        let notes = self.notes();
        let noted = |note: &Option<String>| note.clone().map_or_else(ok, Cow::Owned);
        let store = match &notes.probe {
            None => NOT_PROBED.into(),
            Some((at, None)) if at.elapsed() > PROBE_FRESH => "no answer to the last probe".into(),
            Some((_, fault)) => noted(fault),
        };
        let scripts = notes.scripts.as_ref().map_or(NOT_PROBED.into(), noted);
        let parts = [
            ("gateway", gateway),
            (STORE, store),
            ("scripts", scripts),
            ("role", noted(&notes.role())),
            ("eviction", noted(&notes.eviction)),
            ("workers", workers),
        ];
        parts.map(|(name, reason)| Part { name, ready: reason == "ok", reason })
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self) {
        let number = |ready: bool| if ready { 1.0 } else { 0.0 };
        for part in self.parts() {
            metrics::gauge!("voxgate_part_ready", "part" => part.name).set(number(part.ready));
            if part.name == STORE {
                metrics::gauge!("voxgate_store_up").set(number(part.ready));
            }
        }
        metrics::gauge!("voxgate_ready").set(number(self.is_ready()));
    }
}

const STORE: &str = "store";
const NOT_PROBED: &str = "not probed yet";

impl std::fmt::Debug for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Readiness").field(&self.parts()).finish()
    }
}

/// Probes the store and looks at its primaries for as long as it is polled, and keeps the metrics folded. The three
/// go on side by side: a slow look never holds up the quick probe.
pub async fn watch(quota: Quota, readiness: Readiness, metrics: Metrics) {
    // Rung when `admit` works again: what the other scripts said meanwhile is old.
    let mended = Notify::new();
    tokio::join!(
        probe_for_ever(&quota, &readiness, &metrics, &mended),
        probe_scripts_for_ever(&quota, &readiness, &mended),
        look_for_ever(&quota, &readiness),
    );
}

async fn probe_for_ever(quota: &Quota, readiness: &Readiness, metrics: &Metrics, mended: &Notify) {
    let (mut beat, mut last) = (beats(PROBE_EVERY), None);
    loop {
        beat.tick().await;
        let fault = probe(quota).await;
        tell("admit", &last, &fault);
        readiness.note_probe(fault.clone());
        if last.is_some() && fault.is_none() {
            mended.notify_one();
        }
        last = fault;
        metrics.fold();
    }
}

/// The first primary on which `admit` fails, and how. Probes work on keys of their own, so giving up moves no units.
async fn probe(quota: &Quota) -> Option<String> {
    let shards = match timeout(PROBE_FRESH, quota.shards_now()).await {
        Ok(Ok(shards)) => shards,
        Ok(Err(error)) => return Some(error.word().to_owned()),
        Err(_) => return Some(SILENT.to_owned()),
    };
    let one = async |shard: &Shard| match timeout(PROBE_FRESH, quota.probe_on(shard)).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(fault(&error, shard)),
        Err(_) => Some(format!("{SILENT} on {}", shard.name)),
    };
    join_all(shards.iter().map(one)).await.into_iter().flatten().next()
}

async fn probe_scripts_for_ever(quota: &Quota, readiness: &Readiness, mended: &Notify) {
    let (mut beat, mut last) = (beats(PROBE_ALL_EVERY), None);
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = mended.notified() => {}
        }
        // A store that does not even say what it consists of is told of by the quick probe.
        let Ok(shards) = quota.shards_now().await else { continue };
        let mut first = None;
        for shard in shards {
            let fault = match timeout(PROBE_ALL_TIME, quota.probe_scripts(&shard, false)).await {
                Ok(Ok(_)) => None,
                Ok(Err(failed)) => Some(format!("{}: {}", failed.script, fault(&failed.error, &shard))),
                Err(_) => Some(format!("{SILENT} on {}", shard.name)),
            };
            first = first.or(fault);
        }
        tell("all scripts", &last, &first);
        readiness.note_scripts(first.clone());
        last = first;
    }
}

async fn look_for_ever(quota: &Quota, readiness: &Readiness) {
    let (mut beat, mut watch) = (beats(WATCH_EVERY), Watch::default());
    loop {
        beat.tick().await;
        let vitals = watch.look(quota).await;
        // In a bad moment nothing is said: what was noted stays.
        if !vitals.is_empty() {
            readiness.note_vitals(&vitals);
        }
    }
}

const SILENT: &str = "no answer";

fn beats(every: Duration) -> tokio::time::Interval {
    let mut beat = interval(every);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}

fn fault(error: &StoreError, shard: &Shard) -> String {
    format!("{} on {}", error.word(), shard.name)
}

/// Logs the edges: well to failing, one fault to another, failing to well.
fn tell(what: &str, before: &Option<String>, now: &Option<String>) {
    match (before, now) {
        (before, Some(fault)) if before.as_ref() != Some(fault) => {
            tracing::warn!(what, fault, "store fails its probe");
        }
        (Some(_), None) => tracing::info!(what, "store answers its probe again"),
        (Some(_) | None, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{Metrics, Readiness, Shard, Vitals};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn red(readiness: &Readiness) -> Vec<String> {
        let parts = readiness.parts().into_iter().filter(|part| !part.ready);
        parts.map(|part| format!("{}: {}", part.name, part.reason)).collect()
    }

    #[test]
    fn every_part_must_be_ready() {
        let workers = Arc::new(AtomicUsize::new(1));
        let seen = Arc::clone(&workers);
        let readiness = Readiness::new(move || seen.load(Ordering::Relaxed));
        assert_eq!(red(&readiness), ["store: not probed yet", "scripts: not probed yet"]);
        readiness.note_probe(None);
        readiness.note_scripts(None);
        assert!(readiness.is_ready());
        workers.store(0, Ordering::Relaxed);
        assert_eq!(red(&readiness), ["workers: no healthy worker"]);
        workers.store(1, Ordering::Relaxed);
        readiness.note_probe(Some("busy on a:1".to_owned()));
        assert_eq!(red(&readiness), ["store: busy on a:1"]);
        readiness.note_probe(Some("readonly on a:1".to_owned()));
        assert_eq!(red(&readiness), ["store: readonly on a:1", "role: replica on a:1"]);
        readiness.note_probe(None);
        readiness.note_scripts(Some("reserve: oom on a:1".to_owned()));
        assert_eq!(red(&readiness), ["scripts: reserve: oom on a:1"]);
        readiness.note_scripts(None);
        readiness.drain();
        assert_eq!(red(&readiness), ["gateway: draining"]);
    }

    #[test]
    fn store_is_up_while_its_probe_is_good() {
        let (recorder, metrics) = Metrics::local();
        metrics::with_local_recorder(&recorder, || {
            let readiness = Readiness::new(|| 0);
            let up = || metrics.render().lines().any(|line| line == "voxgate_store_up 1");
            readiness.note_scripts(None);
            assert!(!up(), "not probed yet");
            readiness.note_probe(None);
            assert!(up(), "whatever else is not ready");
            readiness.note_probe(Some("late on a:1".to_owned()));
            assert!(!up());
            readiness.note_probe(None);
            assert!(up());
        });
    }

    #[test]
    fn what_loses_money_is_not_ready() {
        let readiness = Readiness::new(|| 1);
        readiness.note_probe(None);
        readiness.note_scripts(None);
        let shard = |name: &str| Shard { name: name.to_owned(), slot: 0 };
        let said = |info: &str| Vitals::read(info);
        readiness.note_vitals(&[
            (shard("a:1"), said("role:master\r\nmaxmemory_policy:noeviction\r\n")),
            (shard("b:2"), said("role:slave\r\nmaxmemory_policy:allkeys-lru\r\n")),
        ]);
        assert_eq!(red(&readiness), ["role: replica on b:2", "eviction: allkeys-lru on b:2"]);
        readiness.note_vitals(&[(shard("b:2"), said(""))]);
        assert!(readiness.is_ready(), "who tells nothing is believed");
    }
}
