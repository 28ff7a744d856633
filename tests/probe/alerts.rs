//! The alert rules that ship: valid, of metrics that exist, and they fire on what they name.

use std::path::{Path, PathBuf};
use std::process::Command;

use voxgate::telemetry::{Kind, METRICS, Metric};

use crate::harness::all_tools_required;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rules() -> String {
    std::fs::read_to_string(root().join("deploy/alerts.yml")).expect("the alert rules")
}

fn metric(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| {
        let suffixes = ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", metric.name));
        metric.name == name || metric.kind == Kind::Histogram && suffixes.iter().any(|series| series == name)
    })
}

/// What is wrong with the metrics and labels that a text of rules names.
fn faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (at, _) in text.match_indices("voxgate_") {
        let rest = &text[at..];
        let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let Some(metric) = metric(&name) else {
            faults.push(format!("there is no metric {name}"));
            continue;
        };
        let labels = rest[name.len()..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
        for pair in labels.map_or("", |(labels, _)| labels).split(',').filter(|pair| pair.contains('=')) {
            let label = pair.split(['=', '!']).next().unwrap_or_default().trim();
            if !metric.labels.contains(&label) {
                faults.push(format!("{name} has no label {label}"));
            }
        }
    }
    faults
}

#[test]
fn alerts_name_real_metrics() {
    assert_eq!(faults(&rules()), Vec::<String>::new());
    let wrong =
        "voxgate_probe_seconds_bucket voxgate_stor_up voxgate_ready_bucket voxgate_part_ready{party=\"x\"}";
    assert_eq!(faults(wrong).len(), 3, "{:?}", faults(wrong));
}

#[test]
fn every_alert_says_what_to_do() {
    let rules = rules();
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    for alert in &alerts {
        for part in ["expr: ", "severity: ", "summary: \"", "action: \""] {
            assert!(alert.contains(part), "no {part} in {alert}");
        }
    }
    let wanted = [
        "StoreDown",
        "StoreRefusesWrites",
        "ScriptSlow",
        "StoreBusy",
        "Drift",
        "Unrecoverable",
        "BudgetsLost",
        "BreakerOpen",
        "SettlesPending",
        "NoWorker",
        "StoreMayEvict",
    ];
    for name in wanted {
        assert!(alerts.iter().any(|alert| alert.starts_with(&format!("Voxgate{name}\n"))), "no alert {name}");
    }
}

/// `promtool` of the Prometheus package, where the environment names it or the path holds it.
fn promtool() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("VOXGATE_PROMTOOL") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|folder| folder.join("promtool")).find(|file| file.is_file());
    assert!(found.is_some() || !all_tools_required(), "promtool is missing; run ./test, which fetches it");
    found
}

#[test]
fn promtool_accepts_and_fires_them() {
    let Some(promtool) = promtool() else { return };
    let rules = root().join("deploy/alerts.yml");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tests = std::fs::read_to_string(root().join("tests/alerts.yml")).expect("their tests");
    let placed = folder.path().join("alerts_test.yml");
    let tests = tests.replace("[ALERTS]", &format!("[\"{}\"]", rules.display()));
    std::fs::write(&placed, tests).expect("a writable folder");
    for (verb, file) in [("check", &rules), ("test", &placed)] {
        let output = Command::new(&promtool).args([verb, "rules"]).arg(file).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "promtool {verb} rules: {said}{complained}");
    }
}
