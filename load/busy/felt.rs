//! What one slow script did to the streams and to an unrelated key, read out of the samples afterwards.

use serde::Serialize;

use super::super::client::{Outcome, Sample};
use super::super::sessions::round::{quantile, sorted};
use super::Case;
use super::prober::Probe;

/// Seen from outside.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Felt {
    /// Median of a chunk in the second before, in milliseconds.
    pub(super) p50_before_ms: f64,
    /// The slowest chunk that was due while it ran.
    pub(super) worst_ms: f64,
    /// Chunks that were due while it ran and answered only after its end.
    pub(super) held: usize,
    /// From its end until the median is normal again; nothing when it never was.
    pub(super) recovery_ms: Option<f64>,
    /// The slowest GET of the unrelated key.
    pub(super) probe_worst_ms: f64,
    /// The longest time in which that key gave no good answer.
    pub(super) probe_without_ms: f64,
    /// GETs refused with BUSY.
    pub(super) probe_busy: usize,
}

impl Felt {
    /// Of one case.
    pub(super) fn of(case: &Case, outcome: &Outcome, probes: &[Probe]) -> Self {
        let window = |from: f64, to: f64| -> Vec<&Sample> {
            outcome.samples.iter().filter(|sample| sample.due >= from && sample.due < to).collect()
        };
        let took = |samples: &[&Sample]| sorted(samples.iter().map(|sample| sample.took * 1000.0).collect());
        let before = took(&window(case.from - BEFORE, case.from));
        let during = window(case.from, case.to);
        let probed: Vec<&Probe> =
            probes.iter().filter(|probe| probe.sent >= case.from && probe.sent < case.to).collect();
        Self {
            p50_before_ms: quantile(&before, 0.5),
            worst_ms: took(&during).last().copied().unwrap_or(0.0),
            held: during.iter().filter(|sample| sample.due + sample.took >= case.to).count(),
            recovery_ms: recovery(case.to, normal(&before), |from, to| {
                quantile(&took(&window(from, to)), 0.5)
            }),
            probe_worst_ms: probed.iter().map(|probe| probe.took * 1000.0).fold(0.0, f64::max),
            probe_without_ms: without(case, probes) * 1000.0,
            probe_busy: probed.iter().filter(|probe| probe.busy).count(),
        }
    }
}

/// What a median may be and count as normal: up to the slowest tenth of the second before, or half more than its median.
fn normal(before: &[f64]) -> f64 {
    quantile(before, 0.9).max(quantile(before, 0.5) * 1.5)
}

/// End of the first of three windows in a row whose median is normal, in milliseconds after `end`.
fn recovery(end: f64, normal: f64, median: impl Fn(f64, f64) -> f64) -> Option<f64> {
    let good = |step: u32| {
        let from = end + f64::from(step) * WINDOW;
        let median = median(from, from + WINDOW);
        median > 0.0 && median <= normal
    };
    let first = (0..WINDOWS).find(|step| (*step..step + 3).all(good))?;
    Some(f64::from(first + 1) * WINDOW * 1000.0)
}

/// The longest time between two good answers, around a case.
fn without(case: &Case, probes: &[Probe]) -> f64 {
    let good = probes.iter().filter(|probe| !probe.busy).map(|probe| probe.sent + probe.took);
    let good = sorted(good.filter(|at| *at >= case.from - 0.1 && *at < case.to + 0.5).collect());
    good.windows(2)
        .map(|pair| pair.iter().rev().copied().reduce(|to, from| to - from).unwrap_or(0.0))
        .fold(0.0, f64::max)
}

/// The time before a case that it is held against, in seconds.
pub(super) const BEFORE: f64 = 1.0;
/// Chunks due in this time make one median, in seconds.
const WINDOW: f64 = 0.02;
/// Windows that are looked at: what is not normal in five seconds counts as never.
const WINDOWS: u32 = 250;

#[cfg(test)]
mod tests {
    use super::recovery;

    #[test]
    fn recovery_needs_three_good_windows() {
        let slow_until = |slow: f64| move |from: f64, _: f64| if from < slow { 9.0 } else { 1.0 };
        assert_eq!(recovery(10.0, 1.0, slow_until(0.0)).map(f64::round), Some(20.0));
        assert_eq!(recovery(10.0, 1.0, slow_until(10.099)).map(f64::round), Some(120.0));
        assert_eq!(recovery(10.0, 1.0, slow_until(99.0)), None);
        let flicker =
            |from: f64, _: f64| if ((from * 50.0).round() as u32).is_multiple_of(3) { 9.0 } else { 1.0 };
        assert_eq!(recovery(10.0, 1.0, flicker), None, "one good moment is no recovery");
    }
}
