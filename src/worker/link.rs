//! One connection to a worker: what was paid for goes out in order, its words come back.
//!
//! The two halves are used by two futures of one task. [`Link::next`] drives the socket both ways, so that a worker
//! that does not read never stops its own words; [`Feed`] waits for room and hands audio over. [`Feed::put`] is done
//! when the operating system has the bytes, so whoever pays knows what was delivered and what was not. Never drops or
//! reorders: text waits in the same queue as audio.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use http::header::{AUTHORIZATION, HOST};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, Sleep};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::{Request, generate_key};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use super::feed::{Feed, Queue, Waiting};
use super::{Slot, WorkerSpec};
use crate::limits;
use crate::wire::deepgram::ToWorker;

/// The socket's half of a connection. Dropping it closes the connection and frees the worker's place.
#[derive(Debug)]
pub struct Link {
    socket: WebSocketStream<TcpStream>,
    queue: Arc<Queue>,
    slot: Slot,
    /// Something was written into the socket's buffer and is not flushed yet.
    unflushed: bool,
    /// Whether the message that ends the audio went out: nothing follows it.
    finished: bool,
    last_sent: Instant,
    quiet: Pin<Box<Sleep>>,
}

impl Link {
    pub(super) fn new(socket: WebSocketStream<TcpStream>, slot: Slot) -> Self {
        Self {
            socket,
            queue: Arc::default(),
            slot,
            unflushed: false,
            finished: false,
            last_sent: Instant::now(),
            quiet: Box::pin(tokio::time::sleep(limits::WORKER_KEEP_ALIVE)),
        }
    }

    /// The handing-over half. One at a time is used.
    pub fn feed(&self) -> Feed {
        Feed::new(Arc::clone(&self.queue))
    }

    /// The worker's name.
    pub fn worker(&self) -> &str {
        self.slot.name()
    }

    /// The worker's next message; meanwhile writes what is handed over, answers pings, and says `KeepAlive` when
    /// there was nothing to send for [`limits::WORKER_KEEP_ALIVE`]. With `reading` false it only writes. Cancel safe.
    pub async fn next(&mut self, reading: bool) -> FromWorker {
        let told = poll_fn(|cx| self.poll(cx, reading)).await;
        match &told {
            FromWorker::Text(_) | FromWorker::Junk { .. } => {}
            // Whether the worker is well, the next connection tells: one stream may have brought this on itself.
            FromWorker::Closed { .. } | FromWorker::Lost => self.queue.close(),
        }
        told
    }

    /// Says goodbye, for at most `patience`, and drops the connection.
    pub async fn close(mut self, patience: Duration) {
        self.queue.close();
        let goodbye = async {
            self.socket.close(None).await?;
            while self.socket.next().await.transpose()?.is_some() {}
            Ok::<(), Error>(())
        };
        let _ = tokio::time::timeout(patience, goodbye).await;
    }

