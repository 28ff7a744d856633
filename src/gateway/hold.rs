//! Audio that came and is not paid for yet, in order, bounded in bytes for one stream and for all. Never drops: it
//! says when there is no room, and its filler stops reading.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use bytes::Bytes;
use metrics::{Gauge, gauge};

use crate::limits;
use crate::wire::deepgram::ToWorker;

/// One stream's unpaid messages.
#[derive(Debug)]
pub(super) struct Hold {
    inner: Mutex<Inner>,
    all: Arc<HeldBytes>,
}

impl Hold {
    pub(super) fn new(all: Arc<HeldBytes>) -> Self {
        Self { inner: Mutex::default(), all }
    }

    /// Puts a message behind the others; forgotten after [`Hold::close`].
    pub(super) fn push(&self, message: Held) {
        let mut inner = self.lock();
        if inner.closed {
            return;
        }
        let bytes = message.weight();
        inner.bytes += bytes;
        inner.waiting.push_back(message);
        self.all.add(bytes);
        if let Some(waker) = inner.taker.take() {
            waker.wake();
        }
    }

    /// Whether the filler may read on.
    pub(super) fn has_room(&self) -> bool {
        self.lock().bytes < limits::HOLD_BYTES_MAX && self.all.has_room()
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    /// How many messages were ever taken: tells whether anything moves.
    pub(super) fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// The next message that is no audio, or all waiting audio up to [`limits::CHUNK_BYTES_MAX`] together.
    /// Waits while there is none. Cancel safe.
    pub(super) async fn take(&self) -> Taken {
        poll_fn(|cx| {
            let mut inner = self.lock();
            match inner.take(&self.all) {
                Some(taken) => Poll::Ready(taken),
                None => {
                    match &mut inner.taker {
                        Some(waker) => waker.clone_from(cx.waker()),
                        None => inner.taker = Some(cx.waker().clone()),
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Forgets what waits and whatever comes.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.waiting = VecDeque::new();
        self.all.sub(std::mem::take(&mut inner.bytes));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.close();
    }
}

/// One message that waits.
#[derive(Debug)]
pub(super) enum Held {
    Audio(Bytes),
    Say(ToWorker),
    Finish,
}

impl Held {
    /// What it costs in memory, roughly: many tiny messages are bounded too.
    fn weight(&self) -> usize {
        let own = match self {
            Self::Audio(bytes) => bytes.len(),
            Self::Say(ToWorker::Configure(text)) => text.len(),
            Self::Say(ToWorker::Finalize { .. } | ToWorker::KeepAlive | ToWorker::CloseStream) => 0,
            Self::Finish => 0,
        };
        own + MESSAGE_WEIGHT
    }
}

/// What is worked on next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// At least one chunk.
    Audio(Vec<Bytes>),
    /// A message for the worker, after all audio before it.
    Say(ToWorker),
    /// The client has no more audio.
    Finish,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Held>,
    bytes: usize,
    taken: u64,
    closed: bool,
    taker: Option<Waker>,
}

impl Inner {
    fn take(&mut self, all: &HeldBytes) -> Option<Taken> {
        let mut chunks = Vec::new();
        let mut size = 0;
        let taken = loop {
            match self.waiting.front() {
                Some(Held::Audio(chunk))
                    if chunks.is_empty() || size + chunk.len() <= limits::CHUNK_BYTES_MAX =>
                {
                    size += chunk.len();
                }
                Some(Held::Audio(_)) | None => break Taken::Audio(chunks),
                Some(Held::Say(_) | Held::Finish) if !chunks.is_empty() => break Taken::Audio(chunks),
                Some(Held::Say(_) | Held::Finish) => {}
            }
            match self.pop(all) {
                Some(Held::Audio(chunk)) => chunks.push(chunk),
                Some(Held::Say(text)) => break Taken::Say(text),
                Some(Held::Finish) => break Taken::Finish,
                None => break Taken::Audio(chunks),
            }
        };
        (!matches!(&taken, Taken::Audio(none) if none.is_empty())).then_some(taken)
    }

    fn pop(&mut self, all: &HeldBytes) -> Option<Held> {
        let message = self.waiting.pop_front()?;
        let weight = message.weight();
        self.bytes = self.bytes.saturating_sub(weight);
        self.taken += 1;
        all.sub(weight);
        Some(message)
    }
}

/// What all streams hold together.
pub(super) struct HeldBytes {
    bytes: AtomicUsize,
    most: usize,
    gauge: Gauge,
}

impl HeldBytes {
    pub(super) fn new(most: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), most, gauge: gauge!("voxgate_held_bytes") }
    }

    fn has_room(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) < self.most
    }

    #[expect(clippy::cast_precision_loss, reason = "a gauge of bytes needs no 53rd bit")]
    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.gauge.increment(bytes as f64);
    }

    #[expect(clippy::cast_precision_loss, reason = "a gauge of bytes needs no 53rd bit")]
    fn sub(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.gauge.decrement(bytes as f64);
    }
}

impl std::fmt::Debug for HeldBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bytes.fmt(f)
    }
}

