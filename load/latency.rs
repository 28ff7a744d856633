//! `load latency`: the whole `admit` call, from send to decoded reply, on the gateway's own kind of connection; and in
//! the same rounds what the store itself can do.
//!
//! `sweep` goes through input sizes and numbers of callers in a closed loop. `rounds` holds the path against the
//! store's ceiling, all measurements of a round behind one another, and takes the medians of the rounds' ratios.

mod rounds;
mod sweep;

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use voxgate::quota::store::Store;

use super::ceiling::Ceiling;
use super::progress::{Progress, stop};
use super::report::Report;
use super::server::Private;
use super::{Failure, Target};
use rounds::Round;
pub(super) use rounds::median;

/// What `load latency` can be told.
#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    target: Target,
    /// Calls per row of the table, and per measurement of a round [default: 50000]
    #[arg(long, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    calls: Option<u32>,
    /// Callers at once, 1 to 10000, several runs
    #[arg(long, value_delimiter = ',', default_value = "1,8,50,200", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    callers: Vec<u32>,
    /// Rounds that hold the path against the store's own ceiling [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Seconds of each open loop, two per round [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: Option<u32>,
    /// The program that measures the ceiling; when it is not there, plain sockets do
    #[arg(long, default_value = "redis-benchmark", value_name = "PROGRAM")]
    benchmark: String,
    /// A few seconds: 2000 calls, one round, open loops of one second
    #[arg(long)]
    quick: bool,
}

/// Runs the sweep and the rounds; gives the report.
pub(super) async fn run(options: Options) -> Result<Report, Failure> {
    let usual = if options.quick { (2000, 1, 1) } else { (50_000, 5, 3) };
    let calls = options.calls.unwrap_or(usual.0);
    let (count, seconds) = (options.rounds.unwrap_or(usual.1), options.seconds.unwrap_or(usual.2));
    let server = Private::open_server(&options.target)?;
    let store = server.store()?;
    let ceiling = Ceiling::new(&options.benchmark, &server.url).await;
    let told = json!({
        "calls": calls, "callers": options.callers, "rounds": count, "seconds": seconds, "benchmark": ceiling.word(),
    });
    let mut report = Report::new("latency", told);
    report.tell_store(&store).await;
    let sizes = sweep::sizes();
    let steps = options.callers.len() * sizes.len() + count as usize;
    let progress = Progress::start("latency", steps as u64);
    let mut rows = Vec::new();
    for callers in &options.callers {
        for size in &sizes {
            if stop().is_cancelled() {
                break;
            }
            progress.say(&format!("{callers} callers, {} input", size.word));
            rows.extend(sweep::row(&store, size, *callers, calls).await?);
            progress.step();
        }
    }
    let lot = rounds::Lot { calls, seconds: seconds.into() };
    let rounds = all_rounds(&store, &ceiling, lot, count, &progress).await?;
    rounds::tell(&mut report, &rounds, ceiling.word());
    sweep::tell(&mut report, &rows);
    report.data = json!({
        "rows": rows.iter().map(sweep::Row::json).collect::<Vec<Value>>(),
        "rounds": rounds.iter().map(Round::json).collect::<Vec<Value>>(),
    });
    Ok(report)
}

async fn all_rounds(
    store: &Store,
    ceiling: &Ceiling,
    lot: rounds::Lot,
    count: u32,
    progress: &Progress,
) -> Result<Vec<Round>, Failure> {
    let mut rounds = Vec::new();
    for n in 1..=count {
        progress.say(&format!("round {n} of {count}: the store's ceiling, the path, open loops"));
        // A round that ctrl-c cut off says nothing.
        rounds.extend(Round::run(store, ceiling, lot).await?);
        progress.step();
    }
    Ok(rounds)
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
