//! What a run of `load` came to: one JSON file for machines, one HTML page for people, both from the same [`Report`].
//!
//! The page holds everything it needs: no script, no network. `chart` draws its curves as SVG, `page` sets them.

mod chart;
mod page;
mod scale;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use voxgate::quota::store::{Reply, Store};

use super::Failure;
pub(super) use scale::number;

/// What one run came to: kept as JSON, shown as one HTML page.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// `race`, `latency`, `cycles`, …
    pub run: String,
    /// The machine, the store and the day.
    pub environment: Value,
    /// What the run was told.
    pub options: Value,
    /// The few numbers that matter, shown large.
    pub headline: Vec<Figure>,
    /// Curves, in the order of reading.
    pub charts: Vec<Chart>,
    /// The same and more as numbers.
    pub tables: Vec<Table>,
    /// What was measured how, and what it does not say.
    pub notes: Vec<String>,
    /// The raw rows, for machines.
    pub data: Value,
}

/// One number that matters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Figure {
    /// What it is.
    pub name: String,
    /// The number; a dash is shown when it is not finite.
    #[serde(deserialize_with = "finite")]
    pub value: f64,
    /// Its unit, with the bound it is held against if there is one.
    pub unit: String,
    /// Whether it meets its bound; none when it has none.
    pub good: Option<bool>,
}

/// One axis of a chart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Axis {
    /// What it counts, and in which unit.
    pub label: String,
    /// Logarithmic: values that are not above 0 stand on a line of their own at its foot.
    pub log: bool,
}

/// One line of a chart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Series {
    /// What the legend calls it.
    pub name: String,
    /// In the order of drawing; what is not finite is a gap.
    #[serde(deserialize_with = "points")]
    pub points: Vec<(f64, f64)>,
}

/// A stretch of the x axis that is shaded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Span {
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// What happened there.
    pub label: String,
}

/// A line chart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Chart {
    /// What it shows, in a few words.
    pub title: String,
    /// How to read it; may be empty.
    pub note: String,
    /// Along.
    pub x: Axis,
    /// Up.
    pub y: Axis,
    /// Its lines; eight have a colour of their own.
    pub series: Vec<Series>,
    /// What is shaded.
    pub spans: Vec<Span>,
}

/// A table of texts; a column of numbers is set to the right.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Table {
    /// What it shows.
    pub title: String,
    /// How to read it; may be empty.
    pub note: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Each as long as `head`.
    pub rows: Vec<Vec<String>>,
}

impl Report {
    /// An empty report of a run that was told `options`.
    pub(super) fn new(run: &str, options: Value) -> Self {
        Self {
            run: run.to_owned(),
            environment: super::environment(),
            options,
            headline: Vec::new(),
            charts: Vec::new(),
            tables: Vec::new(),
            notes: Vec::new(),
            data: Value::Null,
        }
    }

    /// Adds the store's name and version to the environment.
    pub(super) async fn tell_store(&mut self, store: &Store) {
        let version = match store.command(&["INFO", "server"]).await {
            Ok(Reply::Bulk(text)) => version(&String::from_utf8_lossy(&text)),
            Ok(_) | Err(_) => store.word().to_owned(),
        };
        if let Value::Object(environment) = &mut self.environment {
            environment.insert("store".into(), version.into());
        }
    }

    /// Writes `RUN-YYYYMMDDTHHMMSSZ.json` and `.html` into `folder`; gives both paths.
    pub(super) fn keep(&self, folder: &Path) -> Result<(PathBuf, PathBuf), Failure> {
        std::fs::create_dir_all(folder).map_err(|error| Failure::file(folder, &error))?;
        let stem = format!("{}-{}", self.run, jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ"));
        let (machines, people) = (folder.join(format!("{stem}.json")), folder.join(format!("{stem}.html")));
        let text = serde_json::to_string(self).map_err(|error| Failure::file(&machines, &error.into()))?;
        write(&machines, &text)?;
        write(&people, &page::html(std::slice::from_ref(self)))?;
        Ok((machines, people))
    }
}

/// What `load report` can be told.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Results of earlier runs
    #[arg(required = true, value_name = "FILE.json")]
    files: Vec<PathBuf>,
}

/// Joins kept results into one page at `out`.
pub(super) fn join(options: &Options, out: &Path) -> Result<(), Failure> {
    let mut reports = Vec::new();
    for file in &options.files {
        let text = std::fs::read_to_string(file).map_err(|error| Failure::file(file, &error))?;
        let report: Report =
            serde_json::from_str(&text).map_err(|error| Failure::file(file, &error.into()))?;
        reports.push(report);
    }
    write(out, &page::html(&reports))?;
    eprintln!("{}", out.display());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| Failure::file(path, &error))
}

/// `Redis 7.0.15` or `Valkey 9.1.2`, of what `INFO server` says.
fn version(info: &str) -> String {
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(|value| value.trim().to_owned())
    };
    match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "unknown".into(),
    }
}

/// JSON has no word for what is not finite and keeps `null` instead.
fn finite<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

fn points<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(f64, f64)>, D::Error> {
    let points = Vec::<(Option<f64>, Option<f64>)>::deserialize(from)?;
    Ok(points.into_iter().map(|(x, y)| (x.unwrap_or(f64::NAN), y.unwrap_or(f64::NAN))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finite_survives_json() {
        let figure = Figure { name: "a".into(), value: f64::NAN, unit: String::new(), good: None };
        let series =
            Series { name: "b".into(), points: vec![(1.0, f64::NAN), (2.0, f64::INFINITY), (3.0, 4.0)] };
        let text = serde_json::to_string(&(figure, series)).unwrap();
        let (figure, series): (Figure, Series) = serde_json::from_str(&text).unwrap();
        assert!(figure.value.is_nan());
        assert!(series.points[0].1.is_nan() && series.points[1].1.is_nan());
        assert_eq!(series.points[2], (3.0, 4.0));
    }

    #[test]
    fn servers_are_told_apart() {
        assert_eq!(version("# Server\r\nredis_version:7.0.15\r\n"), "Redis 7.0.15");
        assert_eq!(
            version("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n"),
            "Valkey 9.1.2"
        );
        assert_eq!(version(""), "unknown");
    }
}
