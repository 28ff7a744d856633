//! `load race`: callers take one quota until it is empty, by each way in turn, for several numbers of callers.
//!
//! | way | round trips per take | can oversell |
//! |---|---|---|
//! | naive: GET, compare, DECRBY | 2 | yes |
//! | lock: SET NX, GET, compare, DECRBY, DEL | 4 and the waiting | no, while nobody outlives the lock |
//! | script: `lua/admit.lua` | 1 | no |
//! | gateway: streams of one session through `voxgate serve` | 1 or less: waiting audio is paid for in one call | no |
//!
//! In the first three each caller has a connection of its own. Behind the gateway a take is a chunk of audio, sent,
//! paid for, handed to a worker and answered; what the worker got is what was sold.

mod ways;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::gateway::beside;
use super::progress::{Progress, stop};
use super::report::{Axis, Chart, Figure, Report, Series, Table, number};
use super::server::Private;
use super::{Failure, Target};
use ways::{Course, Way, through_gateway, to_store};

/// What `load race` can be told.
#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    target: Target,
    /// Callers at once, 1 to 1000, several runs [default: 1,8,64,256]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1000))]
    callers: Vec<u32>,
    /// Units in the quota [default: 200000]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    units: Option<u32>,
    /// Units per take
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=2000))]
    cost: u32,
    /// Seconds after which a way is stopped although its quota is not empty
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// The gateway to race through; default: the `voxgate` beside this program
    #[arg(long, value_name = "PROGRAM")]
    voxgate: Option<PathBuf>,
    /// A small race of a few seconds: 1 and 32 callers, 20000 units
    #[arg(long)]
    quick: bool,
}

/// One way with one number of callers.
struct Row {
    way: Way,
    callers: u32,
    course: Course,
}

/// Runs every way for every number of callers; gives the report.
pub(super) async fn run(options: Options) -> Result<Report, Failure> {
    let (usual, units) = if options.quick { (vec![1, 32], 20_000) } else { (vec![1, 8, 64, 256], 200_000) };
    let callers = if options.callers.is_empty() { usual } else { options.callers };
    let units = options.units.unwrap_or(units);
    let voxgate = options.voxgate.unwrap_or_else(beside);
    let server = Private::open_server(&options.target)?;
    let store = server.store()?;
    let told =
        json!({ "callers": callers, "units": units, "cost": options.cost, "seconds": options.seconds });
    let mut report = Report::new("race", told);
    report.tell_store(&store).await;
    let progress = Progress::start("race", (callers.len() * Way::ALL.len()) as u64);
    let lot = ways::Lot { units, cost: options.cost, patience: Duration::from_secs(options.seconds.into()) };
    let mut rows = Vec::new();
    for callers in callers {
        for way in Way::ALL {
            if stop().is_cancelled() {
                break;
            }
            progress.say(&format!("{callers} callers take {units} units, way {}", way.word()));
            let course = match way {
                Way::Naive | Way::Lock | Way::Script => to_store(&server, lot, callers, way).await?,
                Way::Gateway => through_gateway(&server, lot, callers, &voxgate).await?,
            };
            // What ctrl-c cut off says nothing.
            if !stop().is_cancelled() {
                rows.push(Row { way, callers, course });
            }
            progress.step();
        }
    }
    tell(&mut report, &rows, lot);
    Ok(report)
}

fn tell(report: &mut Report, rows: &[Row], lot: ways::Lot) {
    report.headline = headline(rows);
    report.charts = charts(rows);
    report.tables = vec![table(rows, lot)];
    report.notes = NOTES.iter().map(|note| (*note).to_owned()).collect();
    report.data = json!({ "ways": rows.iter().map(Row::json).collect::<Vec<Value>>() });
}

const NOTES: [&str; 5] = [
    "Every way starts with the same quota, and its callers take as fast as they are answered until they are refused. \
     Oversold is what they took beyond the quota.",
    "naive is GET, compare, DECRBY: between its two round trips others take the same units. With one caller it is right. \
     lock holds SET NX around the same three steps. script is lua/admit.lua: one call, decided inside the store.",
    "gateway is voxgate serve on the same store: each caller is a stream of ONE session whose cap is the quota, with one \
     chunk in flight. Its take is the whole way: WebSocket in, admit, worker, words, WebSocket out. So its takes a second \
     and times are of more work than the others'. What was sold is what the worker got, counted there.",
    "Round trips per take: commands sent, for the first three; script calls that the store counted, reserve and settle \
     included, for the gateway.",
    "A way that did not empty its quota within the time given was stopped; its rate and times hold, and oversold is at \
     least what is shown.",
];

