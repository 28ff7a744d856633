//! The table of `check`: what each script takes on each primary, and how much of it is the server's own work.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::{Instant, timeout};
use voxgate::limits::{PROBE_ALL_TIME, SCRIPT_SLOW};
use voxgate::quota::probe::{ProbeError, Timed};
use voxgate::quota::store::{Shard, StoreError};
use voxgate::quota::watch::Own;
use voxgate::quota::{Quota, script};

use super::store::Finding;

/// Calls of each script that the table is made of.
const PROBES: u32 = 200;
/// How long all of them may take on one primary.
const PROBES_LONGEST: Duration = Duration::from_secs(20);

/// Above the columns of [`Latency::cells`].
pub(super) const COLUMNS: [&str; 7] = ["script", "store", "calls", "p50 ms", "p99 ms", "max ms", "server ms"];

/// What complete calls of one script on one primary took, in milliseconds.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Latency {
    script: &'static str,
    shard: String,
    calls: u64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    /// The server's own time per call, of all its clients in those moments; `None`: it does not tell.
    server_ms: Option<f64>,
}

impl Latency {
    /// One line of the table.
    pub(super) fn cells(&self) -> Vec<String> {
        let server = self.server_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.3}"));
        let times = [self.p50_ms, self.p99_ms, self.max_ms].map(|ms| format!("{ms:.3}"));
        let names = [self.script.to_owned(), self.shard.clone(), self.calls.to_string()];
        [names.to_vec(), times.to_vec(), vec![server]].concat()
    }
}

/// Calls of one script.
struct Calls {
    times: Histogram<u64>,
    own: Option<Own>,
}

/// Probes every script on every primary.
pub(super) async fn measure(quota: &Quota) -> Result<Vec<Latency>, StoreError> {
    let mut table = Vec::new();
    for shard in quota.shards().await? {
        table.extend(measure_one(quota, &shard).await?);
    }
    Ok(table)
}

async fn measure_one(quota: &Quota, shard: &Shard) -> Result<Vec<Latency>, StoreError> {
    let mut scripts: BTreeMap<&'static str, Calls> = BTreeMap::new();
    let until = Instant::now() + PROBES_LONGEST;
    for _ in 0..PROBES {
        let probed = timeout(PROBE_ALL_TIME, quota.probe_scripts(shard, true)).await;
        let probed = probed.map_err(|_| StoreError::Late(PROBE_ALL_TIME))?;
        for timed in probed.map_err(|ProbeError { script, error }| named(script, shard, error))? {
            note(&mut scripts, timed)?;
        }
        if Instant::now() > until {
            break;
        }
    }
    // In the order in which the scripts are told of everywhere.
    let order = script::all().into_iter().filter_map(|script| scripts.remove_entry(script.name));
    Ok(order.map(|(script, calls)| latency(script, shard, &calls)).collect())
}

/// An answer that was not foretold is told with its script and primary.
fn named(script: &str, shard: &Shard, error: StoreError) -> StoreError {
    match error {
        StoreError::Odd(text) => StoreError::Odd(format!("{script} on {}: {text}", shard.name)),
        other => other,
    }
}

fn note(scripts: &mut BTreeMap<&'static str, Calls>, timed: Timed) -> Result<(), StoreError> {
    if !scripts.contains_key(timed.script) {
        let longest = u64::try_from(PROBES_LONGEST.as_nanos()).unwrap_or(u64::MAX);
        let times = Histogram::new_with_bounds(1, longest, 3);
        let times = times.map_err(|error| StoreError::Odd(error.to_string()))?;
        scripts.insert(timed.script, Calls { times, own: None });
    }
    if let Some(calls) = scripts.get_mut(timed.script) {
        calls.times.saturating_record(u64::try_from(timed.took.as_nanos()).unwrap_or(u64::MAX));
        if let Some(own) = timed.own {
            let sum = calls.own.unwrap_or_default();
            calls.own = Some(Own { calls: sum.calls + own.calls, time: sum.time + own.time });
        }
    }
    Ok(())
}

fn latency(script: &'static str, shard: &Shard, calls: &Calls) -> Latency {
    let ms = |nanos: u64| Duration::from_nanos(nanos).as_secs_f64() * 1000.0;
    let times = &calls.times;
    Latency {
        script,
        shard: shard.name.clone(),
        calls: times.len(),
        p50_ms: ms(times.value_at_quantile(0.5)),
        p99_ms: ms(times.value_at_quantile(0.99)),
        max_ms: ms(times.max()),
        server_ms: calls.own.and_then(Own::mean).map(|mean| mean.as_secs_f64() * 1000.0),
    }
}

/// One finding for each primary: its slowest script, and whether the server or the queue before it is to blame.
pub(super) fn judge(table: &[Latency]) -> Vec<Finding> {
    let slow = SCRIPT_SLOW.as_secs_f64() * 1000.0;
    let mut worst: BTreeMap<&str, &Latency> = BTreeMap::new();
    for line in table {
        let most = worst.entry(&line.shard).or_insert(line);
        if line.p99_ms > most.p99_ms {
            *most = line;
        }
    }
    let finding = |(shard, line): (&str, &Latency)| {
        let reason = format!("{} takes {:.3} ms on {shard} in 99 of 100 calls", line.script, line.p99_ms);
        let server = line.server_ms.unwrap_or(0.0);
        if line.p99_ms <= slow {
            Finding::pass("script latency", reason)
        } else if server * 4.0 > line.p99_ms {
            let fix = "the server itself is slow: give it a core of its own, memory that does not swap";
            Finding::warn("script latency", format!("{reason}, {server:.3} ms of it in the server"), fix)
        } else {
            let fix =
                "calls wait: bring the store nearer, or see what else holds it (SLOWLOG, other scripts)";
            Finding::warn("script latency", format!("{reason}, {server:.3} ms of it in the server"), fix)
        }
    };
    worst.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::{Latency, judge};
    use crate::cli::store::Grade;

    fn line(script: &'static str, shard: &str, p50_ms: f64, server_ms: f64) -> Latency {
        let (p99_ms, max_ms, server_ms) = (p50_ms * 2.0, p50_ms * 3.0, Some(server_ms));
        Latency { script, shard: shard.to_owned(), calls: 200, p50_ms, p99_ms, max_ms, server_ms }
    }

    #[test]
    fn slow_server_and_queue_are_told_apart() {
        let table = [
            line("admit", "a:1", 0.1, 0.01),
            line("reserve", "a:1", 30.0, 0.1),
            line("admit", "b:2", 0.1, 0.01),
            line("settle", "b:2", 30.0, 29.0),
            line("admit", "c:3", 0.1, 0.01),
            // Mostly the server's work, but what makes it slow now and then is not.
            Latency { p99_ms: 29.0, ..line("rebuild", "d:4", 0.2, 0.18) },
        ];
        let findings = judge(&table);
        let fixes: Vec<_> = findings.iter().map(|finding| (finding.grade, finding.fix)).collect();
        assert_eq!(fixes[0].0, Grade::Warn);
        assert!(fixes[0].1.starts_with("calls wait"), "{fixes:?}");
        assert!(fixes[1].1.starts_with("the server itself"), "{fixes:?}");
        assert_eq!(fixes[2], (Grade::Pass, ""));
        assert!(fixes[3].1.starts_with("calls wait"), "{fixes:?}");
    }
}
