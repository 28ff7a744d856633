//! The path held against the store's own ceiling. A round measures everything once; what is told are the medians of
//! the rounds' ratios, so that a slow minute of the machine harms both sides alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use voxgate::quota::script;
use voxgate::quota::store::{Reply, Script, Store};
use voxgate::units::Units;

use super::super::ceiling::{CONNECTIONS, Call, Ceiling};
use super::super::pace::{self, Outcome, Pace};
use super::super::progress::stop;
use super::super::report::{Axis, Chart, Figure, Report, Series, Table, number};
use super::super::server::Spent;
use super::super::{Failure, admit};
use super::{histogram, record, sweep};

/// How much each measurement of a round does.
#[derive(Clone, Copy)]
pub(super) struct Lot {
    pub calls: u32,
    pub seconds: f64,
}

/// What the benchmark reached, and what the server spent on it.
struct Bench {
    rate: f64,
    spent: Spent,
}

/// What our path did, and what the server spent on it.
struct Path {
    outcome: Outcome,
    spent: Spent,
}

/// All that one round measured.
pub(super) struct Round {
    /// The benchmark runs our script unpipelined, and 16 calls at a time.
    single: Bench,
    batched: Bench,
    /// The benchmark runs GET, compare, DECRBY and nothing else.
    plain: Bench,
    plain_batched: Bench,
    /// Our path: 50 callers in a closed loop.
    path: Path,
    /// Our path at [`CHUNKS`] a second, one by one, and ten due at the same moment.
    chunks: Path,
    tens: Path,
    /// Our path at half of its best rate.
    half: Path,
    /// The server's time inside the script, at the smallest input and at the largest.
    smallest: Spent,
    largest: Spent,
}

/// Chunks a second of performance goal 8.
const CHUNKS: f64 = 10_000.0;
const KEY: &str = "load:{aaaaaaaaaaaaaaaa}:quota:0123456789abcdef.ssssssssssssssss:7";
const COST: &str = "100";
/// What `admit` is held against: the same three steps without any check.
const PLAIN: &str = "local left = redis.call('GET', KEYS[1])\n\
                     if tonumber(left) < tonumber(ARGV[1]) then return -1 end\n\
                     return redis.call('DECRBY', KEYS[1], ARGV[1])";

impl Round {
    /// Measures everything once; none when the run was stopped meanwhile.
    pub(super) async fn run(store: &Store, ceiling: &Ceiling, lot: Lot) -> Result<Option<Self>, Failure> {
        if stop().is_cancelled() {
            return Ok(None);
        }
        let plain = Script::new("plain", PLAIN.to_owned());
        for script in [&plain, &*script::ADMIT] {
            store.command(&["SCRIPT", "LOAD", &script.text]).await?;
        }
        store.command(&["SET", KEY, &Units::MAX.to_string(), "PX", "3600000"]).await?;
        let ours = Call { sha: &script::ADMIT.sha, key: KEY, cost: COST };
        let plain = Call { sha: &plain.sha, ..ours };
        let (bench, path) = (bench(store, ceiling), path(store));
        let many = lot.calls.saturating_mul(4);
        let single = bench(ours, lot.calls, 1).await?;
        let closed = path(Arrival::Closed(lot.calls)).await?;
        let batched = bench(ours, many, 16).await?;
        let plain_single = bench(plain, lot.calls, 1).await?;
        let plain_batched = bench(plain, many, 16).await?;
        let even = Pace { rate: CHUNKS, seconds: lot.seconds, together: 1 };
        let chunks = path(Arrival::Open(even)).await?;
        let tens = path(Arrival::Open(Pace { together: 10, ..even })).await?;
        let half = path(Arrival::Open(Pace { rate: closed.outcome.per_second / 2.0, ..even })).await?;
        let [smallest, .., largest] = sweep::sizes();
        let smallest = sweep::row(store, &smallest, CONNECTIONS, lot.calls).await?;
        let largest = sweep::row(store, &largest, CONNECTIONS, lot.calls).await?;
        store.command(&["DEL", KEY]).await?;
        let (Some(smallest), Some(largest)) = (smallest, largest) else { return Ok(None) };
        let (smallest, largest) = (smallest.spent, largest.spent);
        let (path, plain) = (closed, plain_single);
        Ok(Some(Self { single, batched, plain, plain_batched, path, chunks, tens, half, smallest, largest }))
    }