    fn poll(&mut self, cx: &mut Context<'_>, reading: bool) -> Poll<FromWorker> {
        loop {
            if self.poll_write(cx).is_err() {
                return Poll::Ready(FromWorker::Lost);
            }
            if !reading {
                return self.poll_quiet(cx);
            }
            let message = match self.socket.poll_next_unpin(cx) {
                Poll::Ready(message) => message,
                Poll::Pending => return self.poll_quiet(cx),
            };
            match message {
                Some(Ok(Message::Text(text))) => return Poll::Ready(FromWorker::Text(text)),
                Some(Ok(Message::Binary(junk))) => {
                    return Poll::Ready(FromWorker::Junk { bytes: junk.len() });
                }
                // The library answers pings by itself at the next poll.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(frame))) => {
                    let code = frame.map(|frame| u16::from(frame.code));
                    return Poll::Ready(FromWorker::Closed { code });
                }
                Some(Err(_)) | None => return Poll::Ready(FromWorker::Lost),
            }
        }
    }

    /// Moves what waits into the socket, and out of it in one flush.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        while let Poll::Ready(ready) = self.socket.poll_ready_unpin(cx) {
            ready?;
            let Some(message) = self.queue.pop(cx) else { break };
            self.finished |= matches!(message, Waiting::Finish(_));
            self.socket.start_send_unpin(message.into())?;
            self.last_sent = Instant::now();
            self.unflushed = true;
        }
        if self.unflushed
            && let Poll::Ready(flushed) = self.socket.poll_flush_unpin(cx)
        {
            flushed?;
            self.unflushed = false;
            self.queue.flushed();
        }
        Ok(())
    }

    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<FromWorker> {
        while self.quiet.poll_unpin(cx).is_ready() {
            let due = self.last_sent + limits::WORKER_KEEP_ALIVE;
            if due <= Instant::now() {
                self.last_sent = Instant::now();
                if !self.finished && !self.unflushed {
                    self.queue.push(Waiting::Text(ToWorker::KeepAlive.text().into()));
                    cx.waker().wake_by_ref();
                }
            }
            self.quiet.as_mut().reset(self.last_sent + limits::WORKER_KEEP_ALIVE);
        }
        Poll::Pending
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// What a worker sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromWorker {
    /// A text message, at most [`limits::WORKER_TEXT_BYTES_MAX`] bytes.
    Text(Utf8Bytes),
    /// A binary message, which no dialect of ours has.
    Junk {
        /// Its size.
        bytes: usize,
    },
    /// It said goodbye.
    Closed {
        /// Its close code, if it gave one.
        code: Option<u16>,
    },
    /// The connection broke, or the worker broke the protocol.
    Lost,
}

/// Connects and upgrades. The caller bounds the time.
pub(super) async fn dial(spec: &WorkerSpec, query: &str) -> Result<WebSocketStream<TcpStream>, DialFault> {
    let socket = connect(&spec.url.authority).await.map_err(DialFault::Connect)?;
    let request = request(spec, query)?;
    match tokio_tungstenite::client_async_with_config(request, socket, Some(config())).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(answer)) => Err(DialFault::Status(answer.status().as_u16())),
        Err(fault) => Err(DialFault::Upgrade(fault.to_string())),
    }
}

/// A connection whose kernel buffer is small: what waits in it is paid for, and a worker that stops reading should
/// not be paid for minutes ahead.
async fn connect(authority: &str) -> std::io::Result<TcpStream> {
    let mut fault = std::io::Error::other("the name has no address");
    for address in tokio::net::lookup_host(authority).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_send_buffer_size(limits::LINK_KERNEL_BYTES)?;
        socket.set_nodelay(true)?;
        match socket.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => fault = error,
        }
    }
    Err(fault)
}

fn request(spec: &WorkerSpec, query: &str) -> Result<Request, DialFault> {
    let (authority, path) = (&spec.url.authority, &spec.url.path);
    let mark = if query.is_empty() { "" } else { "?" };
    let mut request = Request::builder()
        .uri(format!("ws://{authority}{path}{mark}{query}"))
        .header(HOST, authority)
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", generate_key());
    if let Some(token) = &spec.token {
        request = request.header(AUTHORIZATION, format!("Token {}", token.reveal()));
    }
    // The error would show the header, so it is not passed on.
    request.body(()).map_err(|_| DialFault::Upgrade("query or token is not fit for a request".into()))
}

fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(limits::SOCKET_BUFFER_BYTES)
        .write_buffer_size(FLUSH_BYTES)
        .max_write_buffer_size(FLUSH_BYTES + limits::CHUNK_BYTES_MAX + limits::TEXT_BYTES_MAX)
        .max_message_size(Some(limits::WORKER_TEXT_BYTES_MAX))
        .max_frame_size(Some(limits::WORKER_TEXT_BYTES_MAX))
}

