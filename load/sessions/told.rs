//! The report of `load sessions`: medians over rounds, added latency against the direct path of the same round.

use serde_json::json;

use super::super::environment;
use super::super::report::{Axis, Chart, Figure, Report, Series, Table};
use super::growth::Point;
use super::path::Path;
use super::round::{Round, median, quantile, sorted};
use super::{Found, Options};

/// Puts what was found into figures, charts and tables.
pub(super) fn report(options: &Options, found: &Found) -> Report {
    Report {
        run: "sessions".into(),
        environment: environment(),
        options: json!({
            "rounds": options.rounds, "seconds": options.seconds, "streams_max": options.streams_max,
            "quick": options.quick, "gateway": options.gateway,
        }),
        headline: headline(found),
        charts: charts(found),
        tables: tables(found),
        notes: NOTES.iter().map(|note| (*note).to_owned()).collect(),
        data: json!({
            "rounds": found.rounds.iter().map(|((scenario, path), rounds)| json!({
                "scenario": scenario, "path": path, "rounds": rounds,
            })).collect::<Vec<_>>(),
            "points": found.points, "evalsha_us": found.evalsha_us, "faults": faults(found),
        }),
    }
}

const NOTES: &[&str] = &[
    "A chunk is one binary message to the worker and one small JSON answer back, timed from the moment it was due: \
     the schedule never waits for an answer.",
    "Added: the path's percentile less the direct path's in the same round, then the median over all rounds.",
    "CPU is each process's own, from the kernel, between the ends of the part of a round that counts. Client and \
     worker share the machine with what is measured.",
    "Faults: answers lost, doubled or to nothing that was sent, and streams that ended unasked.",
    "Memory of the gateway process alone (RSS), less what it had without a stream, divided by the streams; idle \
     means that both sides are connected and one chunk was carried.",
    "A round opens its streams anew, so refills of envelopes that come after more than a few seconds are not in it.",
];

/// Answers lost, doubled or unmatched in everything that ran, and streams that ended unasked.
fn faults(found: &Found) -> u64 {
    let live: u64 = found.rounds.values().flatten().map(Round::faults).sum();
    live + found.points.iter().map(|point| point.round.faults()).sum::<u64>()
}

/// Median over rounds of what a path adds to the direct one; nothing without a direct path.
fn added(found: &Found, scenario: &'static str, path: Path, value: fn(&Round) -> f64) -> Option<f64> {
    let direct = found.rounds.get(&(scenario, Path::Direct))?;
    let through = found.rounds.get(&(scenario, path))?;
    Some(median(through.iter().zip(direct).map(|(through, direct)| value(through) - value(direct)).collect()))
}

fn cpu(rounds: &[Round], process: &str) -> Option<f64> {
    let each: Vec<f64> = rounds.iter().filter_map(|round| round.cpu.get(process).copied()).collect();
    (!each.is_empty()).then(|| median(each))
}

fn figure(name: &str, value: f64, unit: &str, good: Option<bool>) -> Figure {
    Figure { name: name.into(), value, unit: unit.into(), good }
}

fn headline(found: &Found) -> Vec<Figure> {
    let faults = faults(found);
    let mut all =
        vec![figure("lost, doubled or unmatched answers", faults as f64, "answers", Some(faults == 0))];
    for (scenario, path) in found.rounds.keys().filter(|(_, path)| *path != Path::Direct) {
        if let Some(us) = added(found, scenario, *path, |round| round.p50) {
            // Only b with Redis has a bound of its own; the others are held against another proxy's figure.
            let good = (*scenario == "b" && *path == Path::Redis).then_some(us <= ADDED_US_MAX);
            all.push(figure(&format!("p50 added, {scenario}, {}", path.word()), us, "us", good));
        }
        let rounds = found.rounds.get(&(*scenario, *path)).map_or(&[][..], Vec::as_slice);
        if let Some(us) = cpu(rounds, "gateway") {
            all.push(figure(&format!("gateway CPU per chunk, {scenario}, {}", path.word()), us, "us", None));
        }
    }
    for path in [Path::Embedded, Path::Redis] {
        let mut points = found.points.iter().filter(|point| point.path == path);
        let Some(most) = points.clone().max_by_key(|point| point.streams) else { continue };
        let name = |what: &str| format!("{what}, {} streams, {}", most.streams, path.word());
        let kib = |value: f64, most: f64| (value, "KiB", Some(value <= most));
        let (value, unit, good) = kib(most.idle_kib, IDLE_KIB_MAX);
        all.push(figure(&name("memory per idle stream"), value, unit, good));
        let (value, unit, good) = kib(most.after_kib, AFTER_KIB_MAX);
        all.push(figure(&name("memory per stream after traffic"), value, unit, good));
        let none = most.none_kib as f64 / 1024.0;
        all.push(figure(
            &format!("memory without a stream, {}", path.word()),
            none,
            "MiB",
            Some(none <= NONE_MIB_MAX),
        ));
        if let Some(thousand) = points.find(|point| point.streams == 1_000)
            && most.streams > 1_000
        {
            let growth = most.idle_kib / thousand.idle_kib;
            all.push(figure(
                &name("memory per idle stream against 1000"),
                growth,
                "x",
                Some(growth <= GROWTH_MAX),
            ));
            let gateway = |point: &Point| point.round.cpu.get("gateway").copied().unwrap_or_default();
            all.push(figure(
                &name("CPU per chunk against 1000"),
                gateway(most) / gateway(thousand),
                "x",
                None,
            ));
        }
    }
    all
}

