//! What each primary says of itself: time spent in scripts, refusals, evictions, memory, slow log. Only asks.
//!
//! # What is asked
//! `INFO` (statistics by command and by error, memory, replication) and `SLOWLOG GET`, every
//! [`WATCH_EVERY`](crate::limits::WATCH_EVERY), of every primary. A server counts all its clients together, so these
//! figures hold what other gateways, and whoever else uses it, do to us. The embedded store counts nothing of this.
//!
//! # Failures
//! | seen | done |
//! |---|---|
//! | `NOPERM` on `INFO` or `SLOWLOG` | told once; what needs it is missing from the metrics, all else goes on |
//! | no answer, `BUSY` | the next look makes up for it: servers count on |
//! | a count that is smaller than before | the server was started anew: counted from 0 |
//!
//! A primary that is none any more is forgotten, and its gauges go to 0; what was counted of it stays to be read until the
//! gateway is started anew.
//!
//! Of a slow call only its time and which of our scripts it was are kept: its arguments may hold names.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::store::{Reply, Shard, StoreError, code};
use super::{Quota, script};
use crate::limits::{SLOW_LOG_MAX, STALL};

/// Scripts that a server has run, of all its clients, and how long it was at work on them itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// Calls of EVALSHA.
    pub calls: u64,
    /// The server's own time for them.
    pub time: Duration,
}

impl Own {
    /// What has come since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        match self.calls.checked_sub(before.calls).zip(self.time.checked_sub(before.time)) {
            Some((calls, time)) => Self { calls, time },
            None => self,
        }
    }

    /// Time per call; `None` without calls.
    pub fn mean(self) -> Option<Duration> {
        (self.calls > 0).then(|| self.time.div_f64(self.calls as f64))
    }
}

/// What one primary's `INFO` says that matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// `master`, `slave`, or empty where it is not told.
    pub role: String,
    /// What is thrown away when memory is full; empty where it is not told.
    pub policy: String,
    /// Scripts run.
    pub own: Own,
    /// Error replies since its start, by our label for them.
    pub errors: BTreeMap<&'static str, u64>,
    /// Keys thrown away for lack of memory.
    pub evicted_keys: u64,
    /// Scripts thrown away because too many came by EVAL.
    pub evicted_scripts: u64,
    /// Scripts that it knows.
    pub scripts: u64,
    /// Bytes in use.
    pub memory: u64,
    /// Bytes that it may use; 0: no limit.
    pub memory_max: u64,
}

impl Vitals {
    /// Reads the text of `INFO`; what is not in it stays empty or 0.
    pub fn read(info: &str) -> Self {
        let mut vitals = Self::default();
        for (name, value) in info.lines().filter_map(|line| line.trim_end().split_once(':')) {
            let number = || value.parse().unwrap_or(0);
            match name {
                "role" => value.clone_into(&mut vitals.role),
                "maxmemory_policy" => value.clone_into(&mut vitals.policy),
                "cmdstat_evalsha" => {
                    let time = Duration::from_micros(field(value, "usec"));
                    vitals.own = Own { calls: field(value, "calls"), time };
                }
                "evicted_keys" => vitals.evicted_keys = number(),
                "evicted_scripts" => vitals.evicted_scripts = number(),
                "number_of_cached_scripts" => vitals.scripts = number(),
                "used_memory" => vitals.memory = number(),
                "maxmemory" => vitals.memory_max = number(),
                _ => {
                    if let Some(code) = name.strip_prefix("errorstat_").and_then(code::find) {
                        vitals.errors.insert(code.label, field(value, "count"));
                    }
                }
            }
        }
        vitals
    }

    /// Whether it may throw budgets away when its memory is full.
    pub fn may_evict(&self) -> bool {
        !matches!(self.policy.as_str(), "" | "noeviction")
    }

    /// Whether it follows another server, and so decides nothing.
    pub fn is_replica(&self) -> bool {
        !matches!(self.role.as_str(), "" | "master")
    }
}

/// One number of a line such as `calls=3,usec=120`.
fn field(line: &str, name: &str) -> u64 {
    let pairs = line.split(',').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(found, _)| *found == name).find_map(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// A script in a server's slow log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Its number in the log, growing until the server is started anew.
    pub id: i64,
    /// The server's own time for it.
    pub took: Duration,
    /// Which of ours it was; `None`: somebody else's.
    pub script: Option<&'static str>,
}

