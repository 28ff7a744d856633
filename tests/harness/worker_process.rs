//! The real speech worker as a child process; it ends with its handle, because its standard input then closes.

use std::path::PathBuf;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::PATIENCE;

/// The running reference worker.
pub struct WorkerProcess {
    child: Child,
    /// Its WebSocket URL.
    pub url: String,
}

impl WorkerProcess {
    /// Starts the worker with the interpreter that `VOXGATE_PYTHON` names and waits until its model is loaded.
    ///
    /// `None` when there is no such interpreter and this run may do without (see [`super::all_tools_required`]).
    pub async fn start() -> Option<Self> {
        let python = super::sdk::python()?;
        let mut child = Command::new(python)
            .arg(root().join("clients/worker/worker.py"))
            .args(["--port", "0", "--exit-with-stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the worker starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let url = tokio::time::timeout(3 * PATIENCE, async {
            while let Some(line) = lines.next_line().await.expect("readable output") {
                let Ok(word) = serde_json::from_str::<serde_json::Value>(&line) else { continue };
                if word["ready"] == true {
                    return word["url"].as_str().expect("a url").to_owned();
                }
            }
            panic!("the worker ended before it was ready");
        })
        .await
        .expect("the worker is ready in time");
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Some(Self { child, url })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("still running")
    }
}

/// The repository's root.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