    /// Goal 8: the server's CPU per admission at 10,000 a second, against the benchmark's unpipelined one.
    fn cpu_ratio(&self) -> f64 {
        self.chunks.spent.cpu_us_per_call() / self.single.spent.cpu_us_per_call()
    }

    /// Goal 9: the path's rate against the benchmark's pipelined one.
    fn rate_ratio(&self) -> f64 {
        self.path.outcome.per_second / self.batched.rate
    }

    /// Goal 10: the script against the three lines, both pipelined, where least disturbs the server's clock; and its largest input against its smallest.
    fn script_ratio(&self) -> f64 {
        self.batched.spent.usec_per_call() / self.plain_batched.spent.usec_per_call()
    }

    fn size_ratio(&self) -> f64 {
        self.largest.usec_per_call() / self.smallest.usec_per_call()
    }

    pub(super) fn json(&self) -> Value {
        let bench = |bench: &Bench| {
            json!({
                "per_second": bench.rate, "script_us": bench.spent.usec_per_call(),
                "server_cpu_us": bench.spent.cpu_us_per_call(),
            })
        };
        let path = |path: &Path| {
            let mut value = path.outcome.json();
            if let Value::Object(fields) = &mut value {
                fields.insert("script_us".into(), path.spent.usec_per_call().into());
                fields.insert("server_cpu_us".into(), path.spent.cpu_us_per_call().into());
            }
            value
        };
        json!({
            "benchmark_unpipelined": bench(&self.single), "benchmark_pipeline_16": bench(&self.batched),
            "plain_unpipelined": bench(&self.plain), "plain_pipeline_16": bench(&self.plain_batched),
            "path": path(&self.path), "at_10000": path(&self.chunks), "at_10000_ten_at_once": path(&self.tens),
            "at_half": path(&self.half), "smallest_script_us": self.smallest.usec_per_call(),
            "largest_script_us": self.largest.usec_per_call(),
        })
    }
}

/// How calls come to our path.
enum Arrival {
    /// So many, from 50 callers that each wait for the one before.
    Closed(u32),
    Open(Pace),
}

/// Runs benchmarks and tells what the server spent on each.
fn bench(store: &Store, ceiling: &Ceiling) -> impl AsyncFn(Call<'_>, u32, u32) -> Result<Bench, Failure> {
    async move |call, calls, pipeline| {
        let before = Spent::so_far(store).await?;
        let rate = ceiling.rate(call, calls, pipeline).await?;
        Ok(Bench { rate, spent: Spent::so_far(store).await?.since(before) })
    }
}

/// Runs our path and tells what the server spent on it.
fn path(store: &Store) -> impl AsyncFn(Arrival) -> Result<Path, Failure> {
    async move |arrival| {
        let before = Spent::so_far(store).await?;
        let outcome = match arrival {
            Arrival::Closed(calls) => closed(store, calls).await?,
            Arrival::Open(pace) => open(store, pace).await?,
        };
        Ok(Path { outcome, spent: Spent::so_far(store).await?.since(before) })
    }
}

