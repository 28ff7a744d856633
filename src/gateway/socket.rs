//! The client's socket: both directions driven by one future, so that neither waits for the other.
//!
//! [`ClientSocket::next`] reads (unless told not to), answers pings, and writes what [`Outbox`] holds in one flush.
//! After the end, [`ClientSocket::say_goodbye`] sends one Close frame and nothing behind it. Knows no dialect.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::limits;

/// A client's socket after the upgrade.
#[derive(Debug)]
pub(super) struct ClientSocket {
    socket: WebSocketStream<Tap>,
    /// Something was written and is not flushed yet.
    unflushed: bool,
    /// How far behind the client was when that was last told.
    told: Lag,
    /// The reading half is over: the library gives nothing more.
    deaf: bool,
    /// Bytes that had left when [`ClientSocket::moved`] was last asked.
    seen: u64,
}

impl ClientSocket {
    /// A socket just upgraded; `early` came behind the request's head.
    pub(super) async fn new(stream: TcpStream, early: &[u8]) -> Self {
        let tap = Tap { stream, ended: false, written: 0 };
        let config = WebSocketConfig::default()
            .read_buffer_size(limits::SOCKET_BUFFER_BYTES)
            .write_buffer_size(limits::SOCKET_BUFFER_BYTES)
            .max_write_buffer_size(limits::SOCKET_BUFFER_BYTES + 2 * limits::WORKER_TEXT_BYTES_MAX)
            .max_message_size(Some(limits::CHUNK_BYTES_MAX))
            .max_frame_size(Some(limits::CHUNK_BYTES_MAX));
        let socket =
            WebSocketStream::from_partially_read(tap, early.to_vec(), Role::Server, Some(config)).await;
        Self { socket, unflushed: false, told: Lag::None, deaf: false, seen: 0 }
    }

    /// The client's next frame. With `reading` false it only writes, and returns when that fails or falls behind.
    /// Cancel safe.
    pub(super) async fn next(&mut self, outbox: &Outbox, reading: bool) -> Frame {
        poll_fn(|cx| self.poll(cx, outbox, reading)).await
    }

    /// Whether anything left the socket since this was last asked.
    pub(super) fn moved(&mut self) -> bool {
        let written = self.socket.get_ref().written;
        std::mem::replace(&mut self.seen, written) != written
    }

    /// How far the client is behind with reading.
    pub(super) fn lag(&self, outbox: &Outbox) -> Lag {
        match (outbox.has_room(), self.unflushed || !outbox.is_empty()) {
            (false, _) => Lag::Full,
            (true, true) => Lag::Some,
            (true, false) => Lag::None,
        }
    }

    /// Sends what is left in the outbox and one Close frame, each within `patience`, then reads and drops until the
    /// client closes too or `patience` is over again.
    pub(super) async fn say_goodbye(&mut self, outbox: &Outbox, close: CloseFrame, patience: Duration) {
        let rest = poll_fn(|cx| self.poll_drained(cx, outbox));
        if !matches!(tokio::time::timeout(patience, rest).await, Ok(Ok(()))) {
            return;
        }
        let goodbye = self.socket.send(Message::Close(Some(close)));
        if !matches!(tokio::time::timeout(patience, goodbye).await, Ok(Ok(()))) {
            return;
        }
        let _ = tokio::time::timeout(patience, self.drop_input()).await;
    }

    /// Reads until the client's Close or the end of its bytes, so that closing does not reset the connection under
    /// a Close frame that it has not read yet.
    async fn drop_input(&mut self) {
        while !self.deaf {
            match self.socket.next().await {
                Some(Ok(Message::Close(_))) | None => return,
                Some(Ok(_)) => {}
                Some(Err(_)) => self.deaf = true,
            }
        }
        let mut waste = vec![0; limits::SOCKET_BUFFER_BYTES];
        while let Ok(1..) = self.socket.get_mut().stream.read(&mut waste).await {}
    }

