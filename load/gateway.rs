//! A real `voxgate serve` as a child process: found beside this program, on ports the system chose, stopped by its own
//! process id. Its account and key are made by its own admin API.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use super::{Failure, process};

/// The running gateway; killed with this handle, unless [`Gateway::stop`] ended it in order.
pub(super) struct Gateway {
    child: Child,
    said: Said,
    /// Host and port of its public listener.
    pub(super) address: String,
    admin: String,
}

/// What it wrote, and whether it writes no more.
type Said = Arc<Mutex<(String, bool)>>;

/// An account's books, in units.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Balance {
    /// Reserved by open leases.
    pub(super) held: u64,
    /// Charged by closed ones.
    pub(super) settled: u64,
}

impl Gateway {
    /// Starts `program` on a store and one worker, and waits until it listens. Keys in the store begin with `prefix`.
    pub(super) async fn start(
        program: &Path,
        store: &str,
        prefix: &str,
        worker: &str,
    ) -> Result<Self, Failure> {
        let failed = |error| fault(format!("{} serve: {error}", program.display()));
        // Nothing of the caller's environment, and a folder without voxgate.toml: this is the whole configuration.
        let mut child = Command::new(program)
            .arg("serve")
            .env_clear()
            .envs(settings(store, prefix, worker))
            .current_dir("/")
            // Not reached by a ctrl-c on the terminal: it is stopped in order.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let said = Said::default();
        if let Some(pipe) = child.stderr.take() {
            tokio::spawn(listen(pipe, said.clone()));
        }
        let (address, admin) = told(&said).await?;
        Ok(Self { child, said, address, admin })
    }

    /// Its process id; nothing once it has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Makes an account with more budget than any run spends, and gives a key of it.
    pub(super) async fn key(&self, account: &str) -> Result<String, Failure> {
        self.call("POST", "/v1/accounts", json!({"id": account, "cap": CAP, "period": "day"})).await?;
        let path = format!("/v1/accounts/{account}/keys");
        let key = self.call("POST", &path, json!({"label": "load", "streams_max": STREAMS_MAX})).await?;
        let key: Value = serde_json::from_str(&key).map_err(fault)?;
        Ok(key
            .get("secret")
            .and_then(Value::as_str)
            .ok_or_else(|| fault("no secret in the key it made"))?
            .to_owned())
    }

    /// An account's books.
    pub(super) async fn balance(&self, account: &str) -> Result<Balance, Failure> {
        let text = self.call("GET", &format!("/v1/accounts/{account}/balance"), Value::Null).await?;
        serde_json::from_str(&text).map_err(fault)
    }

    /// Its metrics, as they are now.
    pub(super) async fn metrics(&self) -> Result<Metrics, Failure> {
        Ok(Metrics(self.call("GET", "/metrics", Value::Null).await?))
    }

    /// Lets it drain and end; kills it when it takes too long, and says so.
    pub(super) async fn stop(mut self) -> Result<(), Failure> {
        if let Some(pid) = self.child.id() {
            process::terminate(pid);
        }
        match tokio::time::timeout(STOP, self.child.wait()).await {
            Ok(status) if status.as_ref().is_ok_and(|status| status.success()) => Ok(()),
            Ok(status) => Err(fault(format!("ended with {status:?}: {}", self.log()))),
            Err(_) => {
                let _ = self.child.kill().await;
                Err(fault(format!("did not end in {STOP:?}: {}", self.log())))
            }
        }
    }