impl Row {
    fn per_second(&self) -> f64 {
        self.course.takes as f64 / self.course.seconds
    }

    fn trips(&self) -> f64 {
        self.course.trips as f64 / self.course.takes.max(1) as f64
    }

    fn us(&self, quantile: f64) -> f64 {
        self.course.times.value_at_quantile(quantile) as f64 / 1000.0
    }

    fn json(&self) -> Value {
        let course = &self.course;
        json!({
            "way": self.way.word(), "callers": self.callers, "admitted": course.admitted, "oversold": course.oversold,
            "unsold": course.unsold, "emptied": course.emptied, "takes": course.takes, "seconds": course.seconds,
            "round_trips": course.trips, "round_trips_per_take": self.trips(),
            "takes_per_second": self.per_second(), "p50_us": self.us(0.5), "p99_us": self.us(0.99),
        })
    }
}

fn headline(rows: &[Row]) -> Vec<Figure> {
    let of = |way: Way| rows.iter().filter(move |row| row.way == way);
    let mut figures = Vec::new();
    let mut figure = |name: String, value: f64, unit: &str, good: Option<bool>| {
        figures.push(Figure { name, value, unit: unit.into(), good });
    };
    if let Some(row) = of(Way::Naive).max_by_key(|row| row.course.oversold) {
        figure(
            format!("naive oversells, {} callers", row.callers),
            row.course.oversold as f64,
            "units beyond the quota",
            None,
        );
    }
    for way in [Way::Script, Way::Gateway] {
        if let Some(most) = of(way).map(|row| row.course.oversold).max() {
            let name = format!("{} oversells, any number of callers", way.word());
            figure(name, most as f64, "units beyond the quota; must be 0", Some(most == 0));
        }
    }
    if let Some(row) = of(Way::Lock).max_by_key(|row| row.callers) {
        figure(format!("lock, {} callers", row.callers), row.trips(), "round trips per take", None);
    }
    for way in [Way::Script, Way::Gateway] {
        if let Some(row) = of(way).max_by(|a, b| a.per_second().total_cmp(&b.per_second())) {
            figure(
                format!("{} at its best, {} callers", way.word(), row.callers),
                row.per_second(),
                "takes a second",
                None,
            );
        }
    }
    figures
}

fn charts(rows: &[Row]) -> Vec<Chart> {
    let chart = |title: &str, note: &str, label: &str, value: fn(&Row) -> f64| Chart {
        title: title.into(),
        note: note.into(),
        x: Axis { label: "callers".into(), log: true },
        y: Axis { label: label.into(), log: true },
        series: Way::ALL
            .into_iter()
            .map(|way| Series {
                name: way.word().into(),
                points: rows
                    .iter()
                    .filter(|row| row.way == way)
                    .map(|row| (f64::from(row.callers), value(row)))
                    .collect(),
            })
            .collect(),
        spans: Vec::new(),
    };
    vec![
        chart("What was sold twice", "0 is the only right answer.", "units oversold", |row| {
            row.course.oversold as f64
        }),
        chart("How fast the quota is taken", "Higher is better.", "takes a second", Row::per_second),
        chart("How long one take in a hundred waits", "Lower is better.", "p99 of a take, µs", |row| {
            row.us(0.99)
        }),
        chart(
            "What a take costs the store",
            "Waiting for a lock is done in round trips.",
            "round trips per take",
            Row::trips,
        ),
    ]
}

fn table(rows: &[Row], lot: ways::Lot) -> Table {
    let head = [
        "callers",
        "way",
        "oversold",
        "left unsold",
        "takes",
        "round trips per take",
        "takes/s",
        "p50, µs",
        "p99, µs",
        "quota emptied",
    ];
    let cells = |row: &Row| {
        vec![
            row.callers.to_string(),
            row.way.word().to_owned(),
            number(row.course.oversold as f64),
            number(row.course.unsold as f64),
            number(row.course.takes as f64),
            number(row.trips()),
            number(row.per_second().round()),
            number(row.us(0.5)),
            number(row.us(0.99)),
            if row.course.emptied { "yes".into() } else { "stopped before".to_owned() },
        ]
    };
    Table {
        title: "Every way, every number of callers".into(),
        note: format!("A quota of {} units, {} units per take.", number(lot.units.into()), lot.cost),
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(cells).collect(),
    }
}