    fn poll(&mut self, cx: &mut Context<'_>, outbox: &Outbox, reading: bool) -> Poll<Frame> {
        if self.poll_write(cx, outbox).is_err() {
            return Poll::Ready(Frame::Gone);
        }
        let lag = self.lag(outbox);
        if lag > std::mem::replace(&mut self.told, lag) {
            return Poll::Ready(Frame::Behind);
        }
        if !reading || self.deaf {
            return Poll::Pending;
        }
        let message = match self.socket.poll_next_unpin(cx) {
            Poll::Ready(message) => message,
            Poll::Pending if self.socket.get_ref().ended => {
                self.deaf = true;
                return Poll::Ready(Frame::Ended);
            }
            Poll::Pending => return Poll::Pending,
        };
        let frame = match message {
            Some(Ok(Message::Binary(audio))) => Frame::Binary(audio),
            Some(Ok(Message::Text(text))) => Frame::Text(text),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Frame::Sign,
            Some(Ok(Message::Close(_))) | None => Frame::Gone,
            Some(Err(fault)) => broken(&fault),
        };
        self.deaf = matches!(frame, Frame::Gone | Frame::Large | Frame::Broken { .. });
        Poll::Ready(frame)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, outbox: &Outbox) -> Result<(), Error> {
        while let Poll::Ready(ready) = self.socket.poll_ready_unpin(cx) {
            ready?;
            let Some(message) = outbox.pop(cx) else { break };
            self.socket.start_send_unpin(message)?;
            self.unflushed = true;
        }
        if self.unflushed
            && let Poll::Ready(flushed) = self.socket.poll_flush_unpin(cx)
        {
            flushed?;
            self.unflushed = false;
        }
        Ok(())
    }

    fn poll_drained(&mut self, cx: &mut Context<'_>, outbox: &Outbox) -> Poll<Result<(), Error>> {
        self.poll_write(cx, outbox)?;
        if self.lag(outbox) == Lag::None { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

/// What came from a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Binary(Bytes),
    Text(Utf8Bytes),
    /// A ping or pong: a sign of life.
    Sign,
    /// Nothing came; but the client fell behind with reading.
    Behind,
    /// A message above the limit; nothing more is read.
    Large,
    /// Not the WebSocket protocol; nothing more is read.
    Broken {
        /// What to close with.
        code: u16,
    },
    /// The client will send nothing more but may still read: it closed its half of the connection.
    Ended,
    /// The client closed the socket or the connection broke.
    Gone,
}

/// How far a client is behind with reading what it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lag {
    /// Everything was handed to the operating system.
    None,
    /// Something waits.
    Some,
    /// As much waits as may.
    Full,
}

fn broken(fault: &Error) -> Frame {
    match fault {
        Error::Capacity(CapacityError::MessageTooLong { .. }) => Frame::Large,
        Error::Utf8(_) => Frame::Broken { code: u16::from(CloseCode::Invalid) },
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Frame::Gone,
        Error::Protocol(_) | Error::AttackAttempt => Frame::Broken { code: u16::from(CloseCode::Protocol) },
        Error::ConnectionClosed
        | Error::AlreadyClosed
        | Error::Io(_)
        | Error::Tls(_)
        | Error::Capacity(CapacityError::TooManyHeaders)
        | Error::WriteBufferFull(_)
        | Error::Url(_)
        | Error::Http(_)
        | Error::HttpFormat(_) => Frame::Gone,
    }
}

/// What is to be sent to a client, in order. Who adds many messages waits for room first, so that
/// [`limits::CLIENT_BACKLOG_BYTES_MAX`] and one message more bound it.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    inner: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<Message>,
    bytes: usize,
    /// Who writes.
    writer: Option<Waker>,
    /// Who waits for room.
    talker: Option<Waker>,
}

impl Outbox {
    /// Puts a text behind the others.
    pub(super) fn say(&self, text: String) {
        self.push(Message::text(text));
    }

