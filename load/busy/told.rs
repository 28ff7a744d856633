//! The report of `load busy`.

use serde_json::{Value, json};

use super::super::environment;
use super::super::report::{Axis, Chart, Figure, Report, Series, Span, Table};
use super::super::sessions::round::{median, quantile, sorted};
use super::felt::{BEFORE, Felt};
use super::lists::{Calls, Way};
use super::slow::{Kind, ms};
use super::{Books, Case, Options, Phase};

/// Puts what was found into figures, charts and tables.
pub(super) fn report(options: &Options, phases: &[Phase], books: Option<Books>) -> Report {
    let felt: Vec<Vec<Felt>> = phases
        .iter()
        .map(|phase| phase.cases.iter().map(|case| Felt::of(case, &phase.outcome, &phase.probes)).collect())
        .collect();
    Report {
        run: "busy".into(),
        environment: environment(),
        options: json!({
            "streams": options.streams, "recovery_streams": options.recovery_streams,
            "recoveries": options.recoveries, "lengths_ms": options.lengths, "sizes": options.sizes,
            "threshold_ms": options.threshold_ms, "quick": options.quick, "gateway": options.gateway,
        }),
        headline: headline(phases, &felt, books),
        charts: charts(phases, &felt),
        tables: tables(phases, &felt, books),
        notes: NOTES.iter().map(|note| (*note).to_owned()).collect(),
        data: json!({
            "phases": phases.iter().zip(&felt).map(|(phase, felt)| raw(phase, felt)).collect::<Vec<_>>(),
            "books": books, "unpaid": books.map(|books| books.unpaid()),
            "charged_twice": books.map(|books| books.twice()), "free": books.map(|books| books.free()),
            "faults": phases.iter().map(|phase| phase.outcome.faults()).sum::<u64>(),
        }),
    }
}

const NOTES: &[&str] = &[
    "Streams send 3200 B each 100 ms by a schedule that never waits; a chunk is timed from when it was due to its \
     answer. The unrelated key is read every 2 ms on a connection of its own.",
    "Unpaid: bytes that the worker got, in units, above those admitted. Charged twice: units in the ledger above \
     those that the worker got. Both after all streams have ended and settled.",
    "Recovery: from the script's end to the end of the first of three 20 ms windows in a row whose median is no more \
     than the slowest tenth, or one and a half times the median, of the second before.",
    "Before the threshold the store tells nobody anything; from then on it answers BUSY to all, which means that \
     nothing ran. One slow command inside a script never gives BUSY and can't be interrupted.",
    "Voxgate itself never kills a script; here a neighbour tries to, to show what the store says.",
];

fn raw(phase: &Phase, felt: &[Felt]) -> Value {
    let outcome = &phase.outcome;
    let cases = phase.cases.iter().zip(felt).map(|(case, felt)| {
        json!({
            "kind": case.kind.word(), "asked_ms": ms(case.asked), "lasted_ms": ms(case.hold.lasted),
            "answer": case.hold.answer, "kill": case.hold.kill.as_ref().map(|kill| &kill.answer),
            "kill_ms": case.hold.kill.as_ref().map(|kill| ms(kill.took)), "busy": case.busy,
            "held_bytes": case.held_bytes, "felt": felt,
        })
    });
    let calls = phase.calls.iter().map(|calls| {
        json!({"way": calls.way, "elements": calls.elements, "calls": calls.took.len(),
            "p50_ms": median(calls.took.clone()) * 1000.0})
    });
    json!({
        "streams": phase.streams, "chunks": outcome.samples.len(), "sent": outcome.sent, "lost": outcome.lost,
        "cut": outcome.cut, "doubled": outcome.doubled, "unmatched": outcome.unmatched, "closes": outcome.closes,
        "ended_badly": phase.ended_badly, "cases": cases.collect::<Vec<_>>(), "calls": calls.collect::<Vec<_>>(),
    })
}