/// 50 callers on one connection, one call on the way each.
async fn closed(store: &Store, calls: u32) -> Result<Outcome, Failure> {
    let (left, start) = (Arc::new(AtomicU32::new(calls)), Instant::now());
    let tasks = (0..CONNECTIONS).map(|_| {
        let (store, left) = (store.clone(), left.clone());
        tokio::spawn(async move {
            let mut times = histogram();
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            {
                let sent = Instant::now();
                take(&store).await?;
                record(&mut times, sent.elapsed());
            }
            Ok::<_, Failure>(times)
        })
    });
    let mut times = histogram();
    for task in tasks.collect::<Vec<_>>() {
        times += task.await??;
    }
    Ok(Outcome { per_second: times.len() as f64 / start.elapsed().as_secs_f64(), times, late: histogram() })
}

async fn open(store: &Store, pace: Pace) -> Result<Outcome, Failure> {
    pace::open(pace, || {
        let store = store.clone();
        async move { take(&store).await }
    })
    .await
}

async fn take(store: &Store) -> Result<(), Failure> {
    match admit(store, &script::ADMIT, KEY, COST).await? {
        true => Ok(()),
        false => Err(Failure::Odd(Reply::Nil)),
    }
}

/// The middle one; not a number when there is none.
pub(in super::super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Headline, charts, table and notes of the rounds.
pub(super) fn tell(report: &mut Report, rounds: &[Round], benchmark: &str) {
    report.notes.extend(NOTES.iter().map(|note| note.replace("BENCHMARK", benchmark)));
    if rounds.is_empty() {
        return;
    }
    report.headline = headline(rounds);
    report.charts.extend([rates(rounds, benchmark), quantiles(rounds)]);
    report.tables.push(table(rounds, benchmark));
}

const NOTES: [&str; 6] = [
    "Every call is lua/admit.lua on one key, granted, from send to decoded reply, on the kind of connection that the \
     gateway uses: one, shared by all callers.",
    "The store's ceiling is what BENCHMARK reaches in the same round from 50 connections, with 1 and with 16 calls on \
     the way on each, for the same script and for the bare three steps (GET, compare, DECRBY).",
    "Headline figures are medians of the rounds. Server and driver share the processors of this machine, so all of it is \
     less than a store of its own would do; the ratios are what counts.",
    "Server CPU is what INFO cpu counts, user and system, over the calls of that measurement. Time inside the script is \
     INFO commandstats' usec per EVALSHA.",
    "In the open loops each call is due at its own moment and timed from then, answered or not the one before. A thread \
     keeps the time; by how much calls begin late is in the data as late_p50_ms and late_p99_ms, and is part of the times.",
    "At 10,000 a second calls are due 0.1 ms apart and go out one by one, so each wakes an idle server: the worst case. \
     Ten at once each millisecond shows what it comes to when they wait for one another.",
];

fn headline(rounds: &[Round]) -> Vec<Figure> {
    let of = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
    let below = |name: &str, value: f64, must: f64, aim: f64| Figure {
        name: name.into(),
        value,
        unit: format!("must be ≤ {must}, aim {aim}"),
        good: Some(value <= must),
    };
    let rate = of(Round::rate_ratio);
    vec![
        below(
            "server CPU per admission at 10,000 a second / benchmark unpipelined",
            of(Round::cpu_ratio),
            1.0,
            0.5,
        ),
        Figure {
            name: "the same, when ten are due at once each millisecond".into(),
            value: of(|round| round.tens.spent.cpu_us_per_call() / round.single.spent.cpu_us_per_call()),
            unit: "if waiting admissions go together".into(),
            good: None,
        },
        Figure {
            name: "rate of the path, 50 callers / benchmark at pipeline 16".into(),
            value: rate,
            unit: "must be ≥ 0.5, aim 0.8".into(),
            good: Some(rate >= 0.5),
        },
        below("time inside admit / the bare three steps", of(Round::script_ratio), 1.2, 1.05),
        below("time inside admit, largest input / smallest", of(Round::size_ratio), 1.5, 1.3),
        Figure {
            name: "admissions, 50 callers".into(),
            value: of(|round| round.path.outcome.per_second),
            unit: "a second, at best".into(),
            good: None,
        },
        Figure {
            name: "p99 at half of that rate, open loop".into(),
            value: of(|round| round.half.outcome.ms(0.99)),
            unit: "ms, from when a call was due".into(),
            good: None,
        },
    ]
}

fn rates(rounds: &[Round], benchmark: &str) -> Chart {
    let series = |name: String, value: fn(&Round) -> f64| Series {
        name,
        points: rounds.iter().enumerate().map(|(n, round)| (n as f64 + 1.0, value(round))).collect(),
    };
    Chart {
        title: "The path and the store's ceiling, round by round".into(),
        note: format!("Ceilings by {benchmark}, 50 connections."),
        x: Axis { label: "round".into(), log: false },
        y: Axis { label: "admits a second".into(), log: false },
        series: vec![
            series("the path, 50 callers".into(), |round| round.path.outcome.per_second),
            series("ceiling, unpipelined".into(), |round| round.single.rate),
            series("ceiling, pipeline 16".into(), |round| round.batched.rate),
            series("three steps, pipeline 16".into(), |round| round.plain_batched.rate),
        ],
        spans: Vec::new(),
    }
}

/// How many in a thousand are slower: the tail, which a mean hides.
fn quantiles(rounds: &[Round]) -> Chart {
    let series = |name: &str, path: fn(&Round) -> &Path| Series {
        name: name.into(),
        points: pace::ONE_IN
            .iter()
            .map(|n| (*n, median(rounds.iter().map(|round| path(round).outcome.ms(1.0 - 1.0 / n)))))
            .collect(),
    };
    Chart {
        title: "How slow the slowest are".into(),
        note: "At 100: one call in a hundred takes longer than this.".into(),
        x: Axis { label: "one call in so many".into(), log: true },
        y: Axis { label: "takes longer than, ms".into(), log: true },
        series: vec![
            series("closed loop, 50 callers", |round| &round.path),
            series("open loop, half of that rate", |round| &round.half),
            series("open loop, 10,000 a second", |round| &round.chunks),
        ],
        spans: Vec::new(),
    }
}

fn table(rounds: &[Round], benchmark: &str) -> Table {
    let of = |value: &dyn Fn(&Round) -> f64| number(median(rounds.iter().map(value)));
    let path = |name: &str, path: fn(&Round) -> &Path| {
        vec![
            name.to_owned(),
            of(&|round| path(round).outcome.per_second.round()),
            of(&|round| path(round).spent.usec_per_call()),
            of(&|round| path(round).spent.cpu_us_per_call()),
            of(&|round| path(round).outcome.ms(0.5)),
            of(&|round| path(round).outcome.ms(0.99)),
        ]
    };
    let bench = |name: &str, bench: fn(&Round) -> &Bench| {
        vec![
            name.to_owned(),
            of(&|round| bench(round).rate.round()),
            of(&|round| bench(round).spent.usec_per_call()),
            of(&|round| bench(round).spent.cpu_us_per_call()),
            "–".into(),
            "–".into(),
        ]
    };
    let rows = vec![
        path("the path, 50 callers, closed loop", |round| &round.path),
        path("the path, open loop, half of that", |round| &round.half),
        path("the path, open loop, 10,000 a second", |round| &round.chunks),
        path("the same, ten at once each ms", |round| &round.tens),
        bench("ceiling: admit, unpipelined", |r| &r.single),
        bench("ceiling: admit, pipeline 16", |r| &r.batched),
        bench("ceiling: three steps, unpipelined", |r| &r.plain),
        bench("ceiling: three steps, pipeline 16", |r| &r.plain_batched),
    ];
    let head = ["what", "calls/s", "script, µs", "server CPU, µs", "p50, ms", "p99, ms"];
    Table {
        title: "The path and the store's ceiling".into(),
        note: format!("Medians; rounds: {}. Ceilings by {benchmark}, 50 connections.", rounds.len()),
        head: head.map(str::to_owned).to_vec(),
        rows,
    }
}
