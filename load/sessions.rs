//! `load sessions`: many live streams through each path in turn, in an open loop, and what each path adds.
//!
//! Rounds are short and interleaved: direct, embedded, redis, and again, so that a noisy minute hits all of them. Each
//! chunk is timed from when it was due. CPU is each process's own, from the kernel.

mod growth;
mod path;
pub(super) mod round;
mod told;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use voxgate::quota::script;

use super::progress::stop;
use super::report::Report;
use super::worker::Worker;
use super::{Failure, Target, admit, process};
use growth::Point;
use path::{Path, Proxy};
use round::{Round, Scale};

/// What `load sessions` can be told.
#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    target: Target,
    /// What to measure [default: all of it]
    #[arg(long, value_delimiter = ',', value_enum)]
    scenarios: Vec<Scenario>,
    /// Ways to the worker
    #[arg(long, value_delimiter = ',', value_enum, default_value = "direct,embedded,redis")]
    paths: Vec<Path>,
    /// Rounds of each scenario on each path
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each round that count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Most streams of `idle` and `sweep`
    #[arg(long, default_value_t = 9_900, value_parser = clap::value_parser!(u32).range(1..=25_000))]
    streams_max: u32,
    /// A tenth of the streams, one short round: whether it works, not how fast
    #[arg(long)]
    quick: bool,
    /// A gateway that runs already; a, b and c go through it
    #[arg(long, value_name = "WS_URL", requires = "key")]
    gateway: Option<String>,
    /// Its API key
    #[arg(long, env = "VOXGATE_KEY", value_name = "KEY", hide_env_values = true)]
    key: Option<String>,
    /// Its worker, a `load worker`: streams go there directly too
    #[arg(long, value_name = "WS_URL", requires = "gateway")]
    worker: Option<String>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum Scenario {
    /// 200 streams, 3200 B each 100 ms
    A,
    /// 1000 streams, 3200 B each 100 ms
    B,
    /// 200 streams, 640 B each 20 ms
    C,
    /// Memory of 5,000 and of the most streams
    Idle,
    /// 100 streams to the most, at one total rate
    Sweep,
}

impl Scenario {
    /// Its schedule; nothing for the scenarios that are about numbers of streams.
    fn scale(self, quick: bool) -> Option<(&'static str, Scale)> {
        let part = if quick { 10 } else { 1 };
        let scale = |streams: usize, bytes, period_ms| Scale { streams: streams / part, bytes, period_ms };
        match self {
            Self::A => Some(("a", scale(200, 3200, 100))),
            Self::B => Some(("b", scale(1000, 3200, 100))),
            Self::C => Some(("c", scale(200, 640, 20))),
            Self::Idle | Self::Sweep => None,
        }
    }
}

/// All that was measured.
#[derive(Default)]
struct Found {
    /// By scenario and path, round by round.
    rounds: BTreeMap<(&'static str, Path), Vec<Round>>,
    points: Vec<Point>,
    /// One admission alone on a quiet store, in microseconds.
    evalsha_us: Option<f64>,
}

/// Runs the scenarios and gives the report; what was started is stopped, interrupted or not.
pub(super) async fn run(options: Options) -> Result<Report, Failure> {
    tokio::select! {
        done = measure(options) => done,
        () = process::interrupted() => Err(Failure::Interrupted),
    }
}

async fn measure(options: Options) -> Result<Report, Failure> {
    let scenarios = options.chosen();
    process::room_for(options.most(&scenarios))?;
    let worker = match (&options.worker, &options.gateway) {
        (Some(url), _) => Worker::given(authority(url)),
        (None, _) => Worker::start().await?,
    };
    let mut found = Found::default();
    live(&options, &scenarios, &worker, &mut found).await?;
    if options.gateway.is_none() {
        growth(&options, &scenarios, &worker, &mut found).await?;
    }
    Ok(told::report(&options, &found))
}

impl Options {
    fn chosen(&self) -> Vec<Scenario> {
        let mut scenarios = match self.scenarios.as_slice() {
            [] if self.quick => vec![Scenario::A, Scenario::Idle],
            [] => vec![Scenario::A, Scenario::B, Scenario::C, Scenario::Idle, Scenario::Sweep],
            chosen => chosen.to_vec(),
        };
        scenarios.sort();
        scenarios.dedup();
        scenarios
    }

