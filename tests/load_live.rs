//! The load driver's live runs, as a skeptic starts them: nothing unpaid, nothing charged twice, nothing lost, and
//! nothing left running.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{PATIENCE, signal};

#[test]
fn live_streams_lose_nothing() {
    let report = Load::start(&["sessions", "--quick"]).report();

    let data = &report["data"];
    assert_eq!(data["faults"], 0, "{data}");
    for path in ["direct", "embedded", "redis"] {
        let of = |row: &&Value| row["path"] == path && row["scenario"] == "a";
        let row = data["rounds"].as_array().unwrap().iter().find(of).unwrap_or_else(|| panic!("no {path}"));
        let round = &row["rounds"][0];
        assert!(round["chunks"].as_u64().unwrap() >= 100, "{path}: {round}");
        for process in ["client", "worker"] {
            assert!(round["cpu"][process].as_f64().unwrap() > 0.0, "{path}: {round}");
        }
    }
    for point in data["points"].as_array().unwrap() {
        assert_eq!(point["streams"], 100);
        assert!(point["idle_kib"].as_f64().unwrap() > 0.0, "{point}");
        assert!(point["round"]["chunks"].as_u64().unwrap() >= 1000, "{point}");
    }
}

#[test]
fn slow_scripts_cost_nobody_anything() {
    let report = Load::start(&["busy", "--quick"]).report();

    let data = &report["data"];
    for nothing in ["unpaid", "charged_twice", "free", "faults"] {
        assert_eq!(data[nothing], 0, "{nothing}: {data}");
    }
    let books = &data["books"];
    assert!(books["forwarded"].as_u64().unwrap() > 10_000, "{books}");
    assert_eq!(books["settled"], books["forwarded"]);
    assert!(books["busy"].as_u64().unwrap() > 0, "the gateway was told BUSY: {books}");
    let cases = data["phases"][0]["cases"].as_array().unwrap();
    let kills: BTreeSet<(&str, &str)> =
        cases.iter().filter_map(|case| Some((case["kind"].as_str()?, case["kill"].as_str()?))).collect();
    for kill in [("reading", "OK"), ("writing", "UNKILLABLE"), ("one command", "NOTBUSY")] {
        assert!(kills.contains(&kill), "{kill:?} in {kills:?}");
    }
    for phase in data["phases"].as_array().unwrap() {
        assert_eq!(phase["closes"], serde_json::json!({}), "{phase}");
        assert_eq!(phase["ended_badly"], 0);
        let recovers = |case: &Value| case["felt"]["recovery_ms"].is_number();
        assert!(phase["cases"].as_array().unwrap().iter().any(recovers), "{phase}");
    }
}

#[test]
fn interrupted_load_leaves_nothing() {
    let mut load = Load::start(&["sessions", "--quick", "--scenarios", "a"]);
    load.until_busy();

    signal::send("TERM", load.child.id());

    load.until_over();
    assert_eq!(load.left(), Vec::<String>::new(), "left running");
}

/// The driver, and all that it was seen to start, by process id.
struct Load {
    child: Child,
    folder: tempfile::TempDir,
    started: BTreeMap<u32, String>,
}

impl Load {
    fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| fs::File::create(folder.path().join(name)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_load"))
            .args(arguments)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .unwrap();
        Self { child, folder, started: BTreeMap::new() }
    }

    /// Its one line, once it has ended well and nothing that it started runs.
    fn report(mut self) -> Value {
        let status = self.until_over();
        assert!(status.success(), "{status}: {}", self.text("err"));
        assert!(self.started.len() >= 3, "worker, gateway and store were seen: {:?}", self.started);
        assert_eq!(self.left(), Vec::<String>::new(), "left running");
        serde_json::from_str(&self.text("out")).unwrap()
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    fn until_over(&mut self) -> ExitStatus {
        let mut status = None;
        let deadline = Instant::now() + 6 * PATIENCE;
        while status.is_none() {
            assert!(Instant::now() < deadline, "still runs: {}", self.text("err"));
            self.look();
            status = self.child.try_wait().unwrap();
        }
        status.unwrap()
    }

    /// Waits until it says that a first round is done: by then everything runs.
    fn until_busy(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.text("err").contains("round 1") {
            assert!(Instant::now() < deadline, "no round: {:?}, {}", self.started, self.text("err"));
            self.look();
        }
    }

    /// Notes the children that it has now.
    fn look(&mut self) {
        for (pid, (name, parent)) in processes() {
            if parent == self.child.id() {
                self.started.insert(pid, name);
            }
        }
        std::thread::sleep(Duration::from_millis(20)); // polling a foreign process
    }

    /// What it started and still runs.
    fn left(&self) -> Vec<String> {
        let now = processes();
        let lives = |(pid, name): &(&u32, &String)| now.get(pid).is_some_and(|(now, _)| now == *name);
        self.started.iter().filter(lives).map(|(pid, name)| format!("{name} {pid}")).collect()
    }
}

/// Name and parent of every process that is not a zombie.
fn processes() -> BTreeMap<u32, (String, u32)> {
    let stats = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    // PID (NAME) STATE PARENT ...
    let live = stats.filter_map(|stat| {
        let (pid, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let (state, rest) = rest.split_once(' ')?;
        let parent = rest.split(' ').next()?.parse().ok()?;
        (state != "Z").then(|| Some((pid.parse().ok()?, (name.to_owned(), parent))))?
    });
    live.collect()
}

impl Drop for Load {
    fn drop(&mut self) {
        // Ends what it started too.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            signal::send("TERM", self.child.id());
        }
        let _ = self.child.wait();
    }
}
