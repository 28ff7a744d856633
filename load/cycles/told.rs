//! What the rounds of `load cycles` came to, as headline, charts, table and notes.

use super::super::latency::median;
use super::super::pace::{ONE_IN, Outcome};
use super::super::report::{Axis, Chart, Figure, Report, Series, Table, number};
use super::Round;

pub(super) fn tell(report: &mut Report, rounds: &[Round], rows: u64, mismatches: u64) {
    report.headline = headline(rounds, rows, mismatches);
    report.charts = vec![tail(rounds), by_round(rounds)];
    report.tables = vec![table(rounds)];
    report.notes = NOTES.iter().map(|note| (*note).to_owned()).collect();
}

const NOTES: [&str; 4] = [
    "A cycle is the life of one session: reserve an envelope, admit one chunk, settle, all through the money room that \
     the gateway uses, on one connection.",
    "The closed loop gives the saturating rate. The open loop runs at half of it, round by round, and times each cycle \
     from the moment it was due; headline figures are medians of the rounds.",
    "A thread of its own keeps the open loop's time. How late cycles begin is told beside their times and is part of \
     them: it is the driver's and the scheduler's share.",
    "Each cycle hands over a number of units that only it has; afterwards the ledger is read whole and must hold one \
     row for each cycle with that number.",
];

fn of(rounds: &[Round], value: impl Fn(&Round) -> f64) -> f64 {
    median(rounds.iter().map(value))
}

fn headline(rounds: &[Round], rows: u64, mismatches: u64) -> Vec<Figure> {
    let figure = |name: &str, value: f64, unit: &str, good: Option<bool>| Figure {
        name: name.into(),
        value,
        unit: unit.into(),
        good,
    };
    let mut figures = Vec::new();
    if !rounds.is_empty() {
        let (rate, p99) =
            (of(rounds, |round| round.closed.per_second), of(rounds, |round| round.open.ms(0.99)));
        figures.extend([
            figure(
                "reserve + settle cycles at best",
                rate,
                "a second; must be ≥ 5,000, aim 10,000",
                Some(rate >= 5000.0),
            ),
            figure("p99 at half of that rate", p99, "ms; must be ≤ 5, aim 2", Some(p99 <= 5.0)),
            figure("p50 at half of that rate", of(rounds, |round| round.open.ms(0.5)), "ms", None),
            figure(
                "server CPU per cycle",
                of(rounds, |round| round.server_us),
                "µs; one server does no more than a million over this",
                None,
            ),
        ]);
    }
    figures.extend([
        figure("ledger rows held against their cycles", rows as f64, "rows", None),
        figure("rows or cycles that do not match", mismatches as f64, "must be 0", Some(mismatches == 0)),
    ]);
    figures
}

/// How slow the slowest are, which a mean hides.
fn tail(rounds: &[Round]) -> Chart {
    let series = |name: &str, at: fn(&Round, f64) -> f64| Series {
        name: name.into(),
        points: ONE_IN.iter().map(|n| (*n, of(rounds, |round| at(round, 1.0 - 1.0 / n)))).collect(),
    };
    Chart {
        title: "How slow the slowest are".into(),
        note: "At 100: one cycle in a hundred takes longer than this.".into(),
        x: Axis { label: "one cycle in so many".into(), log: true },
        y: Axis { label: "takes longer than, ms".into(), log: true },
        series: vec![
            series("closed loop", |round, quantile| round.closed.ms(quantile)),
            series("open loop at half the rate", |round, quantile| round.open.ms(quantile)),
            series("of that, begun late by the driver", |round, quantile| late(&round.open, quantile)),
        ],
        spans: Vec::new(),
    }
}

fn by_round(rounds: &[Round]) -> Chart {
    let series = |name: &str, value: fn(&Round) -> f64| Series {
        name: name.into(),
        points: rounds.iter().enumerate().map(|(n, round)| (n as f64 + 1.0, value(round))).collect(),
    };
    Chart {
        title: "Cycles a second, round by round".into(),
        note: "Other work on the machine shows here.".into(),
        x: Axis { label: "round".into(), log: false },
        y: Axis { label: "cycles a second".into(), log: false },
        series: vec![
            series("closed loop", |round| round.closed.per_second),
            series("open loop", |round| round.open.per_second),
        ],
        spans: Vec::new(),
    }
}

fn late(outcome: &Outcome, quantile: f64) -> f64 {
    outcome.late.value_at_quantile(quantile) as f64 / 1e6
}

fn table(rounds: &[Round]) -> Table {
    let head = [
        "round",
        "loop",
        "cycles",
        "cycles/s",
        "p50, ms",
        "p90, ms",
        "p99, ms",
        "p99.9, ms",
        "begun late, p99, ms",
    ];
    let mut rows = Vec::new();
    for (n, round) in rounds.iter().enumerate() {
        for (word, outcome) in [("closed", &round.closed), ("open", &round.open)] {
            let mut cells = vec![
                (n + 1).to_string(),
                word.to_owned(),
                number(outcome.times.len() as f64),
                number(outcome.per_second.round()),
            ];
            cells.extend([0.5, 0.9, 0.99, 0.999].map(|quantile| number(outcome.ms(quantile))));
            cells.push(if word == "open" { number(late(outcome, 0.99)) } else { "–".into() });
            rows.push(cells);
        }
    }
    Table { title: "Every round".into(), note: String::new(), head: head.map(str::to_owned).to_vec(), rows }
}
