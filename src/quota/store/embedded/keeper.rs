//! The thread that brings an embedded store's changes to disk behind its calls; it never holds a call on a disk.
//!
//! # What is promised
//! - Every [`DISK_TICK`] the journals of all shards are drained at one instant, between two scripts, and written as one
//!   batch. On disk is always a state that the whole store really had.
//! - A change is on disk at most [`DISK_LAG_MAX`] after it was made, else no more are taken: when the oldest change
//!   that is not there yet is older than that, writes are refused (`Refuses`, charge none: gateways hold the audio
//!   unpaid and ask again) until the disk has followed. A kill at any time loses at most that long.
//! - [`Keeper::close`], and dropping the store, write the rest first.
//!
//! # States
//! | state | writes | left by |
//! |---|---|---|
//! | keeping | taken | a failed write, lag, too many changes, close |
//! | lagging (oldest change too old, or [`DISK_MARKS_MAX`] keys of a shard wait) | refused | the write ends |
//! | failing (the last write failed) | refused with the disk's reason | a write that succeeds, tried every [`DISK_RETRY`] |
//! | closed | refused | never |
//!
//! Reads, and scripts that say they don't write, are answered in every state.
//!
//! # Measured
//! Two shared cores, optimised build: `admit` takes 4.4 us in memory and 4.5 us here (medians). 60,000 new hashes of
//! seven fields with as many ledger rows are on disk 2 s after the last call, so about 30,000 such pairs a second are
//! what the disk thread follows; beyond that writes are refused for a moment. Removing a key with parts costs 50 us.
//!
//! # Tests
//! `tests/disk.rs`: reopen, kill -9 under load, damaged, removed and foreign files, full disk, second opener;
//! `tests/money/walk.rs`: the money walk with reopens.
//!
//! # Bounds
//! Journals hold marks (names), at most [`DISK_MARKS_MAX`] keys per shard; values are copied when a journal is
//! drained, so a batch is at most what the marked keys hold. Nothing else is queued.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{Books, Shard, StoreError, Write, lock};
use crate::limits::{DISK_LAG_MAX, DISK_MARKS_MAX, DISK_MARKS_SOON, DISK_RETRY, DISK_TICK};

/// Handle of the thread. Dropping it writes the rest and ends the thread.
pub(super) struct Keeper {
    pace: Arc<Pace>,
    orders: SyncSender<Order>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Order {
    /// Do not wait for the tick.
    Soon,
    /// Write all that was changed before, then answer.
    Flush(SyncSender<Result<(), StoreError>>),
    /// The same, then end.
    Close(SyncSender<Result<(), StoreError>>),
}

impl Keeper {
    /// Starts the thread over the open directory.
    pub(super) fn start(books: Books, shards: Arc<[Shard]>) -> Result<Self, StoreError> {
        let pace = Arc::new(Pace::new());
        let (orders, inbox) = mpsc::sync_channel(ORDERS);
        let work = Work { books, shards, pace: Arc::clone(&pace), batch: Vec::new() };
        let thread = std::thread::Builder::new().name("books".into()).spawn(move || work.run(&inbox));
        let thread =
            thread.map_err(|error| StoreError::Refuses(format!("no thread for the disk: {error}")))?;
        Ok(Self { pace, orders, thread: Mutex::new(Some(thread)) })
    }

    /// Whether a write may begin in a shard that has this many marks; nanoseconds.
    pub(super) fn may_write(&self, marks: usize) -> Result<(), StoreError> {
        if marks >= DISK_MARKS_MAX {
            return Err(StoreError::Refuses("the disk can't follow: too many changes wait for it".into()));
        }
        self.pace.check()
    }

    /// Tells that a call may have changed something; under the lock of its shard.
    pub(super) fn changed(&self, marks: usize) {
        if marks == 0 {
            return;
        }
        self.pace.wait();
        if marks >= DISK_MARKS_SOON {
            _ = self.orders.try_send(Order::Soon); // full: it is not asleep anyway
        }
    }

    /// Returns when all that was changed before is on disk.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        self.ask(Order::Flush)
    }

    /// The same, and ends: the directory is free, writes are refused.
    pub(super) fn close(&self) -> Result<(), StoreError> {
        let first = !self.pace.closed.swap(true, Ordering::SeqCst);
        let outcome = if first { self.ask(Order::Close) } else { Ok(()) };
        if let Some(thread) = lock(&self.thread).take() {
            _ = thread.join();
        }
        outcome
    }

