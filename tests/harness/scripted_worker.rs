//! A worker that does what its script says: a real WebSocket server which speaks the Deepgram worker dialect.
//!
//! It records every frame with its time, answers with results that tell how much audio they cover, and can fail
//! in each way a worker may: slow or refused handshake, close with any code, lost TCP, no reading, late or no
//! answers, junk. Its words say nothing about the audio; real words are the real model's to show.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use super::until;

/// What a scripted worker does.
#[derive(Clone, Debug)]
pub struct Script {
    /// Time between accepting TCP and answering the handshake.
    pub connect_after: Duration,
    /// Answer handshakes with this HTTP status instead.
    pub refuse: Option<u16>,
    /// When results are sent.
    pub results: Results,
    /// Time between audio and its result.
    pub answer_after: Duration,
    /// What goes wrong, once a connection has sent so many bytes of audio.
    pub fault: Option<(usize, Fault)>,
    /// Letters that each transcript is filled up with.
    pub wordy: usize,
    /// Whether `CloseStream` is answered by a last result, `Metadata` and close 1000.
    pub finishes: bool,
}

/// When results are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// Never, but for the last one.
    Never,
    /// One per audio message.
    PerMessage,
    /// One per so many milliseconds of audio.
    PerMs(u64),
}

/// How a connection goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Close frame with code and reason.
    Close(u16, &'static str),
    /// TCP is reset without a close frame.
    Reset,
    /// Nothing is read any more, nothing answered.
    StopReading,
    /// Nothing is answered any more; reading goes on.
    FallSilent,
    /// This text is sent, then all goes on.
    JunkText(String),
    /// These bytes are sent as a binary message, then all goes on.
    JunkBytes(Vec<u8>),
}

impl Default for Script {
    fn default() -> Self {
        Self {
            connect_after: Duration::ZERO,
            refuse: None,
            results: Results::PerMessage,
            answer_after: Duration::ZERO,
            fault: None,
            wordy: 0,
            finishes: true,
        }
    }
}

/// One frame as the worker got it.
#[derive(Clone, Debug)]
pub struct Got {
    /// When it was read.
    pub at: Instant,
    /// The message.
    pub message: Message,
}

/// Everything one connection brought.
#[derive(Clone, Debug)]
pub struct Visit {
    /// Path and query of its handshake.
    pub target: String,
    /// `Authorization` of its handshake.
    pub authorization: Option<String>,
    /// Its frames in order.
    pub frames: Vec<Got>,
    /// Its audio, put together.
    pub audio: Vec<u8>,
    /// The types of its text messages in order (`CloseStream`, `KeepAlive`, …).
    pub texts: Vec<String>,
    /// It has ended.
    pub over: bool,
}

/// The running worker; it and its connections end with this handle.
pub struct ScriptedWorker {
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    script: Mutex<Script>,
    visits: Mutex<Vec<Visit>>,
    refused: Mutex<usize>,
    changed: Notify,
}

