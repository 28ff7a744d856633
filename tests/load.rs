//! The load driver: what it claims holds whenever it runs, and what it leaves behind can be read anywhere.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::harness::redis_server::redis;
use crate::harness::signal;

/// One finished run: its line on stdout, and the files that it kept.
struct Ran {
    line: Value,
    json: PathBuf,
    html: PathBuf,
    _folder: tempfile::TempDir,
}

fn load(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_load"));
    command.args(arguments).arg("--out").arg(folder).stdin(Stdio::null());
    command.env_remove("VOXGATE_LOAD_STORE");
    command
}

/// Runs it on a store of its own; panics when it fails.
fn run(arguments: &[&str]) -> Ran {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = redis();
    let server = ["--server", server.to_str().expect("a path in UTF-8")];
    let output = load(&[arguments, &server].concat(), folder.path()).output().expect("the program starts");
    kept(&output, folder)
}

fn kept(output: &Output, folder: tempfile::TempDir) -> Ran {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let line = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let file = |ending: &str| {
        let files =
            std::fs::read_dir(folder.path()).expect("a folder").map(|file| file.expect("a file").path());
        let files: Vec<_> =
            files.filter(|file| file.extension().is_some_and(|word| word == ending)).collect();
        assert_eq!(files.len(), 1, "one {ending} in {files:?}");
        files[0].clone()
    };
    Ran { line, json: file("json"), html: file("html"), _folder: folder }
}

/// The file holds what the line says, and the page needs nothing but itself.
fn is_kept_whole(ran: &Ran) {
    let kept: Value = serde_json::from_slice(&std::fs::read(&ran.json).expect("a file")).expect("JSON");
    assert_eq!(kept, ran.line);
    let page = std::fs::read_to_string(&ran.html).expect("a file");
    assert!(page.len() < 500 * 1024, "{} bytes", page.len());
    for word in ["http:", "https:", "src=", "href=\"//", "@import", "url("] {
        assert!(!page.contains(word), "the page names {word}");
    }
    let (_, data) = page.split_once("id=\"data\">").expect("the data");
    let data: Value = serde_json::from_str(data.split("</script>").next().expect("its end")).expect("JSON");
    assert_eq!(data[0], ran.line, "the page holds the same data");
    let charts = ran.line["charts"].as_array().expect("charts");
    assert!(!charts.is_empty());
    for chart in charts {
        let points = chart["series"].as_array().expect("lines").iter().map(|line| &line["points"]);
        assert!(
            points.flat_map(|points| points.as_array().expect("points")).count() > 0,
            "{}",
            chart["title"]
        );
    }
    assert_eq!(page.matches("<figure>").count(), charts.len());
    for table in ran.line["tables"].as_array().expect("tables") {
        let columns = table["head"].as_array().expect("a head").len();
        let rows = table["rows"].as_array().expect("rows");
        assert!(!rows.is_empty() && rows.iter().all(|row| row.as_array().map(Vec::len) == Some(columns)));
    }
}

/// Check-then-take may oversell, and nearly always does; the others can't.
#[test]
fn only_check_then_take_oversells() {
    let ran = run(&["race", "--quick"]);
    let ways = ran.line["data"]["ways"].as_array().expect("ways");
    for way in ["lock", "script", "gateway"] {
        let of: Vec<&Value> = ways.iter().filter(|row| row["way"] == way).collect();
        assert_eq!(of.len(), 2, "{way}: 1 and 32 callers");
        for row in of {
            assert_eq!((&row["oversold"], &row["unsold"]), (&0.into(), &0.into()), "{row}");
            assert_eq!((&row["admitted"], &row["emptied"]), (&20_000.into(), &true.into()), "{row}");
        }
    }
    let alone = ways.iter().find(|row| row["way"] == "naive" && row["callers"] == 1).expect("a row");
    assert_eq!((&alone["oversold"], &alone["round_trips"]), (&0.into(), &2001.into()), "{alone}");
    is_kept_whole(&ran);
}