    fn ask(&self, order: impl FnOnce(SyncSender<Result<(), StoreError>>) -> Order) -> Result<(), StoreError> {
        let (answer, heard) = mpsc::sync_channel(1);
        let gone = || StoreError::Refuses("the thread for the disk has ended".into());
        self.orders.send(order(answer)).map_err(|_| gone())?;
        heard.recv().map_err(|_| gone())?
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "last changes are not on disk");
        }
    }
}

/// The thread's own things.
struct Work {
    books: Books,
    shards: Arc<[Shard]>,
    pace: Arc<Pace>,
    /// What a failed write left to be repeated, in order.
    batch: Vec<Write>,
}

impl Work {
    fn run(mut self, inbox: &Receiver<Order>) {
        loop {
            let pause = if self.batch.is_empty() { DISK_TICK } else { DISK_RETRY };
            let order = match inbox.recv_timeout(pause) {
                Ok(order) => order,
                Err(RecvTimeoutError::Timeout) => Order::Soon,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let outcome = self.write();
            match order {
                Order::Soon => {}
                Order::Flush(answer) => _ = answer.send(outcome),
                Order::Close(answer) => {
                    drop(self);
                    _ = answer.send(outcome);
                    return;
                }
            }
        }
    }

    /// Writes all that was changed before this call.
    fn write(&mut self) -> Result<(), StoreError> {
        if self.pace.take() {
            // All at one instant: what was written later (a lease) is never there without what was written before
            // it in another shard (its account among the active ones). Nobody else holds two of these locks.
            let between_scripts: Vec<_> = self.shards.iter().map(|shard| lock(&shard.dialect)).collect();
            for shard in self.shards.iter() {
                lock(&shard.room).space.drain(&mut self.batch);
            }
            drop(between_scripts);
        }
        if self.batch.is_empty() {
            self.pace.safe();
            return Ok(());
        }
        let start = Instant::now();
        match self.books.write(&self.batch) {
            Ok(()) => {
                tracing::trace!(records = self.batch.len(), took = ?start.elapsed(), "books written");
                self.batch = Vec::new();
                self.pace.safe();
                Ok(())
            }
            Err(reason) => {
                self.pace.fails(&reason);
                Err(StoreError::Refuses(reason))
            }
        }
    }
}

/// How far the disk is behind; shared by calls and the thread.
///
/// Times are microseconds since `start`, 0 for none. A call notes its time at its end, under its shard's lock; the
/// thread moves the noted time to `flight` before it drains a shard. So every change that is not on disk is younger
/// than one of the two.
struct Pace {
    start: Instant,
    /// The oldest change that was not drained.
    waiting: AtomicU64,
    /// The oldest change that was drained and is not on disk.
    flight: AtomicU64,
    failing: AtomicBool,
    closed: AtomicBool,
    reason: Mutex<String>,
}

impl Pace {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            waiting: AtomicU64::new(0),
            flight: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            reason: Mutex::new(String::new()),
        }
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::Refuses("the store is closed".into()));
        }
        if self.failing.load(Ordering::Acquire) {
            return Err(StoreError::Refuses(lock(&self.reason).clone()));
        }
        let (flight, waiting) = (self.flight.load(Ordering::Acquire), self.waiting.load(Ordering::Acquire));
        let oldest = if flight == 0 { waiting } else { flight };
        if oldest != 0 && self.now().saturating_sub(oldest) > micros(DISK_LAG_MAX) {
            return Err(StoreError::Refuses("the disk can't follow: it is more than a second behind".into()));
        }
        Ok(())
    }

    fn wait(&self) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            _ = self.waiting.compare_exchange(0, self.now(), Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Moves what waits into flight; whether there is any.
    fn take(&self) -> bool {
        let waiting = self.waiting.load(Ordering::Acquire);
        if waiting == 0 {
            return false;
        }
        // Into flight first: at no moment is it in neither.
        _ = self.flight.compare_exchange(0, waiting, Ordering::AcqRel, Ordering::Acquire);
        self.waiting.store(0, Ordering::Release);
        true
    }

    fn safe(&self) {
        self.flight.store(0, Ordering::Release);
        if self.failing.swap(false, Ordering::AcqRel) {
            tracing::info!("books are written again");
        }
    }

    fn fails(&self, reason: &str) {
        reason.clone_into(&mut lock(&self.reason));
        if !self.failing.swap(true, Ordering::AcqRel) {
            tracing::error!(reason, "books can't be written, nothing more is taken");
        }
    }

    fn now(&self) -> u64 {
        micros(self.start.elapsed()).max(1)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Orders that may wait; who asks for more waits to ask.
const ORDERS: usize = 16;