/// Bookkeeping of one waiting message, in bytes.
const MESSAGE_WEIGHT: usize = 64;

#[cfg(test)]
mod tests {
    use super::{Held, HeldBytes, Hold, Taken};
    use crate::limits;
    use crate::wire::deepgram::ToWorker;
    use bytes::Bytes;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    fn hold(most: usize) -> (Hold, Arc<HeldBytes>) {
        let all = Arc::new(HeldBytes::new(most));
        (Hold::new(Arc::clone(&all)), all)
    }

    fn chunk(size: usize) -> Bytes {
        Bytes::from(vec![7; size])
    }

    #[tokio::test]
    async fn waiting_audio_goes_together() {
        let (hold, _) = hold(usize::MAX);
        for _ in 0..3 {
            hold.push(Held::Audio(chunk(10)));
        }
        assert_eq!(hold.take().await, Taken::Audio(vec![chunk(10); 3]));
        assert!(hold.is_empty());
    }

    #[tokio::test]
    async fn batches_are_bounded() {
        let (hold, _) = hold(usize::MAX);
        hold.push(Held::Audio(chunk(limits::CHUNK_BYTES_MAX)));
        hold.push(Held::Audio(chunk(1)));
        assert_eq!(hold.take().await, Taken::Audio(vec![chunk(limits::CHUNK_BYTES_MAX)]));
        assert_eq!(hold.take().await, Taken::Audio(vec![chunk(1)]));
    }

    #[tokio::test]
    async fn text_keeps_its_place() {
        let (hold, _) = hold(usize::MAX);
        let text = ToWorker::Finalize { channel: None };
        hold.push(Held::Audio(chunk(1)));
        hold.push(Held::Say(text.clone()));
        hold.push(Held::Audio(chunk(2)));
        hold.push(Held::Finish);
        assert_eq!(hold.take().await, Taken::Audio(vec![chunk(1)]));
        assert_eq!(hold.take().await, Taken::Say(text));
        assert_eq!(hold.take().await, Taken::Audio(vec![chunk(2)]));
        assert_eq!(hold.take().await, Taken::Finish);
    }

    #[tokio::test]
    async fn full_hold_stops_reading() {
        let (hold, all) = hold(usize::MAX);
        let mut pushed = 0;
        while hold.has_room() {
            hold.push(Held::Audio(chunk(1)));
            pushed += 1;
        }
        assert!(pushed <= limits::HOLD_BYTES_MAX / 64, "tiny messages are bounded too");
        drop(hold);
        assert_eq!(all.bytes.load(Ordering::Relaxed), 0, "nothing is counted twice or kept");
    }

    #[tokio::test]
    async fn streams_share_one_bound() {
        let (one, all) = hold(1000);
        let two = Hold::new(all);
        one.push(Held::Audio(chunk(1000)));
        assert!(!two.has_room());
        one.close();
        assert!(two.has_room());
    }
}