impl Slow {
    /// Reads `[id, second, microseconds, [words…], …]`; `None` for what is no script.
    fn read(entry: &Reply) -> Option<Self> {
        let Reply::List(parts) = entry else { return None };
        let [Reply::Int(id), _, Reply::Int(micros), Reply::List(words), ..] = parts.as_slice() else {
            return None;
        };
        let word = |at: usize| match words.get(at) {
            Some(Reply::Bulk(bytes)) => String::from_utf8_lossy(bytes).to_ascii_lowercase(),
            Some(Reply::Nil | Reply::Int(_) | Reply::Status(_) | Reply::List(_)) | None => String::new(),
        };
        SCRIPT_WORDS.contains(&word(0).as_str()).then_some(())?;
        let sha = word(1);
        let ours = script::all().into_iter().find(|script| script.sha == sha);
        let took = Duration::from_micros(u64::try_from(*micros).ok()?);
        Some(Self { id: *id, took, script: ours.map(|script| script.name) })
    }
}

const SCRIPT_WORDS: [&str; 6] = ["evalsha", "eval", "fcall", "evalsha_ro", "eval_ro", "fcall_ro"];

/// What was seen of a primary last.
#[derive(Default)]
struct Seen {
    vitals: Option<Vitals>,
    /// Newest number in its slow log.
    slow: Option<i64>,
}

/// Looks at the primaries again and again, and keeps the metrics of what grew in between.
#[derive(Default)]
pub struct Watch {
    seen: HashMap<String, Seen>,
    told: HashSet<&'static str>,
}

impl Watch {
    /// Looks at every primary once; gives what those that answered said. Cancel safe.
    pub async fn look(&mut self, quota: &Quota) -> Vec<(Shard, Vitals)> {
        let mut found = Vec::new();
        if quota.store_word() == "embedded" {
            return found;
        }
        let Ok(shards) = quota.shards_now().await else { return found };
        self.keep(&shards);
        for shard in shards {
            let look = async { (quota.vitals(&shard).await, quota.slow_scripts(&shard).await) };
            let Ok((vitals, slow)) = tokio::time::timeout(STALL, look).await else { continue };
            if let Some(vitals) = self.heard("INFO", vitals) {
                self.note_vitals(&shard, &vitals);
                found.push((shard.clone(), vitals));
            }
            if let Some(slow) = self.heard("SLOWLOG", slow) {
                self.note_slow(&shard, &slow);
            }
        }
        found
    }

    /// Forgets primaries that are none any more. Their last figures would stand for ever, and alerts on them with it.
    fn keep(&mut self, shards: &[Shard]) {
        self.seen.retain(|name, _| {
            let stays = shards.iter().any(|shard| shard.name == *name);
            for gauge in GAUGES.into_iter().filter(|_| !stays) {
                metrics::gauge!(gauge, "shard" => name.clone()).set(0.0);
            }
            stays
        });
    }

    /// What was answered; a missing permission is told once.
    fn heard<T>(&mut self, what: &'static str, answer: Result<T, StoreError>) -> Option<T> {
        match answer {
            Ok(answer) => return Some(answer),
            Err(error @ StoreError::Denied(_)) => {
                if self.told.insert(what) {
                    let fix = "allow it in the ACL: +info +slowlog|get";
                    tracing::warn!(command = what, %error, fix, "store does not tell how it is; metrics of it are missing");
                }
            }
            Err(error) => tracing::debug!(command = what, %error, "store does not tell how it is"),
        }
        None
    }