/// The bounds of the project's goals, for the green and the red: rows 7, 11 and 12.
const ADDED_US_MAX: f64 = 500.0;
const IDLE_KIB_MAX: f64 = 20.0;
const AFTER_KIB_MAX: f64 = 28.0;
const NONE_MIB_MAX: f64 = 24.0;
const GROWTH_MAX: f64 = 1.1;

fn charts(found: &Found) -> Vec<Chart> {
    let mut charts = Vec::new();
    let mut scenarios: Vec<&'static str> = found.rounds.keys().map(|(scenario, _)| *scenario).collect();
    scenarios.dedup();
    for scenario in &scenarios {
        let all = found.rounds.iter().filter(|((of, _), _)| of == scenario);
        let series = all.map(|((_, path), rounds)| Series {
            name: path.word().into(),
            points: percentiles(rounds.iter().flat_map(|round| round.took.iter().copied()).collect()),
        });
        charts.push(Chart {
            title: format!("Chunk latency, scenario {scenario}"),
            note: "All rounds together. 10 is the 90th percentile, 100 the 99th, 1000 the 99.9th.".into(),
            x: Axis { label: "one chunk in so many is slower".into(), log: true },
            y: Axis { label: "us from when it was due".into(), log: true },
            series: series.collect(),
            spans: Vec::new(),
        });
    }
    if !scenarios.is_empty() {
        charts.push(costs(found, &scenarios));
    }
    if !found.points.is_empty() {
        charts.push(by_number(
            found,
            "Memory per stream",
            "KiB",
            &[("idle", |point| point.idle_kib), ("after traffic", |point| point.after_kib)],
        ));
        charts.push(by_number(
            found,
            "Gateway CPU per chunk, at one total rate",
            "us",
            &[("", |point| point.round.cpu.get("gateway").copied().unwrap_or_default())],
        ));
    }
    charts
}

/// One point for each step from one chunk in one to one in 10,000.
fn percentiles(took: Vec<f64>) -> Vec<(f64, f64)> {
    let took = sorted(took);
    let steps = (0..=40).map(|step| 10f64.powf(f64::from(step) / 10.0));
    let within = steps.take_while(|one_in| *one_in <= took.len() as f64);
    within.map(|one_in| (one_in, quantile(&took, 1.0 - 1.0 / one_in))).filter(|(_, us)| *us > 0.0).collect()
}