fn headline(phases: &[Phase], felt: &[Vec<Felt>], books: Option<Books>) -> Vec<Figure> {
    let figure = |name: &str, value: f64, unit: &str, good| Figure {
        name: name.into(),
        value,
        unit: unit.into(),
        good: Some(good),
    };
    let mut all = Vec::new();
    if let Some(books) = books {
        let zero = |name, units: u64| figure(name, units as f64, "units", units == 0);
        all.push(zero("forwarded unpaid", books.unpaid()));
        all.push(zero("charged twice", books.twice()));
        all.push(zero("forwarded and not charged", books.free()));
    }
    let faults: u64 = phases.iter().map(|phase| phase.outcome.faults()).sum();
    all.push(figure("lost, doubled or unmatched answers", faults as f64, "answers", faults == 0));
    let closed: u64 = phases.iter().flat_map(|phase| phase.outcome.closes.values()).sum();
    all.push(figure("streams ended by it", closed as f64, "streams", closed == 0));
    if let (Some(phase), Some(felt)) = (phases.last(), felt.last()) {
        // A case that never was normal again counts as the time that was looked at.
        let times: Vec<f64> = felt.iter().map(|felt| felt.recovery_ms.unwrap_or(5_000.0)).collect();
        let name = format!("from the script's end to normal, {} streams", phase.streams);
        let recovery = median(times);
        all.push(figure(&name, recovery, "ms", recovery <= RECOVERY_MS_MAX));
    }
    all
}

/// The bound of the project's goals, row 14.
const RECOVERY_MS_MAX: f64 = 500.0;

fn charts(phases: &[Phase], felt: &[Vec<Felt>]) -> Vec<Chart> {
    let mut charts = Vec::new();
    if let (Some(phase), Some(case)) = (phases.last(), phases.last().and_then(|phase| phase.cases.first())) {
        charts.push(around(phase, case));
    }
    let Some((phase, felt)) = phases.iter().zip(felt).next() else { return charts };
    charts.push(whole(phase));
    type Of = fn(&Felt) -> f64;
    let by_length: [(&str, Of); 3] = [
        ("Unrelated key: slowest answer", |felt| felt.probe_worst_ms),
        ("Unrelated key: longest time without a good answer", |felt| felt.probe_without_ms),
        ("Live streams: slowest chunk", |felt| felt.worst_ms),
    ];
    charts.extend(by_length.map(|(title, value)| lengths(phase, felt, title, value)));
    if !phase.calls.is_empty() {
        charts.push(sizes(phase));
    }
    charts
}

/// Chunk latency around one script, closely.
fn around(phase: &Phase, case: &Case) -> Chart {
    let (from, to) = (case.from - BEFORE, case.to + 2.0);
    Chart {
        title: format!("One {} script under {} streams", case.kind.word(), phase.streams),
        note: "Chunks by when they were due: what is held waits for the script's end, then all is normal."
            .into(),
        x: Axis { label: "s from the script's begin".into(), log: false },
        y: Axis { label: "ms from when a chunk was due".into(), log: true },
        series: over_time(phase, (from, to), 0.02, case.from),
        spans: vec![Span { from: 0.0, to: case.to - case.from, label: "script".into() }],
    }
}

/// The whole sweep.
fn whole(phase: &Phase) -> Chart {
    let end = phase.outcome.samples.iter().map(|sample| sample.due).fold(0.0, f64::max);
    let span = |case: &Case| Span {
        from: case.from,
        to: case.to,
        label: match &case.hold.kill {
            Some(kill) => format!("{}: {}", case.kind.word(), kill.answer),
            None => format!("{} {:.0} ms", case.kind.word(), ms(case.hold.lasted)),
        },
    };
    Chart {
        title: format!("The whole sweep under {} streams", phase.streams),
        note: "Each shaded part is one slow script; behind them the growing list.".into(),
        x: Axis { label: "s".into(), log: false },
        y: Axis { label: "ms from when a chunk was due".into(), log: true },
        series: over_time(phase, (0.0, end), 0.1, 0.0),
        spans: phase.cases.iter().map(span).collect(),
    }
}

