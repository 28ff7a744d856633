//! The vendor's own SDKs as they are, run as an application would run them; see `tests/sdk`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use super::PATIENCE;
use super::worker_process::root;

/// Which SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdk {
    /// `deepgram-sdk` for Python, blocking.
    PythonSync,
    /// `deepgram-sdk` for Python, asyncio.
    PythonAsync,
    /// `@deepgram/sdk` on Node.
    Node,
}

/// What an application saw: one event per line, and the exit status (0 clean, 3 refused, 4 anything else).
#[derive(Debug)]
pub struct SdkRun {
    /// Exit status.
    pub status: i32,
    /// Every event, in order.
    pub events: Vec<Value>,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Sdk {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::PythonSync, Self::PythonAsync, Self::Node];

    /// Streams `wav` to `http://{address}` and waits for the end.
    ///
    /// `None` when the SDK is not installed and this run may do without (see [`super::all_tools_required`]).
    pub async fn stream(self, address: &str, wav: &Path, options: &[&str]) -> Option<SdkRun> {
        let mut command = self.command()?;
        command.arg(format!("http://{address}")).arg(wav).args(options);
        let running = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let output = running.expect("the SDK program starts").wait_with_output();
        let output = tokio::time::timeout(4 * PATIENCE, output).await.expect("the SDK program ends in time");
        let output = output.expect("readable output");
        let text = String::from_utf8_lossy(&output.stdout);
        Some(SdkRun {
            status: output.status.code().unwrap_or(-1),
            events: text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    fn command(self) -> Option<Command> {
        let mut command;
        match self {
            Self::PythonSync | Self::PythonAsync => {
                command = Command::new(python()?);
                command.arg(root().join("tests/sdk/deepgram_py.py"));
                if self == Self::PythonAsync {
                    command.arg("--async");
                }
            }
            Self::Node => {
                command = Command::new("node");
                command.arg(node_folder()?.join("deepgram_js.mjs"));
            }
        }
        Some(command)
    }
}

impl SdkRun {
    /// The events of one kind (`message`, `close`, `error`, `rejected`, `open`, …).
    pub fn of(&self, kind: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| event["event"] == kind).collect()
    }

    /// The messages' bodies of one type (`Results`, `Metadata`, `Error`, …).
    pub fn messages(&self, kind: &str) -> Vec<&Value> {
        self.of("message")
            .into_iter()
            .map(|event| &event["data"])
            .filter(|data| data["type"] == kind)
            .collect()
    }

    /// The message types in the order of arrival.
    pub fn order(&self) -> Vec<&str> {
        self.of("message").into_iter().map(|event| event["data"]["type"].as_str().unwrap_or("?")).collect()
    }

    /// Messages that the SDK could not place; an application would fail on them.
    pub fn strangers(&self) -> usize {
        self.of("message")
            .iter()
            .filter(|event| event["cls"] == "NoneType" || event["data"].is_null())
            .count()
    }
}

/// The Python that holds the SDK, from `VOXGATE_PYTHON` or `tests/.venv`; `None` only where it may be missing.
pub fn python() -> Option<PathBuf> {
    let path = std::env::var_os("VOXGATE_PYTHON").map(PathBuf::from);
    let path = path.unwrap_or_else(|| root().join("tests/.venv/bin/python"));
    there(path, "the tests' Python")
}

fn node_folder() -> Option<PathBuf> {
    let folder = std::env::var_os("VOXGATE_NODE_SDK").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| root().join("tests/sdk"));
    there(folder.join("node_modules/@deepgram/sdk/package.json"), "the Node SDK").map(|_| folder)
}

fn there(path: PathBuf, what: &str) -> Option<PathBuf> {
    if path.exists() {
        return Some(path);
    }
    assert!(!super::all_tools_required(), "{what} is missing ({}); run ./test", path.display());
    eprintln!("passed over: {what} is not installed; ./test installs it");
    None
}
