//! `load latency`: the whole `admit` call, from send to decoded reply, by input size and number of callers.
//!
//! A closed loop: each caller has one call in flight on the gateway's own kind of connection, which all callers share.
//! The sizes go from a short key and a cost of one digit to the longest key and the largest amount that exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use voxgate::limits::NAME_BYTES_MAX;
use voxgate::quota::keys::{Keys, Name};
use voxgate::quota::script;
use voxgate::quota::store::{Reply, Store};
use voxgate::units::Units;

use super::report::Report;
use super::server::Private;
use super::{Failure, Target, admit};

/// What `load latency` can be told.
#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    target: Target,
    /// Calls per row of the table
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    calls: u32,
    /// Callers at once, several runs
    #[arg(long, value_delimiter = ',', default_value = "1,8,50")]
    callers: Vec<u32>,
}

/// One input size.
struct Size {
    word: &'static str,
    key: String,
    cost: String,
}

fn sizes() -> Vec<Size> {
    let keys = Keys::new("load:");
    let name = |bytes: usize| Name::parse(&"a".repeat(bytes.clamp(1, NAME_BYTES_MAX)));
    let key = |bytes: usize, n: u64| {
        name(bytes).map_or_else(String::new, |a| keys.quota(&a, &"s".repeat(bytes), n))
    };
    let most = Units::MAX.get();
    vec![
        Size { word: "smallest", key: key(1, 1), cost: "1".into() },
        Size { word: "usual", key: key(16, 7), cost: "100".into() },
        Size { word: "largest", key: key(NAME_BYTES_MAX + 17, most), cost: most.to_string() },
    ]
}

/// Runs every row; gives the report.
pub(super) async fn run(options: Options) -> Result<Report, Failure> {
    let server = Private::open(&options.target)?;
    let mut report = Report::new("latency", json!({ "callers": options.callers, "calls": options.calls }));
    report.tell_store(&server.store()?).await;
    let store = server.store()?;
    let mut rows = Vec::new();
    for callers in options.callers.iter().copied().filter(|callers| (1..=10_000).contains(callers)) {
        for size in sizes() {
            rows.push(row(&store, &size, callers, options.calls).await?);
            if let Some(row) = rows.last() {
                eprintln!("latency: {row}");
            }
        }
    }
    let server_us = server_time(&store).await;
    report.data = json!({
        "store": store.word(), "rows": rows,
        "evalsha_usec_per_call": server_us,
    });
    Ok(report)
}

async fn row(store: &Store, size: &Size, callers: u32, calls: u32) -> Result<Value, Failure> {
    let most = Units::MAX.to_string();
    store.command(&["SET", &size.key, &most, "PX", "600000"]).await?;
    let left = Arc::new(AtomicU32::new(calls));
    let start = Instant::now();
    let tasks = (0..callers).map(|_| {
        let (store, left, key, cost) = (store.clone(), left.clone(), size.key.clone(), size.cost.clone());
        tokio::spawn(async move {
            let mut times = histogram();
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            {
                let sent = Instant::now();
                // The largest cost is granted once and refused ever after: both are the whole script.
                admit(&store, &script::ADMIT, &key, &cost).await?;
                record(&mut times, sent.elapsed());
            }
            Ok::<_, Failure>(times)
        })
    });
    let mut times = histogram();
    for task in tasks.collect::<Vec<_>>() {
        times += task.await??;
    }
    let seconds = start.elapsed().as_secs_f64();
    store.command(&["DEL", &size.key]).await?;
    let us = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1000.0;
    Ok(json!({
        "input": size.word, "key_bytes": size.key.len(), "cost_digits": size.cost.len(), "callers": callers,
        "calls": times.len(), "per_second": times.len() as f64 / seconds,
        "p50_us": us(0.5), "p90_us": us(0.9), "p99_us": us(0.99), "p999_us": us(0.999), "max_us": us(1.0),
    }))
}

/// 100 ns to 60 s, three digits.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 60_000_000_000, 3)
        .unwrap_or_else(|_| Histogram::new(3).unwrap_or_else(|_| unreachable!()))
}

/// Adds one time, in nanoseconds.
pub(super) fn record(times: &mut Histogram<u64>, took: std::time::Duration) {
    times.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
}

/// The server's own time per EVALSHA, in microseconds; nothing from a store that does not say.
async fn server_time(store: &Store) -> Option<f64> {
    let Ok(Reply::Bulk(text)) = store.command(&["INFO", "commandstats"]).await else { return None };
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find(|line| line.starts_with("cmdstat_evalsha:"))?;
    line.split(',').find_map(|part| part.strip_prefix("usec_per_call="))?.parse().ok()
}
