//! Both ends of a stream in their smallest form: a worker that answers each audio message at once, and a client that
//! sends one and waits for the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::http::Request;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::Failure;

type Socket = WebSocketStream<TcpStream>;

/// A worker in this process; it and its connections end with this handle.
pub(super) struct Worker {
    /// Where the gateway finds it.
    pub url: String,
    bytes: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Worker {
    /// Starts it on a port of its own.
    pub(super) async fn start() -> Result<Self, Failure> {
        let listener =
            TcpListener::bind("127.0.0.1:0").await.map_err(|error| Failure::peer("worker", error))?;
        let address = listener.local_addr().map_err(|error| Failure::peer("worker", error))?;
        let (bytes, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        let counted = bytes.clone();
        tasks.spawn(async move {
            let mut links = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let bytes = counted.clone();
                links.spawn(async move {
                    // A connection that breaks is its gateway's business; what it brought is counted.
                    let _ = serve(stream, &bytes).await;
                });
                while links.try_join_next().is_some() {}
            }
        });
        Ok(Self { url: format!("ws://{address}/v1/listen"), bytes, _tasks: tasks })
    }

    /// Audio that came in, on all connections.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }
}

/// One connection: a gateway's link, or a look whether the worker is alive.
async fn serve(mut stream: TcpStream, bytes: &AtomicU64) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    let Some(key) = asked(&mut stream).await? else {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await?;
        return Ok(());
    };
    let accept = derive_accept_key(key.as_bytes());
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await?;
    let mut socket = Socket::from_raw_socket(stream, Role::Server, None).await;
    while let Some(message) = socket.next().await.transpose()? {
        match message {
            Message::Binary(audio) => {
                bytes.fetch_add(audio.len() as u64, Ordering::AcqRel);
                socket.send(Message::text(RESULTS)).await?;
            }
            Message::Text(text) if text.contains("CloseStream") => {
                socket.send(Message::text(r#"{"type":"Metadata","duration":0}"#)).await?;
                socket.close(None).await?;
            }
            Message::Text(_)
            | Message::Ping(_)
            | Message::Pong(_)
            | Message::Close(_)
            | Message::Frame(_) => {}
        }
    }
    Ok(())
}

/// The key of an upgrade, or none for a plain request. Heads are a gateway's own: short.
async fn asked(stream: &mut TcpStream) -> std::io::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let key = head.lines().filter_map(|line| line.split_once(':'));
    let key = key.filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-key"));
    Ok(key.map(|(_, value)| value.trim().to_owned()).next())
}

const HEAD_BYTES_MAX: usize = 16 * 1024;
/// What the worker says to each audio message.
const RESULTS: &str = r#"{"type":"Results","is_final":false,"start":0.0,"duration":0.0,"channel":{"alternatives":[{"transcript":"a"}]}}"#;

/// A stream as an app opens it.
pub(super) struct Client {
    socket: Socket,
}

impl Client {
    /// Opens a stream of 16 kHz mono linear16 on the gateway at `address`, within a session.
    pub(super) async fn open(address: &str, key: &str, session: &str) -> Result<Self, Failure> {
        let fail = |error: Error| match error {
            Error::Http(answer) => {
                Failure::Peer(format!("the gateway refuses a stream: {}", answer.status()))
            }
            other => Failure::peer("client", other),
        };
        let target =
            format!("ws://{address}/v1/listen?encoding=linear16&sample_rate=16000&session_id={session}");
        let request = Request::get(target)
            .header("Host", address)
            .header("Upgrade", "websocket")
            .header("Connection", "Upgrade")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", generate_key())
            .header("Authorization", format!("Token {key}"))
            .body(())
            .map_err(|error| Failure::peer("client", error))?;
        let stream = TcpStream::connect(address).await.map_err(|error| Failure::peer("client", error))?;
        stream.set_nodelay(true).map_err(|error| Failure::peer("client", error))?;
        let (socket, _) = tokio_tungstenite::client_async(request, stream).await.map_err(fail)?;
        Ok(Self { socket })
    }

    /// Sends one chunk and waits for its words; `false` when the stream ended instead, for want of budget.
    pub(super) async fn take(&mut self, chunk: &Bytes) -> Result<bool, Failure> {
        if self.socket.send(Message::Binary(chunk.clone())).await.is_err() {
            // The end is on its way in, or came already.
            return self.answer().await.map(|_| false);
        }
        self.answer().await
    }

    async fn answer(&mut self) -> Result<bool, Failure> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Text(text))) if text.contains(r#""Results""#) => return Ok(true),
                Some(Ok(Message::Close(Some(frame)))) if !frame.reason.starts_with("QUOTA-") => {
                    return Err(Failure::Peer(format!("a stream ended: {} {}", frame.code, frame.reason)));
                }
                Some(Ok(Message::Close(_))) | None => return Ok(false),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Failure::peer("client", error)),
            }
        }
    }
}