/// Why a worker did not take a stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialFault {
    #[error("no connection: {0}")]
    Connect(std::io::Error),
    #[error("refused with status {0}")]
    Status(u16),
    #[error("upgrade failed: {0}")]
    Upgrade(String),
}

impl DialFault {
    /// Whether it says something about the worker, not only about this stream's parameters.
    pub(super) fn counts(&self) -> bool {
        !matches!(self, Self::Status(400 | 402 | 404 | 422))
    }
}

/// Bytes that are gathered before the socket is written to in the middle of a batch.
const FLUSH_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::super::Undelivered;
    use super::super::{Check, FromWorker, Pool, Settings, WorkerSpec, WorkerUrl};
    use super::Link;
    use bytes::Bytes;
    use futures_util::{SinkExt as _, StreamExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::Message;

    async fn pair() -> (Link, WebSocketStream<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("ws://{}", listener.local_addr().expect("an address"));
        let spec = WorkerSpec {
            name: "w".into(),
            url: WorkerUrl::parse(&url).expect("an address"),
            models: Vec::new(),
            streams_max: 4,
            weight: 1,
            token: None,
        };
        let pool = Pool::new(vec![spec], Settings { check: Check::Off, ..Settings::default() });
        let accept = async {
            let (socket, _) = listener.accept().await.expect("a connection");
            tokio_tungstenite::accept_async(socket).await.expect("an upgrade")
        };
        let (link, worker) = tokio::join!(pool.link("m", "model=m"), accept);
        (link.expect("a link"), worker)
    }

    #[tokio::test]
    async fn text_never_overtakes_audio() {
        let (mut link, mut worker) = pair().await;
        let feed = link.feed();
        let chunks: Vec<Bytes> = (0..100u8).map(|n| Bytes::from(vec![n; 1323])).collect();
        let sent = chunks.clone();
        let drive = async move {
            let told = link.next(true).await;
            (link, told)
        };
        let give = async {
            feed.put(sent).await.expect("delivered");
            feed.say("{\"type\":\"Finalize\"}");
            feed.put(vec![Bytes::from_static(b"last")]).await.expect("delivered");
        };
        let take = async {
            let mut got = Vec::new();
            while got.len() < 102 {
                got.push(worker.next().await.expect("a frame").expect("a sound frame"));
            }
            worker.send(Message::text("{}")).await.expect("written");
            got
        };
        let ((_link, told), (), got) = tokio::join!(drive, give, take);
        assert_eq!(told, FromWorker::Text("{}".into()));
        for (frame, chunk) in got.iter().zip(&chunks) {
            assert_eq!(frame, &Message::Binary(chunk.clone()));
        }
        assert_eq!(got[100], Message::text("{\"type\":\"Finalize\"}"));
        assert_eq!(got[101], Message::binary("last"));
    }

    #[tokio::test]
    async fn lost_worker_tells_what_arrived() {
        let (mut link, worker) = pair().await;
        let feed = link.feed();
        drop(worker);
        let drive = async {
            loop {
                if link.next(true).await == FromWorker::Lost {
                    return;
                }
            }
        };
        let give = async {
            loop {
                if let Err(lost) = feed.put(vec![Bytes::from_static(&[0; 64]); 3]).await {
                    return lost;
                }
            }
        };
        let (Undelivered { sent }, ()) = tokio::join!(give, drive);
        assert!(sent <= 3);
        let again = feed.put(vec![Bytes::from_static(&[0; 64]); 3]).await;
        assert_eq!(again, Err(Undelivered { sent: 0 }), "a closed link takes nothing, and says so");
        assert!(feed.room().await.is_err());
    }

    #[tokio::test]
    async fn dropped_link_frees_its_place() {
        let (link, _worker) = pair().await;
        let pool = link.slot.pool.clone();
        assert_eq!(pool.states()[0].streams, 1);
        drop(link);
        assert_eq!(pool.states()[0].streams, 0);
    }
}