    fn note_vitals(&mut self, shard: &Shard, vitals: &Vitals) {
        let name = || shard.name.clone();
        let seen = self.seen.entry(name()).or_default();
        // The first look only says where counting begins.
        let before = seen.vitals.replace(vitals.clone()).unwrap_or_else(|| vitals.clone());
        let own = vitals.own.since(before.own);
        metrics::counter!("voxgate_store_script_calls_total", "shard" => name()).increment(own.calls);
        if let Some(mean) = own.mean() {
            metrics::gauge!("voxgate_store_script_mean_seconds", "shard" => name()).set(mean);
        }
        for (kind, count) in &vitals.errors {
            let more = grown(*count, before.errors.get(kind).copied().unwrap_or(0));
            metrics::counter!("voxgate_store_errors_total", "shard" => name(), "kind" => *kind)
                .increment(more);
        }
        let keys = grown(vitals.evicted_keys, before.evicted_keys);
        metrics::counter!("voxgate_store_evicted_keys_total", "shard" => name()).increment(keys);
        let scripts = grown(vitals.evicted_scripts, before.evicted_scripts);
        metrics::counter!("voxgate_store_evicted_scripts_total", "shard" => name()).increment(scripts);
        metrics::gauge!("voxgate_store_scripts_cached", "shard" => name()).set(vitals.scripts as f64);
        metrics::gauge!("voxgate_store_memory_bytes", "shard" => name()).set(vitals.memory as f64);
        metrics::gauge!("voxgate_store_memory_max_bytes", "shard" => name()).set(vitals.memory_max as f64);
        if keys > 0 {
            tracing::error!(shard = shard.name, keys, "store throws keys away: books may be among them");
        }
    }

    fn note_slow(&mut self, shard: &Shard, log: &[Slow]) {
        let newest = log.iter().map(|slow| slow.id).max();
        let seen = self.seen.entry(shard.name.clone()).or_default();
        // An emptied log goes on counting; one with smaller numbers is of a server that was started anew.
        let before = seen.slow.filter(|before| newest.is_none_or(|newest| newest >= *before));
        let first = seen.slow.is_none();
        seen.slow = Some(newest.or(seen.slow).unwrap_or(-1));
        let new = log.iter().filter(|slow| before.is_none_or(|before| slow.id > before));
        let (mut count, mut slowest) = (0, None::<Slow>);
        for slow in new.filter(|_| !first) {
            count += 1;
            slowest = slowest.filter(|most| most.took >= slow.took).or(Some(*slow));
        }
        metrics::counter!("voxgate_store_slow_scripts_total", "shard" => shard.name.clone()).increment(count);
        if let Some(Slow { took, script, .. }) = slowest {
            let script = script.unwrap_or("foreign");
            tracing::warn!(
                shard = shard.name,
                count,
                ?took,
                script,
                "slow scripts in the store; the slowest is told"
            );
        }
    }
}

/// Every gauge that speaks of one primary.
const GAUGES: [&str; 5] = [
    "voxgate_probe_slowest_seconds",
    "voxgate_store_script_mean_seconds",
    "voxgate_store_scripts_cached",
    "voxgate_store_memory_bytes",
    "voxgate_store_memory_max_bytes",
];

/// How much a count has grown; a smaller one was begun anew.
const fn grown(now: u64, before: u64) -> u64 {
    if now >= before { now - before } else { now }
}

impl Quota {
    /// What one primary says of itself. All empty for the embedded store.
    pub async fn vitals(&self, shard: &Shard) -> Result<Vitals, StoreError> {
        self.info(shard, &["INFO", "commandstats", "errorstats", "stats", "memory", "replication"]).await
    }

