//! Many live streams that send by a fixed schedule, whatever comes back: an open loop, each chunk timed from when it was
//! due, so that a queue shows (no coordinated omission).
//!
//! One thread writes, one reads. A message is prepared once; only its number differs. The answer must carry that
//! number, each once and in order: what is missing, doubled or out of place is counted.

mod sender;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::Failure;
use super::frames::{self, Chunk, Frame};
use super::worker::read_head;
use sender::Sender;

/// Where streams are opened.
#[derive(Clone, Debug)]
pub(super) struct Door {
    /// Host and port.
    pub(super) address: String,
    /// Sent as `Authorization: Token`.
    pub(super) key: Option<String>,
}

/// How a crowd sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Bytes of one message.
    pub(super) bytes: usize,
    /// Between two messages of one stream; the streams are spread evenly over it.
    pub(super) period: Duration,
}

/// One chunk that was answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// When it was due, in seconds from the start of its run.
    pub(super) due: f64,
    /// From then to its answer, in seconds.
    pub(super) took: f64,
}

/// What one run of a crowd came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) samples: Vec<Sample>,
    /// Messages begun.
    pub(super) sent: u64,
    /// Without an answer, on streams that are open still.
    pub(super) lost: u64,
    /// Without an answer, on streams that were closed.
    pub(super) cut: u64,
    /// Answers that came a second time.
    pub(super) doubled: u64,
    /// Answers to nothing that was sent.
    pub(super) unmatched: u64,
    /// Streams that were ended from the other side, by close code (0: without one).
    pub(super) closes: BTreeMap<u16, u64>,
}

impl Outcome {
    /// Answers that are not what they must be.
    pub(super) fn faults(&self) -> u64 {
        self.lost + self.doubled + self.unmatched
    }
}

/// Open streams.
pub(super) struct Crowd {
    lanes: Vec<Arc<Lane>>,
    book: Arc<Mutex<Book>>,
    runtime: Option<tokio::runtime::Runtime>,
}

/// One stream, as both threads see it.
struct Lane {
    socket: TcpStream,
    /// Messages begun.
    sent: AtomicU64,
    /// Highest number that was answered.
    answered: AtomicU64,
    closed: AtomicBool,
}

impl Lane {
    /// Messages begun and not answered.
    fn owed(&self) -> u64 {
        self.sent.load(Ordering::Relaxed).saturating_sub(self.answered.load(Ordering::Relaxed))
    }
}

/// What readers note.
struct Book {
    start: Instant,
    /// Between two messages of the whole crowd.
    gap: f64,
    /// Streams in the schedule.
    lanes: usize,
    /// Number of each stream's first message in this run.
    first: u64,
    outcome: Outcome,
}

