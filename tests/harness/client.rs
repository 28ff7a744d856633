//! A Deepgram-style WebSocket client: opens as SDKs do, sends audio, and keeps all it is told.
//!
//! Reading goes on in a task of its own, so a test can send without ever blocking on what it was sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream::SplitSink;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::{PATIENCE, until};

type Socket = WebSocketStream<TcpStream>;

/// How the key travels.
#[derive(Clone, Copy, Debug)]
pub enum Credential<'a> {
    /// None at all.
    Nothing,
    /// `Authorization: Token K`.
    Token(&'a str),
    /// `Authorization: Bearer T`.
    Bearer(&'a str),
    /// `Sec-WebSocket-Protocol: token, K`, as browsers do.
    Subprotocol(&'a str),
}

/// The query of 16 kHz mono linear16 with interim results, as the SDKs send it.
pub const LINEAR16: &str =
    "/v1/listen?model=nova-3&encoding=linear16&sample_rate=16000&channels=1&interim_results=true";

const NONCE: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// A handshake that was refused.
#[derive(Debug)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body as JSON, or null.
    pub body: Value,
}

/// An open stream.
pub struct Client {
    sink: SplitSink<Socket, Message>,
    reader: JoinHandle<()>,
    seen: Arc<Seen>,
    /// Headers of the 101, names in lower case.
    pub headers: BTreeMap<String, String>,
}

#[derive(Default)]
struct Seen {
    heard: Mutex<Heard>,
    changed: Notify,
}

/// All that a client was told.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Every text message.
    pub messages: Vec<Value>,
    /// Pongs.
    pub pongs: usize,
    /// Code and reason of the close frame.
    pub close: Option<(u16, String)>,
    /// Why the connection ended without a close frame.
    pub error: Option<String>,
    /// Nothing more comes.
    pub over: bool,
}

impl Heard {
    /// The messages of one type.
    pub fn of(&self, kind: &str) -> Vec<&Value> {
        self.messages.iter().filter(|message| message["type"] == kind).collect()
    }

    /// The message types in the order of arrival.
    pub fn order(&self) -> Vec<&str> {
        self.messages.iter().map(|message| message["type"].as_str().unwrap_or("?")).collect()
    }

    /// `Metadata.duration` in whole milliseconds; panics unless exactly one `Metadata` came.
    pub fn metadata_ms(&self) -> u64 {
        let all = self.of("Metadata");
        assert_eq!(all.len(), 1, "one Metadata in {:?}", self.order());
        (all[0]["duration"].as_f64().expect("a number") * 1000.0).round() as u64
    }

    /// The final transcripts, joined by spaces.
    pub fn transcript(&self) -> String {
        let finals = self.of("Results").into_iter().filter(|result| result["is_final"] == true);
        let words = finals.filter_map(|result| result["channel"]["alternatives"][0]["transcript"].as_str());
        words.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// The close code; panics when the connection ended without one.
    pub fn code(&self) -> u16 {
        self.close.as_ref().unwrap_or_else(|| panic!("no close frame: {:?}", self.error)).0
    }

    /// The close reason; empty when there was none.
    pub fn reason(&self) -> &str {
        self.close.as_ref().map_or("", |(_, reason)| reason)
    }
}

impl Client {
    /// Opens a stream at `address` (host and port) on `target` (path and query).
    pub async fn open(address: &str, target: &str, credential: Credential<'_>) -> Result<Self, Refusal> {
        Self::open_with(address, target, credential, &[]).await
    }

    /// As [`Client::open`], with further request headers.
    pub async fn open_with(
        address: &str,
        target: &str,
        credential: Credential<'_>,
        extra: &[(&str, &str)],
    ) -> Result<Self, Refusal> {
        let mut stream = TcpStream::connect(address).await.expect("the gateway listens");
        stream.set_nodelay(true).expect("a settable socket");
        stream
            .write_all(head(address, target, credential, extra).as_bytes())
            .await
            .expect("the gateway reads");
        let (status, headers) =
            tokio::time::timeout(PATIENCE, answer(&mut stream)).await.expect("an answer in time");
        if status != 101 {
            return Err(Refusal { status, body: body(&mut stream, &headers).await, headers });
        }
        let accept = headers.get("sec-websocket-accept").map(String::as_str);
        assert_eq!(accept, Some(derive_accept_key(NONCE.as_bytes()).as_str()), "the accept key fits");
        let socket = Socket::from_raw_socket(stream, Role::Client, None).await;
        let (sink, mut source) = socket.split();
        let seen = Arc::new(Seen::default());
        let writer = Arc::clone(&seen);
        let reader = tokio::spawn(async move {
            while let Some(message) = source.next().await {
                writer.note(message);
            }
            writer.update(|heard| heard.over = true);
        });
        Ok(Self { sink, reader, seen, headers })
    }

