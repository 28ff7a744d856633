//! The real program as a child process: `voxgate serve` with a configuration of its own, seen from outside.
//!
//! Public and admin ports are chosen by the system and read from what the program tells people at its start. All it
//! writes is kept, and printed when the test fails. It is killed with its handle.

use std::fmt::Write as _;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Notify;

use super::client::{Client, Credential, Refusal};
use super::{PATIENCE, signal, until};

const ADMIN_TOKEN: &str = "test-admin-token-0123456789";

/// How a gateway is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// `embedded`, or a store URL.
    pub store: String,
    /// Worker URLs; each gets room for 64 streams.
    pub workers: Vec<String>,
    /// More lines of `[store]`.
    pub store_more: String,
    /// More TOML, put behind the generated part (begin with a section).
    pub more: String,
    /// Added to its environment.
    pub environment: Vec<(String, String)>,
}

impl Setup {
    /// Embedded store and these workers.
    pub fn embedded(workers: &[String]) -> Self {
        Self::on("embedded", workers)
    }

    /// This store and these workers.
    pub fn on(store: &str, workers: &[String]) -> Self {
        Self {
            store: store.to_owned(),
            store_more: String::new(),
            workers: workers.to_vec(),
            more: String::new(),
            environment: Vec::new(),
        }
    }

    /// With a variable in its environment.
    #[must_use]
    pub fn with_environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With its wall clock shifted, such as `+600s`; its timers run on. Panics without libfaketime.
    #[must_use]
    pub fn clock(self, shift: &str) -> Self {
        self.fake_time().with_environment("FAKETIME", shift)
    }

    /// With its wall clock shifted by what `file` says, read anew at each look.
    #[must_use]
    pub fn clock_in(self, file: &std::path::Path) -> Self {
        self.fake_time()
            .with_environment("FAKETIME_TIMESTAMP_FILE", &file.display().to_string())
            .with_environment("FAKETIME_NO_CACHE", "1")
    }

    fn fake_time(self) -> Self {
        let folders = std::fs::read_dir("/usr/lib").expect("a Unix").filter_map(Result::ok);
        let library =
            folders.map(|folder| folder.path().join("faketime/libfaketime.so.1")).find(|file| file.is_file());
        let library = library.expect("libfaketime is not installed; run ./test, which installs it");
        self.with_environment("LD_PRELOAD", &library.display().to_string())
            .with_environment("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }

    /// With more lines in `[store]`.
    #[must_use]
    pub fn store_more(mut self, toml: &str) -> Self {
        self.store_more.push_str(toml);
        self
    }

    /// With more TOML.
    #[must_use]
    pub fn more(mut self, toml: &str) -> Self {
        self.more.push_str(toml);
        self
    }

    fn toml(&self) -> String {
        let mut text = format!(
            "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\ntoken = \"{ADMIN_TOKEN}\"\n\
             [store]\nurl = \"{}\"\n{}[log]\nformat = \"json\"\nlevel = \"voxgate=debug,info\"\n",
            self.store, self.store_more
        );
        for url in &self.workers {
            let _ = write!(text, "[[workers]]\nurl = \"{url}/v1/listen\"\nstreams_max = 64\n");
        }
        text + &self.more
    }
}

/// The running gateway.
pub struct Gateway {
    child: Child,
    said: Arc<Said>,
    /// Host and port of the public listener.
    pub public: String,
    /// Host and port of the admin listener.
    pub admin: String,
    _folder: tempfile::TempDir,
}

/// What the program wrote, and whether it has closed its mouth.
#[derive(Default)]
struct Said {
    text: Mutex<(String, bool)>,
    changed: Notify,
}

impl Gateway {
    /// Starts the program and waits until it listens; panics with its log when it does not.
    pub async fn start(setup: &Setup) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = folder.path().join("voxgate.toml");
        std::fs::write(&config, setup.toml()).expect("a writable folder");
        let mut child = Command::new(env!("CARGO_BIN_EXE_voxgate"))
            .args(["serve", "--config"])
            .arg(&config)
            .envs(setup.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        let said = Arc::new(Said::default());
        tokio::spawn(listen(child.stderr.take().expect("piped"), Arc::clone(&said)));
        let told = || {
            let text = said.text.lock().expect("no panic inside");
            assert!(!text.1, "the gateway did not start:\n{}", text.0);
            Some((address_in(&text.0, "streams", "ws://")?, address_in(&text.0, "admin API", "http://")?))
        };
        let (public, admin) = until("gateway", &said.changed, told).await;
        Self { child, said, public, admin, _folder: folder }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("still running")
    }

    /// Asks it to drain and leave.
    pub fn sigterm(&self) {
        signal::send("TERM", self.pid());
    }

    /// Kills it on the spot.
    pub fn sigkill(&self) {
        signal::send("KILL", self.pid());
    }

    /// Stops it in its tracks, until [`Gateway::sigcont`].
    pub fn sigstop(&self) {
        signal::send("STOP", self.pid());
    }

    /// Lets it go on.
    pub fn sigcont(&self) {
        signal::send("CONT", self.pid());
    }

    /// Waits for its end; panics when it does not come in time.
    pub async fn wait(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(3 * PATIENCE, self.child.wait()).await;
        ended.unwrap_or_else(|_| panic!("the gateway still runs:\n{}", self.log())).expect("our own child")
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        self.said.text.lock().expect("no panic inside").0.clone()
    }

    /// Waits until it has written `word`.
    pub async fn until_logged(&self, word: &str) {
        until(word, &self.said.changed, || self.log().contains(word).then_some(())).await;
    }

    /// Makes an account with `cap` units per day and gives a key of it.
    pub async fn account(&self, account: &str, cap: u64) -> String {
        self.account_with(account, cap, json!({})).await
    }

    /// As [`Gateway::account`], with more fields for the account (`share`, `period`, …).
    pub async fn account_with(&self, account: &str, cap: u64, more: Value) -> String {
        let mut body = json!({"id": account, "cap": cap, "period": "day"});
        merge(&mut body, more);
        self.post("/v1/accounts", body).await;
        self.key(account, json!({})).await
    }

    /// Another key of an account, with more fields (`session_cap`, `streams_max`, `models`, …).
    pub async fn key(&self, account: &str, more: Value) -> String {
        let mut body = json!({"label": "test"});
        merge(&mut body, more);
        let made = self.post(&format!("/v1/accounts/{account}/keys"), body).await;
        made["secret"].as_str().unwrap_or_else(|| panic!("a key's secret in {made}")).to_owned()
    }

    /// Where an account's budget stands.
    pub async fn balance(&self, account: &str) -> Balance {
        let value = self.get_json(&format!("/v1/accounts/{account}/balance")).await;
        let field = |name: &str| value[name].as_u64().unwrap_or_else(|| panic!("{name} in {value}"));
        let leases = field("leases");
        Balance {
            cap: field("cap"),
            taken: field("taken"),
            held: field("held"),
            settled: field("settled"),
            leases,
        }
    }

    /// The text of `/metrics`.
    pub async fn metrics(&self) -> String {
        self.call("GET", "/metrics", None).await.1
    }

    /// A metric's value, summed over its series whose labels hold all of `labels` (as `name="value"`).
    pub async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.metrics().await;
        let mut sum = 0.0;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (series_name, series_labels) = series.split_once('{').unwrap_or((series, ""));
            if series_name == name && labels.iter().all(|label| series_labels.contains(label)) {
                sum += value.parse::<f64>().expect("a number");
            }
        }
        sum
    }