    /// How many scripts one primary has run, and its own time for them; `None` where it does not tell.
    pub(super) async fn own_time(&self, shard: &Shard) -> Result<Option<Own>, StoreError> {
        match self.info(shard, &["INFO", "commandstats"]).await {
            Ok(vitals) => Ok((self.store_word() != "embedded").then_some(vitals.own)),
            Err(StoreError::Denied(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Scripts in the slow log of one primary, newest first; none for the embedded store.
    pub async fn slow_scripts(&self, shard: &Shard) -> Result<Vec<Slow>, StoreError> {
        if self.store_word() == "embedded" {
            return Ok(Vec::new());
        }
        let most = SLOW_LOG_MAX.to_string();
        match self.0.store.command_on(shard, &["SLOWLOG", "GET", &most]).await? {
            Reply::List(entries) => Ok(entries.iter().filter_map(Slow::read).collect()),
            Reply::Nil | Reply::Int(_) | Reply::Bulk(_) | Reply::Status(_) => {
                Err(StoreError::Odd("SLOWLOG GET".into()))
            }
        }
    }

    async fn info(&self, shard: &Shard, words: &[&str]) -> Result<Vitals, StoreError> {
        if self.store_word() == "embedded" {
            return Ok(Vitals::default());
        }
        match self.0.store.command_on(shard, words).await? {
            Reply::Bulk(text) => Ok(Vitals::read(&String::from_utf8_lossy(&text))),
            Reply::Nil | Reply::Int(_) | Reply::Status(_) | Reply::List(_) => {
                Err(StoreError::Odd("INFO".into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Stats\r\nevicted_keys:2\r\nevicted_scripts:7\r\n# Memory\r\nused_memory:1000\r\n\
        maxmemory:2000\r\nmaxmemory_policy:allkeys-lru\r\nnumber_of_cached_scripts:10\r\nrole:slave\r\n\
        cmdstat_evalsha:calls=3,usec=120,usec_per_call=40.00,rejected_calls=1,failed_calls=0\r\n\
        errorstat_BUSY:count=4\r\nerrorstat_WHATEVER:count=9\r\n";

    #[test]
    fn info_is_read() {
        let vitals = Vitals::read(INFO);
        assert_eq!(vitals.own.mean(), Some(Duration::from_micros(40)));
        assert_eq!(vitals.errors.into_iter().collect::<Vec<_>>(), [("busy", 4)]);
        assert_eq!((vitals.evicted_keys, vitals.evicted_scripts, vitals.scripts), (2, 7, 10));
        assert_eq!((vitals.memory, vitals.memory_max), (1000, 2000));
        let vitals = Vitals::read(INFO);
        assert!(vitals.may_evict() && vitals.is_replica());
        assert!(!Vitals::default().may_evict() && !Vitals::default().is_replica());
    }

    #[test]
    fn departed_primaries_are_forgotten() {
        let (recorder, metrics) = crate::telemetry::Metrics::local();
        metrics::with_local_recorder(&recorder, || {
            let shard = |name: &str| Shard { name: name.to_owned(), slot: 0 };
            let (old, new) = (shard("a:1"), shard("b:2"));
            let mut watch = Watch::default();
            watch.note_vitals(&old, &Vitals::read(INFO));
            watch.note_vitals(&new, &Vitals::read(INFO));
            watch.keep(std::slice::from_ref(&new));
            assert_eq!(watch.seen.keys().collect::<Vec<_>>(), ["b:2"]);
            let page = metrics.render();
            for line in ["{shard=\"a:1\"} 0", "{shard=\"b:2\"} 1000"] {
                let line = format!("voxgate_store_memory_bytes{line}");
                assert!(page.lines().any(|found| found == line), "{line} in {page}");
            }
        });
    }

    #[test]
    fn every_gauge_of_a_primary_is_known() {
        let with_shard = crate::telemetry::METRICS.iter().filter(|metric| metric.labels == ["shard"]);
        let gauges = with_shard.filter(|metric| metric.kind == crate::telemetry::Kind::Gauge);
        assert_eq!(gauges.map(|metric| metric.name).collect::<Vec<_>>(), GAUGES);
    }

    #[test]
    fn restart_counts_from_nothing() {
        let own = |calls, micros| Own { calls, time: Duration::from_micros(micros) };
        assert_eq!(own(5, 50).since(own(3, 20)), own(2, 30));
        assert_eq!(own(5, 50).since(own(9, 90)), own(5, 50));
        assert_eq!((grown(7, 3), grown(2, 3)), (4, 2));
    }

    #[test]
    fn slow_log_tells_no_arguments() {
        let words = |words: &[&str]| {
            Reply::List(words.iter().map(|word| Reply::Bulk(word.as_bytes().to_vec())).collect())
        };
        let entry = |list: Reply| Reply::List(vec![Reply::Int(4), Reply::Int(1), Reply::Int(12_000), list]);
        let slow = Slow::read(&entry(words(&["EVALSHA", &script::ADMIT.sha, "1", "secret"]))).unwrap();
        assert_eq!((slow.script, slow.took), (Some("admit"), Duration::from_millis(12)));
        assert!(!format!("{slow:?}").contains("secret"));
        assert_eq!(Slow::read(&entry(words(&["EVAL", "return 1", "0"]))).unwrap().script, None);
        assert_eq!(Slow::read(&entry(words(&["KEYS", "*"]))), None);
    }
}
