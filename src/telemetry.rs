//! Logs and metrics: how lines look, and the one table of metrics.
//!
//! Logs go to stderr, nothing else does. Names and labels of metrics are declared in [`METRICS`] alone; no
//! label holds an account, session, key, path or anything else that a caller may choose.

use std::io::IsTerminal as _;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

mod table;

pub use table::{Kind, METRICS, Metric, Unit};

/// What is logged, and how.
#[derive(Clone, Debug)]
pub struct Log {
    /// How lines look.
    pub format: LogFormat,
    /// A level or filters, as [`filter`] takes them.
    pub level: String,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON elsewhere.
    Auto,
    /// One JSON object per line.
    Json,
    /// For people.
    Pretty,
}

/// Reads log filters: a level, or such as `voxgate=debug,info`. `None` if they make no sense.
pub fn filter(text: &str) -> Option<EnvFilter> {
    EnvFilter::builder().parse(text).ok().filter(|_| !text.trim().is_empty())
}

/// Starts logging to stderr as the configuration says; a second call changes nothing.
pub fn start_log(log: &Log) {
    let filter = filter(&log.level).unwrap_or_else(|| EnvFilter::new("info"));
    let filter = SILENT.iter().fold(filter, |filter, quiet| match quiet.parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    });
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let terminal = std::io::stderr().is_terminal();
    // A logger that is there already stays: tests start many servers in one process.
    _ = match (log.format, terminal) {
        (LogFormat::Json, _) | (LogFormat::Auto, false) => {
            lines.json().flatten_event(true).with_span_list(false).try_init()
        }
        (LogFormat::Pretty, _) | (LogFormat::Auto, true) => {
            lines.with_ansi(terminal && colour()).with_target(false).try_init()
        }
    };
}

/// Libraries that print whole frames and handshakes, secrets among them, at their lowest level.
const SILENT: [&str; 2] = ["tungstenite=off", "tokio_tungstenite=off"];

/// Whether colours are wanted at all: `NO_COLOR` is unset or empty.
pub fn colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Bounds of the buckets of every histogram of seconds, 50 us to 10 s.
pub const SECONDS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_15, 0.000_2, 0.000_3, 0.000_5, 0.000_75, 0.001, 0.001_5, 0.002, 0.003, 0.005,
    0.007_5, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
];

/// The same for streams, which last longer: 1 s to 4 h.
pub const STREAM_SECONDS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0];

/// The recorder of this process, seen from whoever shows it.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs the recorder for the whole process and describes every metric. Where another one is
    /// installed already, this one stays empty: only tests start twice.
    pub fn install() -> Self {
        let recorder = builder().build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_ok() {
            describe();
        }
        Self(handle)
    }

    /// A recorder of its own, for tests: hand it to [`metrics::with_local_recorder`].
    pub fn local() -> (metrics_exporter_prometheus::PrometheusRecorder, Self) {
        let recorder = builder().build_recorder();
        let handle = recorder.handle();
        (recorder, Self(handle))
    }

    /// Everything measured so far, in the Prometheus text format.
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Folds single measurements into their histograms. Call it every few seconds: without it, a server
    /// that nobody scrapes would keep them all.
    pub fn fold(&self) {
        self.0.run_upkeep();
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

fn builder() -> PrometheusBuilder {
    let lists = [
        (Matcher::Suffix("_seconds".to_owned()), SECONDS),
        (Matcher::Full("voxgate_stream_seconds".to_owned()), STREAM_SECONDS),
    ];
    lists.into_iter().fold(PrometheusBuilder::new(), |builder, (matcher, buckets)| {
        builder.set_buckets_for_metric(matcher, buckets).expect("no list of buckets is empty")
    })
}

/// Tells the recorder what each metric means, and sets those that only say what runs here.
fn describe() {
    for metric in METRICS {
        let unit = metric.unit.base();
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, unit, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, unit, metric.help),
            Kind::Histogram => metrics::describe_histogram!(metric.name, unit, metric.help),
        }
    }
    metrics::gauge!("voxgate_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    metrics::gauge!("voxgate_start_time_seconds").set(now.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::{METRICS, Metrics, SECONDS, describe, filter};

    #[test]
    fn filters_are_levels_or_directives() {
        for text in ["info", "voxgate=debug,info", "warn,hyper=off"] {
            assert!(filter(text).is_some(), "{text:?}");
        }
        for text in ["", " ", "voxgate=loud"] {
            assert!(filter(text).is_none(), "{text:?}");
        }
    }

    #[test]
    fn render_shows_help_and_buckets() {
        let (recorder, metrics) = Metrics::local();
        metrics::with_local_recorder(&recorder, || {
            describe();
            metrics::histogram!("voxgate_admit_seconds").record(0.0002);
        });
        metrics.fold();
        let page = metrics.render();
        assert!(page.contains("# HELP voxgate_admit_seconds "), "{page}");
        assert!(page.contains("voxgate_admit_seconds_bucket{le=\"0.00005\"} 0"), "{page}");
        assert!(page.contains("voxgate_admit_seconds_bucket{le=\"0.0002\"} 1"), "{page}");
        assert!(page.contains("voxgate_build_info{version="), "{page}");
    }

    #[test]
    fn buckets_rise() {
        assert!(SECONDS.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(METRICS.len() > 20);
    }
}