    /// The end of what it wrote.
    fn log(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = said.0.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    async fn call(&self, method: &'static str, path: &str, body: Value) -> Result<String, Failure> {
        let url = format!("http://{}{path}", self.admin);
        let place = path.to_owned();
        let call = move || {
            let agent: ureq::Agent = ureq::Agent::config_builder()
                .http_status_as_error(false)
                .timeout_global(Some(ADMIN))
                .build()
                .into();
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let request = http::Request::builder()
                .method(method)
                .uri(url)
                .header("authorization", format!("Bearer {ADMIN_TOKEN}"))
                .header("content-type", "application/json")
                .body(body)
                .map_err(fault)?;
            let mut response = agent.run(request).map_err(fault)?;
            let text = response.body_mut().read_to_string().map_err(fault)?;
            match response.status().as_u16() {
                200..300 => Ok(text),
                status => Err(fault(format!("{method} {place}: {status} {text}"))),
            }
        };
        tokio::task::spawn_blocking(call).await?
    }
}

/// The `voxgate` beside this program, or else the one on the PATH.
pub(super) fn beside() -> PathBuf {
    let beside = std::env::current_exe().map(|own| own.with_file_name("voxgate"));
    beside.ok().filter(|program| program.is_file()).unwrap_or_else(|| "voxgate".into())
}

/// The text of `/metrics`.
pub(super) struct Metrics(String);

impl Metrics {
    /// A metric's value, summed over its series whose labels hold `label` (as `name="value"`).
    pub(super) fn sum(&self, name: &str, label: &str) -> f64 {
        let lines = self.0.lines().filter(|line| !line.starts_with('#'));
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (metric, labels) = series.split_once('{').unwrap_or((series, ""));
            (metric == name && labels.contains(label)).then(|| value.parse::<f64>().unwrap_or(0.0))
        };
        lines.filter_map(value).sum()
    }
}

/// Its whole configuration, as environment.
fn settings(store: &str, prefix: &str, worker: &str) -> Vec<(&'static str, String)> {
    let many = STREAMS_MAX.to_string();
    vec![
        ("VOXGATE_LISTEN__ADDRESS", "127.0.0.1:0".into()),
        ("VOXGATE_ADMIN__ADDRESS", "127.0.0.1:0".into()),
        ("VOXGATE_ADMIN__TOKEN", ADMIN_TOKEN.into()),
        ("VOXGATE_STORE__URL", store.into()),
        ("VOXGATE_STORE__PREFIX", prefix.into()),
        ("VOXGATE_WORKERS__0__URL", worker.into()),
        ("VOXGATE_WORKERS__0__STREAMS_MAX", many.clone()),
        ("VOXGATE_LIMITS__STREAMS_MAX", many.clone()),
        ("VOXGATE_LIMITS__PER_ADDRESS", many),
        ("VOXGATE_LIMITS__DRAIN", "5s".into()),
        ("VOXGATE_LOG__LEVEL", "error".into()),
        ("VOXGATE_LOG__FORMAT", "json".into()),
    ]
}

async fn listen(pipe: impl AsyncRead + Unpin, said: Said) {
    let mut lines = BufReader::new(pipe).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.0.len() < LOG_BYTES_MAX {
            said.0.push_str(&line);
            said.0.push('\n');
        }
    }
    said.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
}

/// Waits until it has told where it listens: public and admin address.
async fn told(said: &Said) -> Result<(String, String), Failure> {
    let until = tokio::time::Instant::now() + START;
    loop {
        let (text, over) = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let (Some(public), Some(admin)) =
            (address_in(&text, "streams", "ws://"), address_in(&text, "admin API", "http://"))
        {
            return Ok((public, admin));
        }
        if over || tokio::time::Instant::now() > until {
            return Err(fault(format!("it does not start: {text}")));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Host and port of a line such as `streams    ws://127.0.0.1:8080/v1/listen`.
fn address_in(text: &str, label: &str, scheme: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(label) && line.contains(scheme))?;
    let (_, rest) = line.split_once(scheme)?;
    Some(rest.split('/').next().unwrap_or(rest).to_owned())
}

fn fault(why: impl std::fmt::Display) -> Failure {
    Failure::peer("gateway", why)
}

/// Only this program's children know it, and they listen on loopback.
const ADMIN_TOKEN: &str = "load-admin-token-of-a-private-gateway";
/// Units of budget: some thousand years of audio.
const CAP: u64 = 1_000_000_000_000_000;
const STREAMS_MAX: u32 = 65_536;
const LOG_BYTES_MAX: usize = 1024 * 1024;
const START: Duration = Duration::from_secs(30);
const ADMIN: Duration = Duration::from_secs(20);
/// Drain, last words, settles.
const STOP: Duration = Duration::from_secs(30);
