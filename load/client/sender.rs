//! The writing thread of a crowd: each message when it is due, whatever was answered. A socket without room keeps what is
//! due and is tried again; nobody waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::frames::Chunk;
use super::{Lane, PATIENCE};

/// The writing thread.
pub(super) struct Sender {
    lanes: Vec<Outbox>,
    chunk: Chunk,
    /// Streams whose socket had no room.
    waiting: Vec<usize>,
}

/// What is due on one stream and not written yet.
struct Outbox {
    lane: Arc<Lane>,
    /// Messages that should be out.
    due: u64,
    /// Head of the message that is being written, and how much of the whole is out.
    head: Vec<u8>,
    at: usize,
}

impl Sender {
    /// For all these streams, with messages of one size.
    pub(super) fn new(lanes: &[Arc<Lane>], bytes: usize) -> Self {
        let outbox = |lane: &Arc<Lane>| Outbox {
            lane: lane.clone(),
            due: lane.sent.load(Ordering::Relaxed),
            head: Vec::with_capacity(32),
            at: 0,
        };
        Self { lanes: lanes.iter().map(outbox).collect(), chunk: Chunk::new(bytes), waiting: Vec::new() }
    }

    /// Sends until it is stopped, then ends the period; gives the number of messages that were due.
    pub(super) fn send(&mut self, start: Instant, gap: f64, stop: &AtomicBool) -> u64 {
        let mut due = 0u64;
        loop {
            for at in 0..self.lanes.len() {
                let when = start + Duration::from_secs_f64(gap * due as f64);
                self.wait(when);
                due += 1;
                let Some(lane) = self.lanes.get_mut(at) else { continue };
                lane.due += 1;
                if !lane.write(&self.chunk) && !self.waiting.contains(&at) {
                    self.waiting.push(at);
                }
            }
            if self.lanes.is_empty() || stop.load(Ordering::Relaxed) {
                break;
            }
        }
        let until = Instant::now() + PATIENCE;
        while !self.waiting.is_empty() && Instant::now() < until {
            self.retry();
            std::thread::sleep(RETRY);
        }
        due
    }

    /// Sleeps until then; meanwhile tries sockets again that had no room.
    fn wait(&mut self, when: Instant) {
        loop {
            self.retry();
            let left = when.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(if self.waiting.is_empty() { left } else { left.min(RETRY) });
        }
    }

    fn retry(&mut self) {
        let (lanes, chunk) = (&mut self.lanes, &self.chunk);
        self.waiting.retain(|at| lanes.get_mut(*at).is_some_and(|lane| !lane.write(chunk)));
    }
}

impl Outbox {
    /// Writes what is due; gives whether all of it is out (or can't be any more).
    fn write(&mut self, chunk: &Chunk) -> bool {
        loop {
            let sent = self.lane.sent.load(Ordering::Relaxed);
            if self.lane.closed.load(Ordering::Relaxed) {
                return true;
            }
            if self.at == 0 {
                if sent >= self.due {
                    return true;
                }
                chunk.start(sent + 1, &mut self.head);
                self.lane.sent.store(sent + 1, Ordering::Relaxed);
            }
            let whole = self.head.len() + chunk.tail().len();
            let head = self.head.get(self.at..).unwrap_or_default();
            let tail = chunk.tail().get(self.at.saturating_sub(self.head.len())..).unwrap_or_default();
            let parts = [std::io::IoSlice::new(head), std::io::IoSlice::new(tail)];
            match self.lane.socket.try_write_vectored(&parts) {
                Ok(bytes) => self.at = if self.at + bytes >= whole { 0 } else { self.at + bytes },
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
                // The reader sees the end too, and notes it.
                Err(_) => return true,
            }
        }
    }
}

/// Between two tries of a socket without room.
const RETRY: Duration = Duration::from_millis(1);
