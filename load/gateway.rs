//! A gateway of its own for one run: `voxgate serve` as a child on ports that the system picks, stopped by its own
//! process id. Nothing of the caller's environment reaches it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr, Command};

use super::Failure;

/// The running gateway; killed with this handle.
pub(super) struct Gateway {
    child: Child,
    /// Host and port of its public side.
    pub address: String,
}

impl Gateway {
    /// Starts `program` on a store and one worker, and waits until it listens. Keys in the store begin with `prefix`.
    pub(super) async fn start(
        program: &Path,
        store: &str,
        prefix: &str,
        worker: &str,
    ) -> Result<Self, Failure> {
        let fail = |why: String| Failure::Peer(format!("{} serve: {why}", program.display()));
        let mut child = Command::new(program)
            .arg("serve")
            .env_clear()
            .envs([
                ("VOXGATE_LISTEN__ADDRESS", "127.0.0.1:0"),
                ("VOXGATE_ADMIN__ADDRESS", "127.0.0.1:0"),
                ("VOXGATE_ADMIN__TOKEN", &uuid::Uuid::new_v4().simple().to_string()),
                ("VOXGATE_STORE__URL", store),
                ("VOXGATE_STORE__PREFIX", prefix),
                ("VOXGATE_WORKERS__0__URL", worker),
                ("VOXGATE_WORKERS__0__STREAMS_MAX", "4096"),
                ("VOXGATE_LIMITS__STREAMS_MAX", "4096"),
                ("VOXGATE_LIMITS__PER_ADDRESS", "4096"),
                ("VOXGATE_LOG__LEVEL", "warn"),
            ])
            // Not reached by a ctrl-c on the terminal.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| fail(error.to_string()))?;
        let said = child.stderr.take().ok_or_else(|| fail("it has no stderr".into()))?;
        match tokio::time::timeout(START, listens(said)).await {
            Ok(Ok(address)) => Ok(Self { child, address }),
            Ok(Err(said)) => Err(fail(said)),
            Err(_) => Err(fail(format!("it does not listen within {START:?}"))),
        }
    }

    /// Ends it and waits for that.
    pub(super) async fn end(mut self) {
        let _ = self.child.kill().await;
    }
}

/// The address in the line `streams    ws://127.0.0.1:8080/v1/listen`, or all that was said instead. Reads on behind it,
/// so that the gateway never waits for a reader.
async fn listens(said: ChildStderr) -> Result<String, String> {
    let (mut lines, mut all) = (BufReader::new(said).lines(), String::new());
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some((_, rest)) = line.split_once("ws://").filter(|_| line.starts_with("streams")) {
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Ok(rest.split('/').next().unwrap_or(rest).to_owned());
        }
        all += &line;
        all.push(' ');
    }
    Err(all)
}

/// The `voxgate` beside this program, or else the one on the PATH.
pub(super) fn beside() -> PathBuf {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.join("voxgate")));
    beside.filter(|program| program.is_file()).unwrap_or_else(|| "voxgate".into())
}

/// How long a gateway may take to listen.
const START: Duration = Duration::from_secs(20);