#[test]
fn latency_measures_every_size() {
    let ran = run(&["latency", "--quick"]);
    let data = &ran.line["data"];
    let rows = data["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 5 * 4, "sizes by callers");
    for row in rows {
        assert_eq!(row["calls"], 2000, "{row}");
        let us = |name: &str| row[name].as_f64().expect("a number");
        assert!(us("p50_us") > 0.0 && us("p50_us") <= us("p99_us") && us("p99_us") <= us("max_us"), "{row}");
        assert!(us("script_us") > 0.0, "{row}");
    }
    let widest = |name: &str| rows.iter().filter_map(|row| row[name].as_u64()).max();
    assert_eq!((widest("cost_digits"), widest("key_bytes")), (Some(16), Some(176)));
    let round = &data["rounds"][0];
    for name in
        ["benchmark_unpipelined", "benchmark_pipeline_16", "plain_unpipelined", "path", "at_10000", "at_half"]
    {
        assert!(round[name]["per_second"].as_f64().expect("a number") > 0.0, "{name} in {round}");
    }
    assert_eq!(ran.line["headline"].as_array().map(Vec::len), Some(7));
    is_kept_whole(&ran);
}

/// Where no benchmark is installed, plain sockets measure the same.
#[test]
fn ceiling_needs_no_benchmark() {
    let ran = run(&["latency", "--quick", "--callers", "8", "--benchmark", "no-such-program"]);
    assert_eq!(ran.line["options"]["benchmark"], "plain sockets");
    let ceiling = &ran.line["data"]["rounds"][0]["benchmark_pipeline_16"];
    assert!(ceiling["per_second"].as_f64().expect("a number") > 0.0, "{ceiling}");
}

#[test]
fn every_cycle_has_its_row() {
    let ran = run(&["cycles", "--quick"]);
    let data = &ran.line["data"];
    assert_eq!(data["ledger_mismatches"], 0);
    assert!(data["rows"].as_u64().expect("a number") > 2000, "both loops: {data}");
    is_kept_whole(&ran);
}

/// What was measured until then is reported, and the private server ends too.
#[test]
fn interrupt_still_reports() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = redis();
    let arguments = ["race", "--callers", "1,8", "--units", "10000000", "--seconds", "600"];
    let arguments = [&arguments[..], &["--server", server.to_str().expect("UTF-8")]].concat();
    let mut command = load(&arguments, folder.path());
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut said = BufReader::new(child.stderr.take().expect("piped")).lines();
    let first = said.next().expect("a line").expect("text");
    assert!(first.contains("1 callers"), "{first}");
    // A terminal tells the whole group: its server must not be in it, or there would be nothing left to report on.
    assert_eq!(group(child.id()), [child.id()]);
    signal::send("INT", child.id());
    let rest: Vec<String> = said.map(|line| line.expect("text")).collect();
    let ran = kept(&child.wait_with_output().expect("our own child"), folder);
    assert!(ran.line["notes"][0].as_str().expect("a note").contains("ctrl-c"), "{}", ran.line["notes"]);
    let page = std::fs::read_to_string(&ran.html).expect("a file");
    assert!(page.contains("Stopped by ctrl-c"));
    assert!(rest.iter().any(|line| line.contains("stopping")), "{rest:?}");
}

/// The processes of a process group.
fn group(leader: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc")
        .expect("Linux")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let stat = |pid: &String| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything: state, parent, group.
    let of = |pid: &String| stat(pid).rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok();
    let within = all.filter(|pid| of(pid) == Some(leader));
    within.map(|pid| pid.parse().expect("a process id")).collect()
}

#[test]
fn kept_runs_join_into_one_page() {
    let one = run(&["cycles", "--quick"]);
    let page = one.json.with_file_name("joined.page");
    let files = [one.json.to_str().expect("UTF-8"); 2];
    let output = load(&[&["report"], &files[..]].concat(), &page).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let joined = std::fs::read_to_string(&page).expect("a page");
    let charts = one.line["charts"].as_array().expect("charts").len();
    assert_eq!(joined.matches("<figure>").count(), 2 * charts);
    assert_eq!(joined.matches("<section").count(), 2);
}

#[test]
fn absent_server_is_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = load(&["race", "--server", "no-such-server"], folder.path()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("no-such-server") && said.contains("--store"),
        "{said}"
    );
}