fn costs(found: &Found, scenarios: &[&'static str]) -> Chart {
    let mut paths: Vec<Path> = found.rounds.keys().map(|(_, path)| *path).collect();
    paths.sort();
    paths.dedup();
    let mut series = Vec::new();
    for path in paths {
        for process in PROCESSES {
            let points = scenarios.iter().enumerate().filter_map(|(at, scenario)| {
                Some(((at + 1) as f64, cpu(found.rounds.get(&(*scenario, path))?, process)?))
            });
            let points: Vec<_> = points.collect();
            if !points.is_empty() {
                series.push(Series { name: format!("{process}, {}", path.word()), points });
            }
        }
    }
    let names: Vec<String> =
        scenarios.iter().enumerate().map(|(at, name)| format!("{} = {name}", at + 1)).collect();
    Chart {
        title: "CPU per chunk".into(),
        note: "Each process for itself; client and worker do the same work on every path.".into(),
        x: Axis { label: format!("scenario: {}", names.join(", ")), log: false },
        y: Axis { label: "us of CPU per chunk".into(), log: false },
        series,
        spans: Vec::new(),
    }
}

/// Processes in the order of the tables.
const PROCESSES: [&str; 4] = ["gateway", "store", "client", "worker"];

type Value = fn(&Point) -> f64;

fn by_number(found: &Found, title: &str, unit: &str, values: &[(&str, Value)]) -> Chart {
    let mut series = Vec::new();
    for path in [Path::Embedded, Path::Redis] {
        for (what, value) in values {
            let points = found.points.iter().filter(|point| point.path == path);
            let points: Vec<_> = points.map(|point| (point.streams as f64, value(point))).collect();
            if !points.is_empty() {
                series.push(Series { name: format!("{} {what}", path.word()).trim().to_owned(), points });
            }
        }
    }
    Chart {
        title: title.into(),
        note: "A fresh gateway for each number of streams.".into(),
        x: Axis { label: "streams".into(), log: true },
        y: Axis { label: unit.into(), log: false },
        series,
        spans: Vec::new(),
    }
}

fn tables(found: &Found) -> Vec<Table> {
    let mut tables = Vec::new();
    if !found.rounds.is_empty() {
        tables.push(Table {
            title: "Rounds".into(),
            note: found.evalsha_us.map_or_else(String::new, |us| {
                format!(
                    "One admission alone on the quiet store: p50 {us:.0} us. Times and CPU in us, medians."
                )
            }),
            head: words(&[
                "scenario",
                "path",
                "p50",
                "p99",
                "p99.9",
                "+p50",
                "+p99",
                "+p99.9",
                "gateway CPU",
                "store CPU",
                "client CPU",
                "worker CPU",
                "chunks",
                "faults",
            ]),
            rows: found
                .rounds
                .iter()
                .map(|((scenario, path), rounds)| row(found, scenario, *path, rounds))
                .collect(),
        });
    }
    if !found.points.is_empty() {
        tables.push(Table {
            title: "Streams".into(),
            note: "KiB per stream, CPU in us; all streams together send 2,000 chunks a second.".into(),
            head: words(&[
                "streams",
                "path",
                "none, KiB",
                "opened",
                "idle",
                "after traffic",
                "gateway CPU per open",
                "opened in s",
                "gateway CPU per chunk",
                "p50",
                "p99",
                "faults",
            ]),
            rows: found.points.iter().map(point).collect(),
        });
    }
    tables
}

fn row(found: &Found, scenario: &'static str, path: Path, rounds: &[Round]) -> Vec<String> {
    let values: [fn(&Round) -> f64; 3] = [|round| round.p50, |round| round.p99, |round| round.p999];
    let whole = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.0}"));
    let mut row = vec![scenario.to_owned(), path.word().to_owned()];
    row.extend(values.iter().map(|value| whole(Some(median(rounds.iter().map(value).collect())))));
    row.extend(values.iter().map(|value| whole(added(found, scenario, path, *value))));
    row.extend(
        PROCESSES
            .iter()
            .map(|process| cpu(rounds, process).map_or_else(|| "–".to_owned(), |us| format!("{us:.1}"))),
    );
    row.push(rounds.iter().map(|round| round.chunks).sum::<usize>().to_string());
    row.push(rounds.iter().map(Round::faults).sum::<u64>().to_string());
    row
}

fn point(point: &Point) -> Vec<String> {
    let gateway = point.round.cpu.get("gateway").copied().unwrap_or_default();
    vec![
        point.streams.to_string(),
        point.path.word().to_owned(),
        point.none_kib.to_string(),
        point.opened_kib.map_or_else(|| "–".to_owned(), |kib| format!("{kib:.1}")),
        format!("{:.1}", point.idle_kib),
        format!("{:.1}", point.after_kib),
        format!("{:.0}", point.open_cpu_us),
        format!("{:.2}", point.open_seconds),
        format!("{gateway:.1}"),
        format!("{:.0}", point.round.p50),
        format!("{:.0}", point.round.p99),
        point.round.faults().to_string(),
    ]
}

pub(in super::super) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