impl ScriptedWorker {
    /// Starts a worker on a port of its own.
    pub async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let shared = Arc::new(Shared {
            script: Mutex::new(script),
            visits: Mutex::default(),
            refused: Mutex::new(0),
            changed: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, _tasks: tasks }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL, without a path.
    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Another script for connections to come.
    pub fn play(&self, script: Script) {
        *self.shared.script.lock().expect("no panic inside") = script;
    }

    /// Every connection that was upgraded so far.
    pub fn visits(&self) -> Vec<Visit> {
        self.shared.visits.lock().expect("no panic inside").clone()
    }

    /// Handshakes refused so far.
    pub fn refused(&self) -> usize {
        *self.shared.refused.lock().expect("no panic inside")
    }

    /// All audio bytes of all connections, counted.
    pub fn audio_bytes(&self) -> usize {
        self.shared.visits.lock().expect("no panic inside").iter().map(|visit| visit.audio.len()).sum()
    }

    /// Waits until the visits satisfy `done`; panics when they do not in time.
    pub async fn until(&self, what: &str, mut done: impl FnMut(&[Visit]) -> bool) -> Vec<Visit> {
        let visits = || {
            let visits = self.shared.visits.lock().expect("no panic inside");
            done(&visits).then(|| visits.clone())
        };
        until(what, &self.shared.changed, visits).await
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut visits = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("our own listener");
        while visits.try_join_next().is_some() {}
        let _ = stream.set_nodelay(true);
        visits.spawn(visit(stream, Arc::clone(&shared)));
    }
}

async fn visit(mut stream: TcpStream, shared: Arc<Shared>) {
    if !asks_upgrade(&stream).await {
        // A health check: it is always well.
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
        let _ = stream.shutdown().await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        return;
    }
    let script = shared.script.lock().expect("no panic inside").clone();
    tokio::time::sleep(script.connect_after).await;
    if let Some(status) = script.refuse {
        let answer = format!("HTTP/1.1 {status} Refused\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        *shared.refused.lock().expect("no panic inside") += 1;
        shared.changed.notify_waiters();
        return;
    }
    let (mut target, mut authorization) = (String::new(), None);
    #[expect(clippy::result_large_err, reason = "the library's own callback type")]
    let look = |request: &Request, response: Response| {
        target = request.uri().to_string();
        let header = request.headers().get("authorization");
        authorization = header.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        Ok(response)
    };
    let Ok(socket) = tokio_tungstenite::accept_hdr_async(stream, look).await else { return };
    let visit = Visit { target, authorization, frames: vec![], audio: vec![], texts: vec![], over: false };
    let clock = AudioClock::of(&visit.target);
    let number = shared.update(|visits| {
        visits.push(visit);
        visits.len() - 1
    });
    Player { socket, script, clock, shared: Arc::clone(&shared), number, silent: false }.play().await;
    shared.update(|visits| visits[number].over = true);
}

/// Whether the head that waits to be read asks for a WebSocket; reads nothing away.
async fn asks_upgrade(stream: &TcpStream) -> bool {
    let mut head = vec![0; 16 * 1024];
    loop {
        let Ok(length @ 1..) = stream.peek(&mut head).await else { return false };
        let text = String::from_utf8_lossy(&head[..length]).to_ascii_lowercase();
        if text.contains("\r\n\r\n") {
            return text.contains("upgrade: websocket");
        }
        tokio::time::sleep(Duration::from_millis(1)).await; // what was seen once is not told again
    }
}

impl Shared {
    fn update<T>(&self, change: impl FnOnce(&mut Vec<Visit>) -> T) -> T {
        let result = change(&mut self.visits.lock().expect("no panic inside"));
        self.changed.notify_waiters();
        result
    }
}

/// One connection's script in play.
struct Player {
    socket: WebSocketStream<TcpStream>,
    script: Script,
    clock: AudioClock,
    shared: Arc<Shared>,
    number: usize,
    silent: bool,
}

impl Player {
    async fn play(mut self) {
        while let Some(Ok(message)) = self.socket.next().await {
            self.shared.update(|visits| visits[self.number].take(&message));
            let goes_on = match &message {
                Message::Binary(bytes) => self.audio(bytes.len()).await,
                Message::Text(text) => self.text(text).await,
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => true,
                Message::Close(_) => {
                    let _ = self.socket.flush().await;
                    false
                }
            };
            if !goes_on {
                break;
            }
        }
    }

    async fn audio(&mut self, bytes: usize) -> bool {
        let before = self.clock.bytes;
        self.clock.bytes += bytes;
        let due = match self.script.results {
            Results::Never => false,
            Results::PerMessage => true,
            Results::PerMs(ms) => self.clock.ms() - self.clock.told_ms >= ms,
        };
        if due {
            tokio::time::sleep(self.script.answer_after).await;
            if !self.result(false).await {
                return false;
            }
        }
        match self.script.fault.clone() {
            Some((after, fault)) if before < after && self.clock.bytes >= after => self.fail(fault).await,
            Some(_) | None => true,
        }
    }

    async fn text(&mut self, text: &str) -> bool {
        let kind = serde_json::from_str::<Value>(text).map(|value| value["type"].clone()).unwrap_or_default();
        if kind == "Finalize" {
            return self.result(true).await;
        }
        if kind == "CloseStream" && self.script.finishes {
            tokio::time::sleep(self.script.answer_after).await;
            self.result(true).await;
            self.send(&self.clock.metadata()).await;
            let _ = self.socket.close(Some(CloseFrame { code: 1000.into(), reason: "".into() })).await;
        }
        true
    }

    async fn fail(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::Close(code, reason) => {
                let _ =
                    self.socket.close(Some(CloseFrame { code: code.into(), reason: reason.into() })).await;
                true
            }
            Fault::Reset => {
                let _ = self.socket.get_ref().set_zero_linger();
                false
            }
            Fault::StopReading => std::future::pending().await,
            Fault::FallSilent => {
                self.silent = true;
                true
            }
            Fault::JunkText(text) => self.socket.send(Message::text(text)).await.is_ok(),
            Fault::JunkBytes(bytes) => self.socket.send(Message::Binary(bytes.into())).await.is_ok(),
        }
    }

    async fn result(&mut self, last: bool) -> bool {
        let value = self.clock.result(last, self.script.wordy);
        self.send(&value).await
    }

    async fn send(&mut self, value: &Value) -> bool {
        self.silent || self.socket.send(Message::text(value.to_string())).await.is_ok()
    }
}

impl Visit {
    fn take(&mut self, message: &Message) {
        self.frames.push(Got { at: Instant::now(), message: message.clone() });
        match message {
            Message::Binary(bytes) => self.audio.extend_from_slice(bytes),
            Message::Text(text) => {
                let value: Value = serde_json::from_str(text).unwrap_or_default();
                self.texts.push(value["type"].as_str().unwrap_or("?").to_owned());
            }
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => {}
        }
    }
}

/// Turns bytes of audio into time, by what the handshake's query says.
struct AudioClock {
    bytes_per_second: usize,
    bytes: usize,
    told_ms: u64,
}

impl AudioClock {
    fn of(target: &str) -> Self {
        let asked = |name: &str, default: &str| {
            let pairs = target.split(['?', '&']).filter_map(|pair| pair.split_once('='));
            pairs
                .filter(|(key, _)| *key == name)
                .map(|(_, value)| value.to_owned())
                .next()
                .unwrap_or_else(|| default.to_owned())
        };
        let sample = match asked("encoding", "linear16").as_str() {
            "linear32" => 4,
            "mulaw" | "alaw" => 1,
            _ => 2,
        };
        let rate: usize = asked("sample_rate", "16000").parse().unwrap_or(16_000);
        let channels: usize = asked("channels", "1").parse().unwrap_or(1);
        Self { bytes_per_second: (rate * channels * sample).max(1), bytes: 0, told_ms: 0 }
    }

    fn ms(&self) -> u64 {
        (self.bytes * 1000 / self.bytes_per_second) as u64
    }

    fn result(&mut self, last: bool, wordy: usize) -> Value {
        let (start, end) = (self.told_ms, self.ms());
        self.told_ms = end;
        let transcript = format!("to {end}{}", "x".repeat(wordy));
        json!({
            "type": "Results", "channel_index": [0, 1], "start": start as f64 / 1000.0,
            "duration": (end - start) as f64 / 1000.0, "is_final": true, "speech_final": last,
            "from_finalize": last,
            "channel": {"alternatives": [{"transcript": transcript, "confidence": 0.0, "words": []}]},
        })
    }

    fn metadata(&self) -> Value {
        json!({"type": "Metadata", "duration": self.bytes as f64 / self.bytes_per_second as f64, "channels": 1})
    }
}
