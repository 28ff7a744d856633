//! What the gateway counts: handles made once, labels from our own enums, gauges that undo themselves. Decides
//! nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::ending::Ending;

/// Handles of everything that is counted for each chunk or stream.
pub(super) struct Meters {
    pub(super) admitted: Counter,
    pub(super) refused: Counter,
    pub(super) lapsed: Counter,
    pub(super) failed: Counter,
    pub(super) undelivered: Counter,
    pub(super) received_seconds: Seconds,
    pub(super) admitted_seconds: Seconds,
    pub(super) forwarded_seconds: Seconds,
    pub(super) first_result_seconds: Histogram,
    pub(super) finals: Counter,
    pub(super) partials: Counter,
    pub(super) unknown_worker_messages: Counter,
    pub(super) bad_worker_messages: Counter,
    pub(super) empty_frames: Counter,
    pub(super) panics: Counter,
    streams_open: Gauge,
    stream_seconds: Histogram,
}

impl Meters {
    pub(super) fn new() -> Self {
        let chunks = |decision| counter!("voxgate_chunks_total", "decision" => decision);
        let seconds = |stage| Seconds::new(counter!("voxgate_audio_seconds_total", "stage" => stage));
        let results = |is_final| counter!("voxgate_results_total", "final" => is_final);
        Self {
            admitted: chunks("admitted"),
            refused: chunks("refused"),
            lapsed: chunks("lapsed"),
            failed: chunks("failed"),
            undelivered: chunks("undelivered"),
            received_seconds: seconds("received"),
            admitted_seconds: seconds("admitted"),
            forwarded_seconds: seconds("forwarded"),
            first_result_seconds: histogram!("voxgate_first_result_seconds"),
            finals: results("true"),
            partials: results("false"),
            unknown_worker_messages: counter!("voxgate_worker_messages_dropped_total", "kind" => "unknown"),
            bad_worker_messages: counter!("voxgate_worker_messages_dropped_total", "kind" => "unreadable"),
            empty_frames: counter!("voxgate_empty_frames_total"),
            panics: counter!("voxgate_panics_total"),
            streams_open: gauge!("voxgate_streams_open"),
            stream_seconds: histogram!("voxgate_stream_seconds"),
        }
    }

    /// Counts a stream as open until the guard is dropped.
    pub(super) fn open(&self) -> Open {
        self.streams_open.increment(1.0);
        Open(self.streams_open.clone())
    }

    /// Counts a stream's end.
    pub(super) fn ended(&self, ending: Ending, seconds: f64) {
        self.stream_seconds.record(seconds);
        counter!("voxgate_streams_total", "ending" => ending.word()).increment(1);
    }
}

/// A stream that is open.
pub(super) struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Whole seconds out of milliseconds, with nothing lost between chunks.
pub(super) struct Seconds {
    milliseconds: AtomicU64,
    counter: Counter,
}

impl Seconds {
    fn new(counter: Counter) -> Self {
        Self { milliseconds: AtomicU64::new(0), counter }
    }

    pub(super) fn add(&self, milliseconds: u64) {
        let total = self.milliseconds.fetch_add(milliseconds, Ordering::Relaxed).saturating_add(milliseconds);
        self.counter.absolute(total / 1000);
    }
}

/// A handshake that was refused, by its status.
pub(super) fn refused(status: u16) {
    let status = match status {
        400 => "400",
        401 => "401",
        402 => "402",
        403 => "403",
        404 => "404",
        405 => "405",
        426 => "426",
        429 => "429",
        503 => "503",
        _ => "other",
    };
    counter!("voxgate_handshakes_refused_total", "status" => status).increment(1);
}

/// A client's message or connection that was not as it should be.
pub(super) fn fault(kind: &'static str) {
    counter!("voxgate_client_faults_total", "kind" => kind).increment(1);
}

/// A connection that was turned away before it was read.
pub(super) fn turned_away(why: &'static str) {
    counter!("voxgate_connections_turned_away_total", "why" => why).increment(1);
}