    /// Sends one audio message; `false` when the connection is gone.
    pub async fn audio(&mut self, bytes: &[u8]) -> bool {
        self.sink.send(Message::Binary(bytes.to_vec().into())).await.is_ok()
    }

    /// Sends one text message; `false` when the connection is gone.
    pub async fn text(&mut self, text: &str) -> bool {
        self.sink.send(Message::text(text)).await.is_ok()
    }

    /// Sends a WebSocket ping; `false` when the connection is gone.
    pub async fn ping(&mut self) -> bool {
        self.sink.send(Message::Ping(b"test".as_slice().into())).await.is_ok()
    }

    /// Sends `audio` in messages of `frame` bytes, `pause` apart; `false` as soon as the connection is gone.
    pub async fn stream(&mut self, audio: &[u8], frame: usize, pause: Duration) -> bool {
        for chunk in audio.chunks(frame) {
            if !self.audio(chunk).await {
                return false;
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        true
    }

    /// Says that no more audio comes, and waits for the end.
    pub async fn finish(mut self) -> Heard {
        self.text(r#"{"type":"CloseStream"}"#).await;
        self.end().await
    }

    /// Waits for the end without saying anything.
    pub async fn end(self) -> Heard {
        self.until("end of the stream", |heard| heard.over).await
    }

    /// Waits until what was heard so far satisfies `done`; panics when it does not in time.
    pub async fn until(&self, what: &str, mut done: impl FnMut(&Heard) -> bool) -> Heard {
        // Looked at in place: a copy for every message would cost the square of their number.
        let heard = || {
            let heard = self.seen.heard.lock().expect("no panic inside");
            done(&heard).then(|| heard.clone())
        };
        until(what, &self.seen.changed, heard).await
    }

    /// Whether nothing more comes.
    pub fn is_over(&self) -> bool {
        self.seen.heard.lock().expect("no panic inside").over
    }

    /// What was heard so far.
    pub fn heard(&self) -> Heard {
        self.seen.heard.lock().expect("no panic inside").clone()
    }

    /// Drops the connection without a closing handshake (FIN).
    pub fn vanish(self) {
        self.reader.abort();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Seen {
    fn note(&self, message: Result<Message, Error>) {
        self.update(|heard| match message {
            Ok(Message::Text(text)) => {
                let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
                heard.messages.push(value);
            }
            Ok(Message::Pong(_)) => heard.pongs += 1,
            Ok(Message::Close(frame)) => {
                heard.close = Some(
                    frame.map_or((1005, String::new()), |f| (f.code.into(), f.reason.as_str().to_owned())),
                );
            }
            Ok(Message::Ping(_) | Message::Frame(_)) => {}
            Ok(Message::Binary(bytes)) => heard.error = Some(format!("{} binary bytes", bytes.len())),
            Err(error) => heard.error = Some(error.to_string()),
        });
    }

    fn update(&self, change: impl FnOnce(&mut Heard)) {
        change(&mut self.heard.lock().expect("no panic inside"));
        self.changed.notify_waiters();
    }
}

/// The request head of an upgrade.
fn head(address: &str, target: &str, credential: Credential<'_>, extra: &[(&str, &str)]) -> String {
    let mut head = format!(
        "GET {target} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {NONCE}\r\n"
    );
    match credential {
        Credential::Nothing => {}
        Credential::Token(key) => head += &format!("Authorization: Token {key}\r\n"),
        Credential::Bearer(token) => head += &format!("Authorization: Bearer {token}\r\n"),
        Credential::Subprotocol(key) => head += &format!("Sec-WebSocket-Protocol: token, {key}\r\n"),
    }
    for (name, value) in extra {
        head += &format!("{name}: {value}\r\n");
    }
    head + "\r\n"
}

/// Status and headers of the answer, read no further than its head.
async fn answer(stream: &mut TcpStream) -> (u16, BTreeMap<String, String>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a complete answer"));
    }
    let head = String::from_utf8(head).expect("an answer in ASCII");
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
    let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    (status, lines.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect())
}

async fn body(stream: &mut TcpStream, headers: &BTreeMap<String, String>) -> Value {
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut body)).await.expect("the body in time");
    read.expect("the whole body");
    serde_json::from_slice(&body).unwrap_or(Value::Null)
}