    /// Sends a ping behind the rest.
    pub(super) fn ping(&self) {
        self.push(Message::Ping(Bytes::new()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().messages.is_empty()
    }

    /// Whether the bound leaves room for a message.
    pub(super) fn has_room(&self) -> bool {
        self.lock().has_room()
    }

    /// Waits for room. Cancel safe.
    pub(super) async fn room(&self) {
        poll_fn(|cx| {
            let mut inner = self.lock();
            if inner.has_room() {
                return Poll::Ready(());
            }
            remember(&mut inner.talker, cx);
            Poll::Pending
        })
        .await;
    }

    fn push(&self, message: Message) {
        let mut inner = self.lock();
        inner.bytes += message.len();
        inner.messages.push_back(message);
        if let Some(waker) = inner.writer.take() {
            waker.wake();
        }
    }

    fn pop(&self, cx: &Context<'_>) -> Option<Message> {
        let mut inner = self.lock();
        let Some(message) = inner.messages.pop_front() else {
            remember(&mut inner.writer, cx);
            return None;
        };
        inner.bytes = inner.bytes.saturating_sub(message.len());
        if inner.has_room()
            && let Some(waker) = inner.talker.take()
        {
            waker.wake();
        }
        Some(message)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    const fn has_room(&self) -> bool {
        self.bytes < limits::CLIENT_BACKLOG_BYTES_MAX
    }
}

fn remember(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}

/// The TCP stream, with two things told apart that the WebSocket library mixes up: a client that only closed its
/// sending half (it still reads, and is owed its last words), and one that is gone.
#[derive(Debug)]
struct Tap {
    stream: TcpStream,
    ended: bool,
    written: u64,
}

impl AsyncRead for Tap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ended {
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.ended = buf.filled().len() == before;
        if self.ended { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

impl AsyncWrite for Tap {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.written = self.written.wrapping_add(count as u64);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::{ClientSocket, CloseFrame, Frame, Outbox};
    use crate::limits;
    use futures_util::{SinkExt as _, StreamExt as _};
    use std::time::Duration;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::Role;

    const PATIENCE: Duration = Duration::from_secs(5);

    async fn pair() -> (ClientSocket, WebSocketStream<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let client = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
        let (server, _) = listener.accept().await.expect("accepted");
        let client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        (ClientSocket::new(server, b"").await, client)
    }

    fn close(code: u16) -> CloseFrame {
        CloseFrame { code: code.into(), reason: "why".into() }
    }

    #[tokio::test]
    async fn large_message_is_told() {
        let (mut server, mut client) = pair().await;
        let outbox = Outbox::default();
        let send = async move {
            let large = Message::binary(vec![0; limits::CHUNK_BYTES_MAX + 1]);
            client.send(large).await.expect("sent");
            client.next().await.expect("a frame").expect("a sound frame")
        };
        let serve = async {
            assert_eq!(server.next(&outbox, true).await, Frame::Large);
            server.say_goodbye(&outbox, close(1009), PATIENCE).await;
        };
        let (frame, ()) = tokio::join!(send, serve);
        assert_eq!(frame, Message::Close(Some(close(1009))));
    }

    #[tokio::test]
    async fn half_closed_client_still_reads() {
        let (mut server, mut client) = pair().await;
        let outbox = Outbox::default();
        client.send(Message::text("{}")).await.expect("sent");
        client.get_mut().shutdown().await.expect("half closed");
        assert_eq!(server.next(&outbox, true).await, Frame::Text("{}".into()));
        assert_eq!(server.next(&outbox, true).await, Frame::Ended);
        outbox.say("last words".into());
        let serve = server.say_goodbye(&outbox, close(1000), Duration::from_millis(50));
        let ((), words) = tokio::join!(serve, client.next());
        assert_eq!(words.expect("a frame").expect("a sound frame"), Message::text("last words"));
        assert!(matches!(client.next().await, Some(Ok(Message::Close(Some(_))))));
    }

    #[tokio::test]
    async fn unread_words_are_bounded() {
        let outbox = Outbox::default();
        let mut taken = 0;
        while outbox.has_room() {
            outbox.say("x".repeat(1024));
            taken += 1;
        }
        assert_eq!(taken, limits::CLIENT_BACKLOG_BYTES_MAX / 1024);
    }
}
