//! The call by input size and number of callers, in a closed loop: each caller has one call on the way.
//!
//! Sizes go from the shortest key and a cost of one digit to the longest key and the longest cost that exist. Every
//! call is granted, so every call is the whole script: as an envelope holds at most nine of the longest costs, the
//! callers go round over many keys, for every size the same number.

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

use super::super::progress::stop;
use super::super::report::{Axis, Chart, Report, Series, Table, number};
use super::super::server::Spent;
use super::super::{Failure, admit};
use super::{histogram, record};

/// One input size.
pub(super) struct Size {
    pub word: &'static str,
    name_bytes: usize,
    cost: &'static str,
}

/// The longest cost in digits; nine of them fit into the largest envelope.
const COST_LONGEST: &str = "1000000000000000";
const GRANTS_PER_KEY: u32 = 9;

pub(super) fn sizes() -> [Size; 5] {
    let size = |word, name_bytes, cost| Size { word, name_bytes, cost };
    [
        size("smallest", 1, "1"),
        size("usual", 16, "100"),
        size("long key", NAME_BYTES_MAX, "100"),
        size("long cost", 16, COST_LONGEST),
        size("largest", NAME_BYTES_MAX, COST_LONGEST),
    ]
}

impl Size {
    /// The `n`-th key of this size; all of one length.
    fn key(&self, n: u32) -> String {
        let account = Name::parse(&"a".repeat(self.name_bytes));
        // As the gateway spells a session: its owner in front. The longest lease number has 16 digits.
        let (owner, number) = match self.name_bytes {
            1 => ("", u64::from(n)),
            _ => ("0123456789abcdef.", Units::MAX.get() - u64::from(n)),
        };
        let session = format!("{owner}{}", "s".repeat(self.name_bytes));
        account.map_or_else(String::new, |account| Keys::new("load:").quota(&account, &session, number))
    }
}

/// One size with one number of callers.
pub(super) struct Row {
    word: &'static str,
    key_bytes: usize,
    cost_digits: usize,
    callers: u32,
    per_second: f64,
    times: Histogram<u64>,
    /// What the server spent on it.
    pub spent: Spent,
}

impl Row {
    fn us(&self, quantile: f64) -> f64 {
        self.times.value_at_quantile(quantile) as f64 / 1000.0
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "input": self.word, "key_bytes": self.key_bytes, "cost_digits": self.cost_digits, "callers": self.callers,
            "calls": self.times.len(), "per_second": self.per_second, "p50_us": self.us(0.5), "p90_us": self.us(0.9),
            "p99_us": self.us(0.99), "p999_us": self.us(0.999), "max_us": self.us(1.0),
            "script_us": self.spent.usec_per_call(), "server_cpu_us": self.spent.cpu_us_per_call(),
        })
    }
}

/// Measures one row; none when the run was stopped meanwhile.
pub(super) async fn row(
    store: &Store,
    size: &Size,
    callers: u32,
    calls: u32,
) -> Result<Option<Row>, Failure> {
    let keys: Arc<Vec<String>> = Arc::new((0..=calls / GRANTS_PER_KEY).map(|n| size.key(n)).collect());
    each(store, &keys, "SET").await?;
    let before = Spent::so_far(store).await?;
    let (next, start) = (Arc::new(AtomicU32::new(0)), Instant::now());
    let tasks = (0..callers).map(|_| {
        let (store, next, keys, cost) = (store.clone(), next.clone(), keys.clone(), size.cost);
        tokio::spawn(async move {
            let mut times = histogram();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let key = keys.get(n as usize % keys.len()).filter(|_| n < calls);
                let (Some(key), false) = (key, stop().is_cancelled()) else { break };
                let sent = Instant::now();
                if !admit(&store, &script::ADMIT, key, cost).await? {
                    return Err(Failure::Refused(format!("{key} {cost}")));
                }
                record(&mut times, sent.elapsed());
            }
            Ok::<_, Failure>(times)
        })
    });
    let mut times = histogram();
    for task in tasks.collect::<Vec<_>>() {
        times += task.await??;
    }
    let (per_second, spent) =
        (times.len() as f64 / start.elapsed().as_secs_f64(), Spent::so_far(store).await?.since(before));
    each(store, &keys, "DEL").await?;
    let (key_bytes, cost_digits) = (size.key(0).len(), size.cost.len());
    let row = Row { word: size.word, key_bytes, cost_digits, callers, per_second, times, spent };
    Ok((!stop().is_cancelled()).then_some(row))
}

/// Fills every key's envelope, or takes it away.
async fn each(store: &Store, keys: &[String], word: &str) -> Result<(), Failure> {
    let most = Units::MAX.to_string();
    for some in keys.chunks(500) {
        let sent = some.iter().map(|key| async {
            match word {
                "SET" => store.command(&["SET", key, &most, "PX", "3600000"]).await,
                _ => store.command(&["DEL", key]).await,
            }
        });
        let answers: Result<Vec<Reply>, _> = futures_util::future::join_all(sent).await.into_iter().collect();
        answers?;
    }
    Ok(())
}

/// Charts and table of the sweep.
pub(super) fn tell(report: &mut Report, rows: &[Row]) {
    let chart = |title: &str, note: &str, label: &str, value: fn(&Row) -> f64| Chart {
        title: title.into(),
        note: note.into(),
        x: Axis { label: "callers".into(), log: true },
        y: Axis { label: label.into(), log: true },
        series: sizes()
            .iter()
            .map(|size| {
                let of = rows.iter().filter(|row| row.word == size.word);
                Series {
                    name: size.word.into(),
                    points: of.map(|row| (f64::from(row.callers), value(row))).collect(),
                }
            })
            .collect(),
        spans: Vec::new(),
    };
    let loops = "A closed loop: more callers than the store can serve at once only wait longer.";
    report.charts.extend([
        chart("Half of all calls are faster", loops, "p50 of admit, µs", |row| row.us(0.5)),
        chart("One call in a hundred is slower", "Lower is better.", "p99 of admit, µs", |row| row.us(0.99)),
        chart("Calls a second, one connection", "Higher is better.", "admits a second", |row| row.per_second),
        chart(
            "What a larger input costs the server",
            "The server's own count of the time inside the script.",
            "time inside admit, µs",
            |row| row.spent.usec_per_call(),
        ),
    ]);
    let head = [
        "input",
        "key, bytes",
        "cost, digits",
        "callers",
        "admits/s",
        "p50, µs",
        "p90, µs",
        "p99, µs",
        "p99.9, µs",
        "script, µs",
        "server CPU, µs",
    ];
    let cells = |row: &Row| {
        let mut cells = vec![
            row.word.to_owned(),
            row.key_bytes.to_string(),
            row.cost_digits.to_string(),
            row.callers.to_string(),
            number(row.per_second.round()),
        ];
        cells.extend([0.5, 0.9, 0.99, 0.999].map(|quantile| number(row.us(quantile))));
        cells.extend([row.spent.usec_per_call(), row.spent.cpu_us_per_call()].map(number));
        cells
    };
    report.tables.push(Table {
        title: "By input and callers".into(),
        note: "Times of the whole call; script is the server's own count inside it, server CPU all that the server \
               spent, network included, per call."
            .into(),
        head: head.map(str::to_owned).to_vec(),
        rows: rows.iter().map(cells).collect(),
    });
}