    /// Opens a stream with a key in the header.
    pub async fn open(&self, target: &str, key: &str) -> Result<Client, Refusal> {
        Client::open(&self.public, target, Credential::Token(key)).await
    }

    /// Status of an admin path.
    pub async fn status(&self, path: &str) -> u16 {
        self.call("GET", path, None).await.0
    }

    async fn get_json(&self, path: &str) -> Value {
        let (status, text) = self.call("GET", path, None).await;
        assert!((200..300).contains(&status), "GET {path}: {status} {text}");
        serde_json::from_str(&text).expect("JSON")
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let (status, text) = self.call("POST", path, Some(body)).await;
        assert!((200..300).contains(&status), "POST {path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// One call to the admin listener: status and body.
    pub async fn call(&self, method: &'static str, path: &str, body: Option<Value>) -> (u16, String) {
        let url = format!("http://{}{path}", self.admin);
        let call = move || {
            let agent: ureq::Agent = ureq::Agent::config_builder()
                .http_status_as_error(false)
                .timeout_global(Some(PATIENCE))
                .build()
                .into();
            let request = http::Request::builder()
                .method(method)
                .uri(url)
                .header("authorization", format!("Bearer {ADMIN_TOKEN}"))
                .header("content-type", "application/json")
                .body(body.map(|body| body.to_string()).unwrap_or_default())
                .expect("a valid request");
            let mut response = agent.run(request).expect("the admin listener answers");
            (response.status().as_u16(), response.body_mut().read_to_string().expect("a text body"))
        };
        tokio::task::spawn_blocking(call).await.expect("no panic inside")
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of the gateway on {}:\n{}", self.public, self.log());
        }
    }
}

async fn listen(pipe: impl AsyncRead + Unpin, said: Arc<Said>) {
    let mut lines = BufReader::new(pipe).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut text = said.text.lock().expect("no panic inside");
        text.0.push_str(&line);
        text.0.push('\n');
        drop(text);
        said.changed.notify_waiters();
    }
    said.text.lock().expect("no panic inside").1 = true;
    said.changed.notify_waiters();
}

/// Host and port of a line such as `streams    ws://127.0.0.1:8080/v1/listen`.
fn address_in(text: &str, label: &str, scheme: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(label) && line.contains(scheme))?;
    let (_, rest) = line.split_once(scheme)?;
    Some(rest.split('/').next().unwrap_or(rest).to_owned())
}

/// An account's books, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Cap in force.
    pub cap: u64,
    /// Settled plus held.
    pub taken: u64,
    /// Reserved by open leases.
    pub held: u64,
    /// Charged by closed leases.
    pub settled: u64,
    /// Open leases.
    pub leases: u64,
}

fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}