/// Median and slowest chunk, and the slowest GET, of each window.
fn over_time(phase: &Phase, (from, to): (f64, f64), window: f64, zero: f64) -> Vec<Series> {
    let count = (((to - from) / window).ceil().max(1.0)) as usize;
    let mut chunks = vec![Vec::new(); count];
    let mut gets = vec![0.0f64; count];
    let at = |time: f64| ((time - from) / window) as usize;
    for sample in phase.outcome.samples.iter().filter(|sample| sample.due >= from) {
        if let Some(chunks) = chunks.get_mut(at(sample.due)) {
            chunks.push(sample.took * 1000.0);
        }
    }
    for probe in phase.probes.iter().filter(|probe| probe.sent >= from) {
        if let Some(worst) = gets.get_mut(at(probe.sent)) {
            *worst = worst.max(probe.took * 1000.0);
        }
    }
    let time = |at: usize| from + (at as f64 + 0.5) * window - zero;
    let of = |quantile_of: f64| -> Vec<(f64, f64)> {
        let full = chunks.iter().enumerate().filter(|(_, chunks)| !chunks.is_empty());
        full.map(|(at, chunks)| (time(at), quantile(&sorted(chunks.clone()), quantile_of))).collect()
    };
    let gets = gets.iter().enumerate().filter(|(_, worst)| **worst > 0.0);
    vec![
        Series { name: "median chunk".into(), points: of(0.5) },
        Series { name: "slowest chunk".into(), points: of(1.0) },
        Series {
            name: "unrelated GET, slowest".into(),
            points: gets.map(|(at, ms)| (time(at), *ms)).collect(),
        },
    ]
}

fn lengths(phase: &Phase, felt: &[Felt], title: &str, value: fn(&Felt) -> f64) -> Chart {
    let series = [Kind::Reading, Kind::Writing, Kind::Command].map(|kind| {
        let of =
            phase.cases.iter().zip(felt).filter(|(case, _)| case.kind == kind && case.hold.kill.is_none());
        let points = of.map(|(case, felt)| (ms(case.hold.lasted), value(felt).max(0.01)));
        Series { name: kind.word().into(), points: points.collect() }
    });
    Chart {
        title: title.into(),
        note: String::new(),
        x: Axis { label: "ms that the script lasted".into(), log: true },
        y: Axis { label: "ms".into(), log: true },
        series: series.into(),
        spans: Vec::new(),
    }
}

/// What a call takes, and what an unrelated key and the streams feel meanwhile, by the length of the list.
fn sizes(phase: &Phase) -> Chart {
    let mut series = Vec::new();
    for way in [Way::Loop, Way::Bounded] {
        let of = |value: &dyn Fn(&Calls) -> f64| -> Vec<(f64, f64)> {
            let calls = phase.calls.iter().filter(|calls| calls.way == way);
            calls.map(|calls| (f64::from(calls.elements), value(calls).max(0.001))).collect()
        };
        let series_of = |what: &str, points| Series { name: format!("{}: {what}", way.word()), points };
        series.push(series_of("one call, median", of(&|calls| median(calls.took.clone()) * 1000.0)));
        series.push(series_of("unrelated GET, p99", of(&|calls| probed(phase, calls))));
        series.push(series_of("live chunk, p99", of(&|calls| chunked(phase, calls))));
    }
    Chart {
        title: "A loop over a growing list, and the one-key script".into(),
        note: "The loop holds everybody up by as much as the list is long; the one-key script does not know the list."
            .into(),
        x: Axis { label: "elements of the list".into(), log: true },
        y: Axis { label: "ms".into(), log: true },
        series,
        spans: Vec::new(),
    }
}

