//! An open loop: calls begin when they are due, whether earlier ones are answered or not, and are timed from then, so
//! that a queue shows (no coordinated omission).
//!
//! The runtime's own timer wakes once in a millisecond, and would make ten calls at once out of 10,000 a second. So a
//! thread of its own keeps the time. By how much a call begins later than due is measured beside its time: what the
//! driver, not the measured part, is to blame for.

use std::future::Future;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Failure;
use super::latency::{histogram, record};
use super::progress::stop;

/// Times of calls, in nanoseconds.
pub(super) struct Outcome {
    pub per_second: f64,
    /// From when a call was due to its end; in a closed loop, from when it was sent.
    pub times: Histogram<u64>,
    /// Of these, before the call began. Empty in a closed loop.
    pub late: Histogram<u64>,
}

impl Outcome {
    /// Milliseconds at a quantile.
    pub(super) fn ms(&self, quantile: f64) -> f64 {
        self.times.value_at_quantile(quantile) as f64 / 1e6
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "calls": self.times.len(), "per_second": self.per_second, "p50_ms": self.ms(0.5), "p90_ms": self.ms(0.9),
            "p99_ms": self.ms(0.99), "p999_ms": self.ms(0.999), "max_ms": self.ms(1.0),
            "late_p50_ms": self.late.value_at_quantile(0.5) as f64 / 1e6,
            "late_p99_ms": self.late.value_at_quantile(0.99) as f64 / 1e6,
        })
    }
}

/// When calls are due.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// Calls a second.
    pub rate: f64,
    /// For so long.
    pub seconds: f64,
    /// Calls that are due at the same moment.
    pub together: u32,
}

/// Begins calls at this pace, until its end or until the run is stopped, and waits for all of them.
pub(super) async fn open<F, C>(pace: Pace, call: F) -> Result<Outcome, Failure>
where
    F: Fn() -> C,
    C: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let (mut times, mut late, mut calls) = (histogram(), histogram(), JoinSet::new());
    let start = Instant::now();
    let mut due = keep_time(pace);
    let mut add = |(waited, took): (Duration, Duration)| {
        record(&mut late, waited);
        record(&mut times, took);
    };
    while let Some(due) = due.recv().await {
        let call = call();
        calls.spawn(async move {
            let waited = due.elapsed();
            call.await?;
            Ok::<_, Failure>((waited, due.elapsed()))
        });
        while let Some(done) = calls.try_join_next() {
            add(done??);
        }
    }
    while let Some(done) = calls.join_next().await {
        add(done??);
    }
    Ok(Outcome { per_second: times.len() as f64 / start.elapsed().as_secs_f64(), times, late })
}

/// Tells each moment when it has come. Ends with its receiver.
fn keep_time(pace: Pace) -> mpsc::UnboundedReceiver<Instant> {
    let (tell, told) = mpsc::unbounded_channel();
    let (rate, together) = (pace.rate.max(1.0), u64::from(pace.together.max(1)));
    let total = (rate * pace.seconds) as u64;
    thread::spawn(move || {
        let start = Instant::now();
        for n in 0..total {
            let due = start + Duration::from_secs_f64((n - n % together) as f64 / rate);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if tell.send(due).is_err() || stop().is_cancelled() {
                return;
            }
        }
    });
    told
}

/// One call in so many takes longer than the time shown for it: the places of a chart of the tail.
pub(super) const ONE_IN: [f64; 8] = [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 1000.0];
