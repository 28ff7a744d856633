//! A worker that costs little: a process of its own which answers every audio message by one small `Results`.
//!
//! Its transcript is the number that the message began with, so that a client can tell which message was answered. It
//! counts what it was given; any plain HTTP request gets the counts as JSON. It ends with its standard input.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdin, Command};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::Failure;
use super::frames::{self, Frame};

/// What `load worker` can be told.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:0", value_name = "ADDRESS")]
    listen: SocketAddr,
}

/// Serves until standard input ends.
pub(super) async fn serve(options: Options) -> Result<(), Failure> {
    // One thread: a worker that spreads over all cores would disturb what is measured.
    let served = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(listen(options.listen))
    });
    served.await?.map_err(fault)
}

async fn listen(address: SocketAddr) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?);
    let counts = Arc::new(Counters::default());
    let ended = async {
        let mut nothing = [0; 64];
        while tokio::io::stdin().read(&mut nothing).await.is_ok_and(|bytes| bytes > 0) {}
    };
    let accept = async {
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            let counts = counts.clone();
            tokio::spawn(async move {
                // The peer has gone, which is its right.
                let _ = visit(socket, &counts).await;
            });
        }
    };
    tokio::select! {
        ended = accept => ended,
        () = ended => Ok(()),
    }
}

#[derive(Default)]
struct Counters {
    bytes: AtomicU64,
    messages: AtomicU64,
    connections: AtomicU64,
}

async fn visit(mut socket: TcpStream, counts: &Counters) -> std::io::Result<()> {
    let mut buffer = BytesMut::with_capacity(1024);
    let Some(head) = read_head(&mut socket, &mut buffer).await? else { return Ok(()) };
    let key = head.lines().filter_map(|line| line.split_once(':'));
    let mut key =
        key.filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-key")).map(|(_, key)| key.trim());
    let Some(key) = key.next() else {
        return socket.write_all(counts.answer().as_bytes()).await;
    };
    let accept = derive_accept_key(key.as_bytes());
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    socket.write_all(answer.as_bytes()).await?;
    counts.connections.fetch_add(1, Ordering::Relaxed);
    let mut out = Vec::new();
    loop {
        out.clear();
        let mut over = false;
        while let Some(frame) = Frame::next(&mut buffer) {
            over |= counts.take(&frame, &mut out);
        }
        if !out.is_empty() {
            socket.write_all(&out).await?;
        }
        if over || socket.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

impl Counters {
    /// Puts the answer to a frame into `out`; gives whether the connection ends behind it.
    fn take(&self, frame: &Frame, out: &mut Vec<u8>) -> bool {
        match frame.kind {
            frames::BINARY => {
                self.bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
                self.messages.fetch_add(1, Ordering::Relaxed);
                let number = frame.number().unwrap_or(0);
                let answer = format!(
                    r#"{{"type":"Results","channel_index":[0,1],"start":0.0,"duration":0.1,"is_final":true,"speech_final":false,"channel":{{"alternatives":[{{"transcript":"{number}","confidence":0.9,"words":[]}}]}}}}"#
                );
                frames::plain(out, frames::TEXT, answer.as_bytes());
                false
            }
            frames::TEXT if frame.text().windows(CLOSE_STREAM.len()).any(|word| word == CLOSE_STREAM) => {
                frames::plain(out, frames::TEXT, br#"{"type":"Metadata","duration":0.0,"channels":1}"#);
                frames::plain(out, frames::CLOSE, &1000u16.to_be_bytes());
                false
            }
            frames::CLOSE => true,
            _ => false,
        }
    }

    fn answer(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let body = json!({
            "bytes": count(&self.bytes), "messages": count(&self.messages), "connections": count(&self.connections),
        })
        .to_string();
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }
}

/// Reads up to the end of a head and leaves what follows in the buffer; nothing when the peer went before.
pub(super) async fn read_head(
    socket: &mut TcpStream,
    buffer: &mut BytesMut,
) -> std::io::Result<Option<String>> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = buffer.split_to(end + 4);
            return Ok(Some(String::from_utf8_lossy(&head).into_owned()));
        }
        if buffer.len() > HEAD_BYTES_MAX || socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// What a worker was given so far.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(super) struct Counts {
    /// Bytes of audio.
    pub(super) bytes: u64,
}

/// A worker process, or one that somebody else runs.
pub(super) struct Worker {
    child: Option<(Child, ChildStdin)>,
    /// Host and port.
    pub(super) address: String,
}

impl Worker {
    /// Starts this program once more, as a worker on a port of the system's choice.
    pub(super) async fn start() -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe().map_err(fault)?)
            .arg("worker")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Not reached by a ctrl-c on the terminal; it ends with our end of the pipe.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(fault)?;
        let silent = || fault("it does not say where it listens");
        let out = child.stdout.take().ok_or_else(silent)?;
        let line = tokio::time::timeout(START, BufReader::new(out).lines().next_line()).await;
        let address = line.map_err(|_| silent())?.map_err(fault)?.ok_or_else(silent)?;
        let life = child.stdin.take().ok_or_else(silent)?;
        Ok(Self { child: Some((child, life)), address })
    }

    /// One that runs already.
    pub(super) fn given(address: &str) -> Self {
        Self { child: None, address: address.to_owned() }
    }

    /// Where a gateway finds it.
    pub(super) fn url(&self) -> String {
        format!("ws://{}/v1/listen", self.address)
    }

    /// Its process, if it is ours.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(|(child, _)| child.id())
    }

    /// What it was given so far.
    pub(super) async fn counts(&self) -> Result<Counts, Failure> {
        let ask = async {
            let mut socket = TcpStream::connect(&self.address).await?;
            socket.write_all(b"GET /counts HTTP/1.1\r\nHost: worker\r\n\r\n").await?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        let answer = tokio::time::timeout(START, ask).await.map_err(fault)?.map_err(fault)?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).map_err(|_| fault("it does not count; only `load worker` does"))
    }
}

fn fault(why: impl std::fmt::Display) -> Failure {
    Failure::peer("worker", why)
}

const CLOSE_STREAM: &[u8] = b"CloseStream";
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// How long a worker may take to say where it listens, or to count.
const START: Duration = Duration::from_secs(10);