impl Crowd {
    /// None yet.
    pub(super) fn new() -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("streams")
            .enable_all()
            .build()
            .map_err(fault)?;
        let book = Book { start: Instant::now(), gap: 1.0, lanes: 1, first: 1, outcome: Outcome::default() };
        Ok(Self { lanes: Vec::new(), book: Arc::new(Mutex::new(book)), runtime: Some(runtime) })
    }

    /// So many streams, all open.
    pub(super) async fn open(door: &Door, streams: usize) -> Result<Self, Failure> {
        let mut crowd = Self::new()?;
        crowd.grow(door, streams).await?;
        Ok(crowd)
    }

    /// Opens more streams, some at once. Between two runs only: a schedule is of all streams.
    pub(super) async fn grow(&mut self, door: &Door, streams: usize) -> Result<(), Failure> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        let mut opening = JoinSet::new();
        let mut begun = 0;
        let wanted = self.lanes.len() + streams;
        while self.lanes.len() < wanted {
            while begun < streams && opening.len() < OPENING {
                opening.spawn_on(upgrade(door.clone()), runtime.handle());
                begun += 1;
            }
            let Some(opened) = opening.join_next().await else { break };
            let (socket, buffer) = opened??;
            let lane = Arc::new(Lane {
                socket,
                sent: AtomicU64::new(0),
                answered: AtomicU64::new(0),
                closed: AtomicBool::new(false),
            });
            let reader = Reader { lane: lane.clone(), at: self.lanes.len(), book: self.book.clone(), buffer };
            runtime.spawn(reader.read());
            self.lanes.push(lane);
        }
        Ok(())
    }

    /// Sends a first message of so many bytes on every stream that sent none yet.
    pub(super) fn greet(&self, bytes: usize) {
        let (chunk, mut first) = (Chunk::new(bytes), Vec::new());
        chunk.start(1, &mut first);
        first.extend_from_slice(chunk.tail());
        for lane in self.lanes.iter().filter(|lane| lane.sent.load(Ordering::Relaxed) == 0) {
            lane.sent.store(1, Ordering::Relaxed);
            let _ = lane.socket.try_write(&first);
        }
    }

    /// Waits, not forever, until all that was sent is answered; gives how many messages are not.
    pub(super) async fn answered(&self) -> u64 {
        let until = Instant::now() + PATIENCE;
        loop {
            let owed = self.lanes.iter().filter(|lane| !lane.closed.load(Ordering::Relaxed));
            let owed = owed.map(|lane| lane.owed()).sum();
            if owed == 0 || Instant::now() > until {
                return owed;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Starts sending, until the run is told to end. Every stream sends equally often.
    pub(super) fn start(&self, plan: Plan) -> Run<'_> {
        let lanes = self.lanes.len().max(1);
        let gap = plan.period.as_secs_f64() / lanes as f64;
        let first = self.lanes.first().map_or(1, |lane| lane.sent.load(Ordering::Relaxed) + 1);
        let start = Instant::now() + HEAD_START;
        *lock(&self.book) = Book { start, gap, lanes, first, outcome: Outcome::default() };
        let stop = Arc::new(AtomicBool::new(false));
        let mut sender = Sender::new(&self.lanes, plan.bytes);
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || sender.send(start, gap, &stopped));
        Run { crowd: self, start, stop, thread: Some(thread) }
    }

    /// Sends for so many whole periods and waits for the answers.
    pub(super) async fn run(&self, plan: Plan, periods: u32) -> Result<Outcome, Failure> {
        let run = self.start(plan);
        // The sender ends a period that it has begun: stopped in the middle of the last one.
        let time = plan.period.mul_f64(f64::from(periods.max(1)) - 0.5);
        tokio::time::sleep(HEAD_START + time).await;
        run.end(PATIENCE).await
    }

    /// Says to every server that the stream still lives. Between two runs only.
    pub(super) fn keep_alive(&self) {
        self.say(br#"{"type":"KeepAlive"}"#);
    }

    /// How many streams are still open.
    pub(super) fn live(&self) -> usize {
        self.lanes.iter().filter(|lane| !lane.closed.load(Ordering::Relaxed)).count()
    }

    /// Ends every stream in order and gives how they ended, by close code (0: none in time).
    pub(super) async fn close(mut self) -> BTreeMap<u16, u64> {
        lock(&self.book).outcome = Outcome::default();
        let open = self.live();
        self.say(br#"{"type":"CloseStream"}"#);
        let until = Instant::now() + CLOSE;
        while self.live() > 0 && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
        let mut closes = std::mem::take(&mut lock(&self.book).outcome.closes);
        let told: u64 = closes.values().sum();
        if told < open as u64 {
            *closes.entry(0).or_default() += open as u64 - told;
        }
        self.drop_runtime();
        closes
    }

    /// Puts a text on every open stream; it is far smaller than the free room of a socket that is read.
    fn say(&self, text: &[u8]) {
        let frame = frames::masked(frames::TEXT, text);
        for lane in self.lanes.iter().filter(|lane| !lane.closed.load(Ordering::Relaxed)) {
            let _ = lane.socket.try_write(&frame);
        }
    }

    fn drop_runtime(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.drop_runtime();
    }
}

/// A crowd that sends.
pub(super) struct Run<'a> {
    crowd: &'a Crowd,
    /// What every time in its samples counts from.
    pub(super) start: Instant,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Run<'_> {
    /// Seconds since its start.
    pub(super) fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Ends the schedule with a whole period, and waits at most so long for answers that are due.
    pub(super) async fn end(mut self, patience: Duration) -> Result<Outcome, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        let joined = tokio::task::spawn_blocking(move || thread.map(std::thread::JoinHandle::join)).await?;
        let sent = joined.and_then(Result::ok).ok_or_else(|| fault("the sender died"))?;
        let until = Instant::now() + patience;
        let waits = |lane: &Arc<Lane>| !lane.closed.load(Ordering::Relaxed) && lane.owed() > 0;
        while self.crowd.lanes.iter().any(waits) && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
        let mut outcome = std::mem::take(&mut lock(&self.crowd.book).outcome);
        outcome.sent = sent;
        for lane in &self.crowd.lanes {
            if lane.closed.load(Ordering::Relaxed) {
                outcome.cut += lane.owed();
            } else {
                outcome.lost += lane.owed();
            }
        }
        Ok(outcome)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The reading half of one stream.
struct Reader {
    lane: Arc<Lane>,
    at: usize,
    book: Arc<Mutex<Book>>,
    buffer: BytesMut,
}

impl Reader {
    async fn read(mut self) {
        let mut code = None;
        loop {
            if !self.buffer.is_empty() {
                let now = Instant::now();
                while let Some(frame) = Frame::next(&mut self.buffer) {
                    match frame.kind {
                        frames::TEXT => self.hear(frame.raw(), now),
                        frames::CLOSE => code = Some(close_code(frame.raw())),
                        _ => {}
                    }
                }
            }
            if code.is_some() || self.lane.socket.readable().await.is_err() {
                break;
            }
            match self.lane.socket.try_read_buf(&mut self.buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
        }
        if code.is_some() {
            let _ = self.lane.socket.try_write(&frames::masked(frames::CLOSE, &1000u16.to_be_bytes()));
        }
        *lock(&self.book).outcome.closes.entry(code.unwrap_or(0)).or_default() += 1;
        self.lane.closed.store(true, Ordering::Relaxed);
    }

    fn hear(&self, text: &[u8], now: Instant) {
        let Some(number) = transcript(text) else { return };
        let (sent, before) =
            (self.lane.sent.load(Ordering::Relaxed), self.lane.answered.load(Ordering::Relaxed));
        let mut book = lock(&self.book);
        match number {
            Some(number) if number <= sent && number > before => {
                book.outcome.lost += number - before - 1;
                self.lane.answered.store(number, Ordering::Relaxed);
                let turn = number.saturating_sub(book.first) as f64 * book.lanes as f64 + self.at as f64;
                let due = turn * book.gap;
                let took = now.saturating_duration_since(book.start).as_secs_f64() - due;
                book.outcome.samples.push(Sample { due, took: took.max(0.0) });
            }
            Some(number) if (1..=before).contains(&number) => book.outcome.doubled += 1,
            Some(_) | None => book.outcome.unmatched += 1,
        }
    }
}

/// The transcript of a `Results` as number; nothing in other messages.
fn transcript(text: &[u8]) -> Option<Option<u64>> {
    let text = std::str::from_utf8(text).ok()?;
    let (_, rest) = text.split_once(r#""transcript":""#)?;
    Some(rest.split_once('"').and_then(|(number, _)| number.parse().ok()))
}

fn close_code(payload: &[u8]) -> u16 {
    payload.get(..2).and_then(|code| code.try_into().ok()).map_or(1005, u16::from_be_bytes)
}

/// Connects and upgrades; gives what came behind the answer too.
async fn upgrade(door: Door) -> Result<(TcpStream, BytesMut), Failure> {
    let open = async {
        let mut socket = TcpStream::connect(&door.address).await.map_err(fault)?;
        socket.set_nodelay(true).map_err(fault)?;
        let key = door.key.as_ref().map_or_else(String::new, |key| format!("Authorization: Token {key}\r\n"));
        let head = format!(
            "GET {TARGET} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{key}\r\n",
            door.address
        );
        socket.write_all(head.as_bytes()).await.map_err(fault)?;
        let mut buffer = BytesMut::with_capacity(512);
        let answer = read_head(&mut socket, &mut buffer).await.map_err(fault)?.unwrap_or_default();
        let line = answer.lines().next().unwrap_or("connection closed without an answer");
        if line.split(' ').nth(1) != Some("101") {
            return Err(Failure::Refused(format!("a stream at {}: {line}", door.address)));
        }
        Ok((socket, buffer))
    };
    let late = |_| Failure::Refused(format!("no answer from {} in {PATIENCE:?}", door.address));
    tokio::time::timeout(PATIENCE, open).await.map_err(late)?
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fault(why: impl std::fmt::Display) -> Failure {
    Failure::peer("streams", why)
}

/// 32 bytes are one millisecond, which is one unit.
const TARGET: &str = "/v1/listen?model=nova-3&encoding=linear16&sample_rate=16000&channels=1";
/// Bytes of audio in one unit, by [`TARGET`].
pub(super) const UNIT_BYTES: u64 = 32;
/// Streams that are being opened at once.
const OPENING: usize = 64;
/// From the start of a run to its first message.
const HEAD_START: Duration = Duration::from_millis(5);
/// Between two looks at whether all is done.
const LOOK: Duration = Duration::from_millis(5);
/// For an answer, and for a socket without room.
const PATIENCE: Duration = Duration::from_secs(10);
/// For the end of all streams: last words and settles.
const CLOSE: Duration = Duration::from_secs(20);
