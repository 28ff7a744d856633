//! One short round: a crowd on one path, warmed up, then measured; CPU of each process over the very same chunks.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::super::client::{Crowd, Outcome, Plan, Sample};
use super::super::worker::Worker;
use super::super::{Failure, process};
use super::path::Proxy;

/// How much is sent.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Scale {
    pub(super) streams: usize,
    pub(super) bytes: usize,
    pub(super) period_ms: u64,
}

impl Scale {
    pub(super) const fn plan(self) -> Plan {
        Plan { bytes: self.bytes, period: Duration::from_millis(self.period_ms) }
    }
}

/// What one round came to. Times in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Round {
    pub(super) chunks: usize,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    /// CPU per chunk, by process.
    pub(super) cpu: BTreeMap<&'static str, f64>,
    pub(super) sent: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) unmatched: u64,
    /// Streams that ended unasked.
    pub(super) closed: u64,
    /// All latencies, sorted.
    #[serde(skip)]
    pub(super) took: Vec<f64>,
}

/// Opens, warms up, measures, closes.
pub(super) async fn round(
    proxy: &Proxy,
    worker: &Worker,
    scale: Scale,
    warm: Duration,
    time: Duration,
) -> Result<Round, Failure> {
    let crowd = Crowd::open(&proxy.door, scale.streams).await?;
    let run = crowd.start(scale.plan());
    tokio::time::sleep_until((run.start + warm).into()).await;
    let (from, before) = (run.now(), spent(proxy, worker));
    tokio::time::sleep(time).await;
    let (to, after) = (run.now(), spent(proxy, worker));
    let outcome = run.end(Duration::from_secs(10)).await?;
    crowd.close().await;
    Ok(Round::of(&outcome, (from, to), &before, &after))
}

/// CPU so far, by process.
pub(super) fn spent(proxy: &Proxy, worker: &Worker) -> Vec<(&'static str, Duration)> {
    let own = [("client", std::process::id())];
    let worker = worker.pid().map(|pid| ("worker", pid));
    let all = proxy.pids().into_iter().chain(worker).chain(own);
    all.map(|(word, pid)| (word, process::cpu(pid))).collect()
}

impl Round {
    /// Counts the chunks that were due in a window, and the CPU between its ends.
    pub(super) fn of(
        outcome: &Outcome,
        (from, to): (f64, f64),
        before: &[(&'static str, Duration)],
        after: &[(&'static str, Duration)],
    ) -> Self {
        let inside = |sample: &&Sample| sample.due >= from && sample.due < to;
        let took = outcome.samples.iter().filter(inside).map(|sample| sample.took * 1e6);
        let took = sorted(took.collect());
        let chunks = took.len();
        let each = |time: Duration| time.as_secs_f64() * 1e6 / chunks.max(1) as f64;
        let cpu = before.iter().zip(after);
        let cpu = cpu.map(|((word, before), (_, after))| (*word, each(after.saturating_sub(*before))));
        Self {
            chunks,
            p50: quantile(&took, 0.5),
            p99: quantile(&took, 0.99),
            p999: quantile(&took, 0.999),
            cpu: cpu.collect(),
            sent: outcome.sent,
            lost: outcome.lost,
            doubled: outcome.doubled,
            unmatched: outcome.unmatched,
            closed: outcome.closes.values().sum(),
            took,
        }
    }

    /// Answers that are not what they must be, and streams that ended unasked.
    pub(super) fn faults(&self) -> u64 {
        self.lost + self.doubled + self.unmatched + self.closed
    }
}

/// In rising order.
pub(in super::super) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The value that so much of the sorted values does not exceed; 0 of none.
pub(in super::super) fn quantile(sorted: &[f64], quantile: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * quantile).round() as usize).copied().unwrap_or(0.0)
}

/// The middle of some values.
pub(in super::super) fn median(values: Vec<f64>) -> f64 {
    quantile(&sorted(values), 0.5)
}
