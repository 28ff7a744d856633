//! The one table of metrics: name, kind, unit, labels, meaning. Nothing is measured here.

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts measurements by size; its name ends in its unit.
    Histogram,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// Units of audio, as budgets count them.
    Units,
}

impl Unit {
    /// The same for the recorder, which knows no units of audio.
    pub const fn base(self) -> metrics::Unit {
        match self {
            Self::Count | Self::Units => metrics::Unit::Count,
            Self::Seconds => metrics::Unit::Seconds,
            Self::Bytes => metrics::Unit::Bytes,
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// `voxgate_…`, in base units.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// What it counts.
    pub unit: Unit,
    /// Its labels; every one has few values, none chosen by a caller.
    pub labels: &'static [&'static str],
    /// What it means, in one line.
    pub help: &'static str,
}

const fn count(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, unit: Unit::Count, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, unit: Unit::Count, labels, help }
}

const fn time(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, unit: Unit::Seconds, labels, help }
}

impl Metric {
    const fn in_units(self) -> Self {
        Self { unit: Unit::Units, ..self }
    }

    const fn in_bytes(self) -> Self {
        Self { unit: Unit::Bytes, ..self }
    }

    const fn in_seconds(self) -> Self {
        Self { unit: Unit::Seconds, ..self }
    }
}

/// Every metric there is.
pub const METRICS: &[Metric] = &[
    // Money.
    time("voxgate_admit_seconds", &[], "One admission, from sending the call to its decoded reply"),
    time(
        "voxgate_script_seconds",
        &["script"],
        "One complete script call, from sending to the decoded reply",
    ),
    count("voxgate_script_errors_total", &["script", "kind"], "Script calls that gave no usable answer"),
    count("voxgate_script_loads_total", &[], "Times the scripts were loaded into the store"),
    time("voxgate_probe_seconds", &["script"], "Script call at its largest allowed input on private keys"),
    gauge("voxgate_leases_open", &[], "Leases that this gateway holds"),
    count("voxgate_reserves_total", &["answer"], "Reserve calls by their answer"),
    count("voxgate_settles_total", &["answer"], "Settle calls by their answer"),
    gauge("voxgate_settles_pending", &[], "Settles that the store has not confirmed yet"),
    count("voxgate_doubts_total", &["script"], "Calls whose answer was lost, so that units may have moved"),
    count(
        "voxgate_units_total",
        &["fate"],
        "Units by fate: admitted, handed_over, tallied (in the books), wasted",
    )
    .in_units(),
    count(
        "voxgate_reaped_total",
        &["answer"],
        "Leases of dead gateways that the reaper looked at, by answer",
    ),
    count("voxgate_unrecoverable_units_total", &["reason"], "Units whose fate the store has lost").in_units(),
    gauge(
        "voxgate_drift_units",
        &[],
        "taken - held - settled of the running budgets, summed: 0 unless data was lost",
    )
    .in_units(),
    gauge("voxgate_drift_tolerance_units", &[], "Drift that is no alarm").in_units(),
    gauge("voxgate_budgets_lost", &[], "Running periods whose budget is gone: rebuild them"),
    gauge("voxgate_leases_outstanding", &[], "Open leases of all active accounts, on any gateway"),
    gauge("voxgate_leases_outstanding_units", &[], "Units that those leases hold out of budgets").in_units(),
    gauge("voxgate_leases_oldest_seconds", &[], "How long the most silent of those leases was not renewed")
        .in_seconds(),
    gauge("voxgate_leases_quarantined", &[], "Leases that a corrupt key keeps from being closed"),
    gauge("voxgate_store_up", &[], "1 while the last probe of `admit` was good on every primary"),
    count(
        "voxgate_store_connects_total",
        &["outcome"],
        "Connections to the store that were tried: open, or why not",
    ),
    count("voxgate_store_failovers_total", &[], "Times that sentinels named another primary"),
    gauge("voxgate_breaker_open", &[], "1 while new streams are refused for want of the store's answers"),
    count("voxgate_breaker_opened_total", &[], "Times that this began"),
    // What each primary says of itself, of all its clients together.
    gauge(
        "voxgate_probe_slowest_seconds",
        &["shard"],
        "Slowest complete call when every script was last probed on this primary",
    )
    .in_seconds(),
    count("voxgate_store_script_calls_total", &["shard"], "Scripts that this primary has run"),
    gauge(
        "voxgate_store_script_mean_seconds",
        &["shard"],
        "The primary's own time for a script, mean since the last look",
    )
    .in_seconds(),
    count("voxgate_store_errors_total", &["shard", "kind"], "Error replies of this primary, BUSY among them"),
    count("voxgate_store_slow_scripts_total", &["shard"], "Scripts that came into this primary's slow log"),
    count("voxgate_store_evicted_keys_total", &["shard"], "Keys that it threw away: books may be among them"),
    count("voxgate_store_evicted_scripts_total", &["shard"], "Scripts that it threw away"),
    gauge("voxgate_store_scripts_cached", &["shard"], "Scripts that it knows"),
    gauge("voxgate_store_memory_bytes", &["shard"], "Memory that it uses").in_bytes(),
    gauge("voxgate_store_memory_max_bytes", &["shard"], "Memory that it may use, 0: no limit").in_bytes(),
    // Streams.
    gauge("voxgate_streams_open", &[], "Streams that are open"),
    count("voxgate_streams_total", &["ending"], "Streams that ended, by why"),
    time("voxgate_stream_seconds", &[], "How long a stream lasted"),
    time("voxgate_first_result_seconds", &[], "From the first audio of a stream to its first words"),
    count("voxgate_chunks_total", &["decision"], "Audio messages by what was decided about them"),
    count("voxgate_audio_seconds_total", &["stage"], "Audio by how far it came").in_seconds(),
    count("voxgate_results_total", &["final"], "Transcripts sent to clients"),
    gauge("voxgate_held_bytes", &[], "Audio held unpaid, of all streams together").in_bytes(),
    count("voxgate_handshakes_refused_total", &["status"], "Handshakes refused, by HTTP status"),
    count("voxgate_connections_turned_away_total", &["why"], "Connections closed before their handshake"),
    count("voxgate_client_faults_total", &["kind"], "Messages of clients that made no sense"),
    count("voxgate_empty_frames_total", &[], "Empty audio messages, which are ignored"),
    count("voxgate_panics_total", &[], "Streams ended by a bug"),
    count("voxgate_worker_messages_dropped_total", &["kind"], "Messages of workers that no client was sent"),
    // Workers.
    gauge("voxgate_worker_up", &["worker"], "1 while this worker is asked for new streams"),
    gauge("voxgate_worker_streams", &["worker"], "Streams that this worker has from this gateway"),
    time("voxgate_worker_connect_seconds", &["worker"], "One attempt to connect to this worker"),
    // The admin listener and the process.
    count("voxgate_admin_requests_total", &["status"], "Requests of the admin listener by status class"),
    count("voxgate_admin_denials_total", &["reason"], "Admin requests without the right token"),
    gauge("voxgate_build_info", &["version"], "Always 1; the version that runs"),
    gauge("voxgate_start_time_seconds", &[], "When this process started, in unix time").in_seconds(),
    gauge("voxgate_ready", &[], "1 while new streams are taken"),
    gauge(
        "voxgate_part_ready",
        &["part"],
        "1 while this part is ready: gateway, store, scripts, role, eviction, workers",
    ),
];

