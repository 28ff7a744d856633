//! What is handed over to a worker: the uplink's half of a link, and the short queue between the two halves.
//!
//! Text waits in the same queue as audio, so nothing overtakes anything. Never touches a socket.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

/// The uplink's half of a [`super::Link`].
#[derive(Clone, Debug)]
pub struct Feed {
    queue: Arc<Queue>,
}

impl Feed {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        Self { queue }
    }

    /// Waits until the socket has taken everything handed over before. Cancel safe.
    pub async fn room(&self) -> Result<(), WorkerGone> {
        poll_fn(|cx| self.queue.poll_empty(cx)).await
    }

    /// Hands chunks over, in order, one message each; done when the socket has taken the last one.
    ///
    /// # Errors
    /// The connection broke; tells how many leading chunks the socket had taken. Dropped half way, it leaves the rest
    /// in the queue: call [`Feed::take_back`].
    pub async fn put(&self, chunks: Vec<Bytes>) -> Result<(), Undelivered> {
        let count = chunks.len();
        for chunk in chunks {
            self.queue.push(Waiting::Audio(chunk));
        }
        match self.room().await {
            Ok(()) => Ok(()),
            Err(WorkerGone) => Err(Undelivered { sent: count.saturating_sub(self.take_back()) }),
        }
    }

    /// Removes the chunks that the socket has not taken; gives their number.
    pub fn take_back(&self) -> usize {
        self.queue.drain()
    }

    /// Hands a text message over, behind all audio before it. Lost silently when the connection is: the next
    /// [`Feed::room`] tells.
    pub fn say(&self, text: impl Into<Utf8Bytes>) {
        self.queue.push(Waiting::Text(text.into()));
    }

    /// Hands over the message that ends the audio; no `KeepAlive` follows it.
    pub fn finish(&self, text: impl Into<Utf8Bytes>) {
        self.queue.push(Waiting::Finish(text.into()));
    }
}

/// The connection is gone: nothing more can be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerGone;

/// The connection went before all chunks were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// How many leading chunks the socket had taken.
    pub sent: usize,
}

/// What is handed over and not yet taken by the socket. At most one batch of the uplink and a few short texts wait
/// here, because whoever hands audio over waits for room first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Waiting>,
    /// Something was written that the operating system does not have yet.
    written: bool,
    closed: bool,
    /// Who writes.
    writer: Option<Waker>,
    /// Who waits for room.
    feeder: Option<Waker>,
}

impl Queue {
    pub(super) fn push(&self, message: Waiting) {
        let mut inner = self.lock();
        if inner.closed {
            return;
        }
        inner.waiting.push_back(message);
        if let Some(waker) = inner.writer.take() {
            waker.wake();
        }
    }

    /// The next message to write, or the promise to wake this task when there is one.
    pub(super) fn pop(&self, cx: &Context<'_>) -> Option<Waiting> {
        let mut inner = self.lock();
        let message = inner.waiting.pop_front();
        match message {
            Some(_) => inner.written = true,
            None => remember(&mut inner.writer, cx),
        }
        message
    }

    /// The operating system has all that was written so far.
    pub(super) fn flushed(&self) {
        let mut inner = self.lock();
        inner.written = false;
        if inner.waiting.is_empty()
            && let Some(waker) = inner.feeder.take()
        {
            waker.wake();
        }
    }

    fn poll_empty(&self, cx: &Context<'_>) -> Poll<Result<(), WorkerGone>> {
        let mut inner = self.lock();
        if inner.closed {
            return Poll::Ready(Err(WorkerGone));
        }
        if inner.waiting.is_empty() && !inner.written {
            return Poll::Ready(Ok(()));
        }
        remember(&mut inner.feeder, cx);
        Poll::Pending
    }

    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        if let Some(waker) = inner.feeder.take() {
            waker.wake();
        }
    }

    fn drain(&self) -> usize {
        let mut inner = self.lock();
        let before = inner.waiting.len();
        inner.waiting.retain(|message| !matches!(message, Waiting::Audio(_)));
        before.saturating_sub(inner.waiting.len())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remember(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}

#[derive(Debug)]
pub(super) enum Waiting {
    Audio(Bytes),
    Text(Utf8Bytes),
    Finish(Utf8Bytes),
}

impl From<Waiting> for Message {
    fn from(waiting: Waiting) -> Self {
        match waiting {
            Waiting::Audio(chunk) => Self::Binary(chunk),
            Waiting::Text(text) | Waiting::Finish(text) => Self::Text(text),
        }
    }
}