fn probed(phase: &Phase, calls: &Calls) -> f64 {
    let within = phase.probes.iter().filter(|probe| probe.sent >= calls.from && probe.sent < calls.to);
    quantile(&sorted(within.map(|probe| probe.took * 1000.0).collect()), 0.99)
}

fn chunked(phase: &Phase, calls: &Calls) -> f64 {
    let within =
        phase.outcome.samples.iter().filter(|sample| sample.due >= calls.from && sample.due < calls.to);
    quantile(&sorted(within.map(|sample| sample.took * 1000.0).collect()), 0.99)
}

fn tables(phases: &[Phase], felt: &[Vec<Felt>], books: Option<Books>) -> Vec<Table> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let mut tables = Vec::new();
    let rows = phases.iter().zip(felt).flat_map(|(phase, felt)| {
        phase.cases.iter().zip(felt).map(|(case, felt)| row(phase.streams, case, felt))
    });
    tables.push(Table {
        title: "Slow scripts".into(),
        note: "ms. Held: chunks that were due while it ran and answered after its end.".into(),
        head: words(&[
            "streams",
            "script",
            "lasted",
            "its caller got",
            "SCRIPT KILL",
            "answered in",
            "BUSY to gateway",
            "BUSY to GET",
            "GET slowest",
            "key without answer",
            "p50 before",
            "chunk slowest",
            "held",
            "bytes held",
            "normal after",
        ]),
        rows: rows.collect(),
    });
    let calls: Vec<_> =
        phases.iter().flat_map(|phase| phase.calls.iter().map(move |calls| (phase, calls))).collect();
    if !calls.is_empty() {
        tables.push(Table {
            title: "Growing list".into(),
            note: "ms".into(),
            head: words(&["elements", "script", "calls", "call p50", "unrelated GET p99", "live chunk p99"]),
            rows: calls.into_iter().map(|(phase, calls)| list_row(phase, calls)).collect(),
        });
    }
    if let Some(books) = books {
        let row = |name: &str, units: u64| vec![name.to_owned(), units.to_string()];
        tables.push(Table {
            title: "Books after the end".into(),
            note: "Units; one is 1 ms of audio.".into(),
            head: words(&["what", "units"]),
            rows: vec![
                row("forwarded to the worker", books.forwarded),
                row("admitted", books.admitted),
                row("charged in the ledger", books.settled),
                row("waste", books.wasted),
                row("still held", books.held),
                row("calls in doubt (calls)", books.doubts),
                row("BUSY answers (calls)", books.busy),
            ],
        });
    }
    tables
}

fn row(streams: usize, case: &Case, felt: &Felt) -> Vec<String> {
    let kill = case.hold.kill.as_ref();
    vec![
        streams.to_string(),
        case.kind.word().into(),
        format!("{:.0}", ms(case.hold.lasted)),
        case.hold.answer.clone(),
        kill.map_or_else(|| "–".into(), |kill| kill.answer.clone()),
        kill.map_or_else(|| "–".into(), |kill| format!("{:.0}", ms(kill.took))),
        format!("{:.0}", case.busy),
        felt.probe_busy.to_string(),
        format!("{:.1}", felt.probe_worst_ms),
        format!("{:.0}", felt.probe_without_ms),
        format!("{:.2}", felt.p50_before_ms),
        format!("{:.0}", felt.worst_ms),
        felt.held.to_string(),
        format!("{:.0}", case.held_bytes),
        felt.recovery_ms.map_or_else(|| "never".into(), |ms| format!("{ms:.0}")),
    ]
}

fn list_row(phase: &Phase, calls: &Calls) -> Vec<String> {
    vec![
        calls.elements.to_string(),
        calls.way.word().into(),
        calls.took.len().to_string(),
        format!("{:.3}", median(calls.took.clone()) * 1000.0),
        format!("{:.2}", probed(phase, calls)),
        format!("{:.2}", chunked(phase, calls)),
    ]
}