#[cfg(test)]
mod tests {
    use super::{Kind, METRICS, Unit};
    use std::collections::BTreeSet;

    #[test]
    fn names_follow_the_conventions() {
        let mut names = BTreeSet::new();
        for metric in METRICS {
            let name = metric.name;
            assert!(names.insert(name), "{name} is there twice");
            assert!(name.starts_with("voxgate_"), "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
            assert!(!metric.help.is_empty() && !metric.help.ends_with('.'), "{name}");
            assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
            for wrong in ["_ms", "_millis", "_micros", "_minutes", "_kib", "_mb"] {
                assert!(!name.contains(wrong), "{name} is not in a base unit");
            }
            if metric.unit == Unit::Seconds {
                assert!(name.contains("_seconds"), "{name}");
            }
            if metric.unit == Unit::Bytes {
                assert!(name.contains("_bytes"), "{name}");
            }
            if metric.kind == Kind::Histogram && metric.unit == Unit::Seconds {
                assert!(name.ends_with("_seconds"), "{name} would get no buckets");
            }
        }
    }

    #[test]
    fn labels_name_nobody() {
        for metric in METRICS {
            for label in metric.labels {
                let banned = ["account", "session", "key", "path", "origin", "address", "tag"];
                assert!(!banned.contains(label), "{} has the label {label}", metric.name);
            }
        }
    }

    /// Names are plain texts at the places that measure, so a name that is not in the table would go unseen.
    #[test]
    fn the_table_names_what_is_measured() {
        let mut used = BTreeSet::new();
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        collect(&root, &mut used);
        let declared: BTreeSet<String> = METRICS.iter().map(|metric| metric.name.to_owned()).collect();
        assert_eq!(used.difference(&declared).collect::<Vec<_>>(), Vec::<&String>::new(), "not in the table");
        assert_eq!(declared.difference(&used).collect::<Vec<_>>(), Vec::<&String>::new(), "never measured");
    }

    fn collect(folder: &std::path::Path, used: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, used);
            } else if !path.ends_with("telemetry/table.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let names = text.split('"').filter(|part| {
                    part.starts_with("voxgate_") && part.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
                });
                used.extend(names.map(str::to_owned));
            }
        }
    }
}