    /// Numbers of streams that `idle` and `sweep` go through.
    fn numbers(&self, scenarios: &[Scenario]) -> Vec<usize> {
        let most = if self.quick { 100 } else { self.streams_max as usize };
        let mut numbers = Vec::new();
        if scenarios.contains(&Scenario::Sweep) {
            numbers.extend([100, 300, 1_000, 3_000, most]);
        }
        if scenarios.contains(&Scenario::Idle) {
            numbers.extend([5_000, most]);
        }
        numbers.retain(|number| *number <= most);
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn most(&self, scenarios: &[Scenario]) -> usize {
        let live = scenarios.iter().filter_map(|scenario| scenario.scale(self.quick));
        let live = live.map(|(_, scale)| scale.streams).max().unwrap_or(0);
        self.numbers(scenarios).into_iter().max().unwrap_or(0).max(live)
    }

    /// Length of the part of a round that is thrown away, and of the one that counts.
    fn times(&self) -> (Duration, Duration) {
        if self.quick {
            return (Duration::from_millis(300), Duration::from_secs(1));
        }
        (Duration::from_secs(1), Duration::from_secs(self.seconds.into()))
    }
}

/// The scenarios with a schedule: all paths are up all the time, the rounds take turns.
async fn live(
    options: &Options,
    scenarios: &[Scenario],
    worker: &Worker,
    found: &mut Found,
) -> Result<(), Failure> {
    let scales: Vec<_> = scenarios.iter().filter_map(|scenario| scenario.scale(options.quick)).collect();
    if scales.is_empty() {
        return Ok(());
    }
    let proxies = proxies(options, worker).await?;
    for proxy in &proxies {
        if let Some(store) = proxy.store() {
            found.evalsha_us = Some(evalsha(&store.store()?).await?);
        }
    }
    let (warm, time) = options.times();
    for (name, scale) in scales {
        for turn in 1..=if options.quick { 1 } else { options.rounds } {
            for proxy in &proxies {
                if stop().is_cancelled() {
                    break;
                }
                let round = round::round(proxy, worker, scale, warm, time).await?;
                eprintln!(
                    "sessions: {name}, {} streams, {}, round {turn}: p50 {:.0} us, p99 {:.0} us, {} chunks, {} faults",
                    scale.streams,
                    proxy.path.word(),
                    round.p50,
                    round.p99,
                    round.chunks,
                    round.faults(),
                );
                found.rounds.entry((name, proxy.path)).or_default().push(round);
            }
        }
    }
    for proxy in proxies {
        proxy.stop().await?;
    }
    Ok(())
}

async fn proxies(options: &Options, worker: &Worker) -> Result<Vec<Proxy>, Failure> {
    let mut proxies = Vec::new();
    if let Some(gateway) = &options.gateway {
        if options.worker.is_some() {
            proxies.push(Proxy::given(Path::Direct, &worker.address, None));
        }
        proxies.push(Proxy::given(Path::Given, authority(gateway), options.key.clone()));
        return Ok(proxies);
    }
    for path in &options.paths {
        proxies.push(Proxy::start(*path, worker, &options.target).await?);
    }
    Ok(proxies)
}

/// The scenarios about numbers of streams: a fresh proxy for each, so that no memory is left of the last one.
async fn growth(
    options: &Options,
    scenarios: &[Scenario],
    worker: &Worker,
    found: &mut Found,
) -> Result<(), Failure> {
    let time = Duration::from_secs(if options.quick { 1 } else { 5 });
    for streams in options.numbers(scenarios) {
        for path in options.paths.iter().filter(|path| **path != Path::Direct) {
            if stop().is_cancelled() {
                return Ok(());
            }
            let point = growth::point(*path, streams, worker, &options.target, time).await?;
            eprintln!(
                "sessions: {streams} streams, {}: idle {:.1} KiB, after traffic {:.1} KiB each, {:.0} us a chunk, {} faults",
                path.word(),
                point.idle_kib,
                point.after_kib,
                point.round.cpu.get("gateway").copied().unwrap_or_default(),
                point.round.faults(),
            );
            found.points.push(point);
        }
    }
    Ok(())
}

/// Median of one call of `lua/admit.lua` at a time, in microseconds.
async fn evalsha(store: &voxgate::quota::store::Store) -> Result<f64, Failure> {
    let key = "load:{sessions}:quota";
    store.command(&["SET", key, "1000000000", "PX", "600000"]).await?;
    let mut took = Vec::new();
    for _ in 0..EVALSHAS {
        let sent = Instant::now();
        admit(store, &script::ADMIT, key, "100").await?;
        took.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    store.command(&["DEL", key]).await?;
    Ok(round::median(took))
}

/// Host and port of a WebSocket URL.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

const EVALSHAS: u32 = 2_000;
