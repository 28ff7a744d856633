//! What the store itself can do: one script from many connections, without anything of ours in between.
//!
//! `redis-benchmark` where it is installed, else the same loop over plain sockets: 50 connections, each with so many
//! calls on the way.

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;

use super::Failure;

/// The benchmark of a run.
pub(super) struct Ceiling {
    program: String,
    url: String,
    installed: bool,
}

/// One script call.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub sha: &'a str,
    pub key: &'a str,
    pub cost: &'a str,
}

impl Ceiling {
    /// Uses `program` on the store at `url` if it can be started.
    pub(super) async fn new(program: &str, url: &str) -> Self {
        let installed = Command::new(program).arg("--version").output().await.is_ok();
        Self { program: program.to_owned(), url: url.to_owned(), installed }
    }

    /// What it is, for people.
    pub(super) fn word(&self) -> &str {
        if self.installed { &self.program } else { "plain sockets" }
    }

    /// Calls a second, of [`CONNECTIONS`] connections with `pipeline` calls on the way each.
    pub(super) async fn rate(&self, call: Call<'_>, calls: u32, pipeline: u32) -> Result<f64, Failure> {
        if self.installed {
            self.program(call, calls, pipeline).await
        } else {
            self.sockets(call, calls, pipeline).await
        }
    }

    async fn program(&self, call: Call<'_>, calls: u32, pipeline: u32) -> Result<f64, Failure> {
        let fail = |why: String| Failure::Peer(format!("{}: {why}", self.program));
        let output = Command::new(&self.program)
            .args(["-u", &self.url, "-c", &CONNECTIONS.to_string(), "-P", &pipeline.to_string()])
            .args(["-n", &calls.to_string(), "--csv", "EVALSHA", call.sha, "1", call.key, call.cost])
            .process_group(0)
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| fail(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let rate = text.lines().last().and_then(|line| line.split("\",\"").nth(1)?.parse().ok());
        rate.ok_or_else(|| fail(format!("{text} {}", String::from_utf8_lossy(&output.stderr))))
    }

    async fn sockets(&self, call: Call<'_>, calls: u32, pipeline: u32) -> Result<f64, Failure> {
        let address = plain_address(&self.url).ok_or_else(|| {
            Failure::Peer(format!("{} is not installed, and plain sockets reach no such URL", self.program))
        })?;
        let words = ["EVALSHA", call.sha, "1", call.key, call.cost];
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        let batch = command.repeat(pipeline as usize);
        let batches = calls.div_ceil(CONNECTIONS * pipeline);
        let mut connections = JoinSet::new();
        let start = std::time::Instant::now();
        for _ in 0..CONNECTIONS {
            let (address, batch) = (address.clone(), batch.clone());
            connections.spawn(async move {
                let mut stream = BufReader::new(TcpStream::connect(&address).await?);
                stream.get_ref().set_nodelay(true)?;
                let mut line = String::new();
                for _ in 0..batches {
                    stream.write_all(batch.as_bytes()).await?;
                    for _ in 0..pipeline {
                        line.clear();
                        if stream.read_line(&mut line).await? == 0 || line.starts_with('-') {
                            return Err(std::io::Error::other(format!("the store says {line:?}")));
                        }
                    }
                }
                Ok::<_, std::io::Error>(())
            });
        }
        while let Some(done) = connections.join_next().await {
            done?.map_err(|error| Failure::peer("plain sockets", error))?;
        }
        Ok(f64::from(batches * CONNECTIONS * pipeline) / start.elapsed().as_secs_f64())
    }
}

/// Host and port of a URL that needs no password and names no other database.
fn plain_address(url: &str) -> Option<String> {
    let rest = url.strip_prefix("redis://")?.trim_end_matches('/');
    let rest = rest.strip_suffix("/0").unwrap_or(rest);
    if rest.contains(['@', '/', '?']) {
        return None;
    }
    Some(if rest.contains(':') { rest.to_owned() } else { format!("{rest}:6379") })
}

/// Connections of the benchmark.
pub(super) const CONNECTIONS: u32 = 50;
