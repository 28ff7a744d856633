//! External transcription workers: whom to ask, and one connection to each that was asked.
//!
//! [`Pool::link`] picks the least loaded worker that is well and has room, and opens a [`Link`] to it. A `Slot`
//! counts the stream until the link is dropped. A worker that can't be reached is left out for a growing, bounded
//! time, then tried by one stream; the last one that is left is never out for longer than a second. This room knows
//! no money and no client.

mod check;
mod feed;
mod link;
mod roster;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{Gauge, Histogram, gauge, histogram};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::feed::{Feed, Undelivered, WorkerGone};
pub use self::link::{FromWorker, Link};
use self::roster::Roster;
use crate::limits;

/// Every worker this gateway may use. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// A pool of these workers; all count as well until one fails.
    pub fn new(workers: Vec<WorkerSpec>, settings: Settings) -> Self {
        let roster = Roster::new(&workers, &settings);
        let workers = workers.into_iter().map(Worker::new).collect();
        let pool = Self { shared: Arc::new(Shared { workers, settings, roster: Mutex::new(roster) }) };
        pool.publish();
        pool
    }

    /// Opens a connection to the least loaded worker that serves `model`, asking at most
    /// [`limits::LINK_TRIES`] different ones. `query` is appended to the worker's address as it is.
    ///
    /// Cancel safe: dropped half way, the worker's place is free again.
    pub async fn link(&self, model: &str, query: &str) -> Result<Link, NoWorker> {
        let mut tried = Vec::new();
        for turn in 0..limits::LINK_TRIES {
            if turn > 0 {
                tokio::time::sleep(jitter()).await;
            }
            let slot = match self.seat(model, &tried) {
                Ok(slot) => slot,
                Err(_) if !tried.is_empty() => break,
                Err(none) => return Err(none),
            };
            tried.push(slot.index);
            if let Some(link) = self.dial(slot, query).await {
                return Ok(link);
            }
        }
        Err(NoWorker::Down)
    }

    /// Whether any worker is well.
    pub fn ready(&self) -> bool {
        self.roster().ready(Instant::now())
    }

    /// How every worker does, for people and for health pages.
    pub fn states(&self) -> Vec<WorkerState> {
        let now = Instant::now();
        let roster = self.roster();
        let state = |(index, worker): (usize, &Worker)| WorkerState {
            name: worker.spec.name.clone(),
            up: roster.up(index, now),
            streams: roster.streams(index),
            streams_max: worker.spec.streams_max,
        };
        self.shared.workers.iter().enumerate().map(state).collect()
    }

    /// Whether any worker may serve this model, well or not.
    pub fn serves(&self, model: &str) -> bool {
        self.roster().serves(model)
    }

    /// Asks every worker from time to time whether it is alive, until `stop`. The gateway owns this future.
    pub async fn watch(&self, stop: CancellationToken) {
        let settings = &self.shared.settings;
        if settings.check == Check::Off {
            return;
        }
        while stop.run_until_cancelled(tokio::time::sleep(settings.check_every)).await.is_some() {
            let asks = (0..self.shared.workers.len()).map(|index| self.ask(index));
            if stop.run_until_cancelled(futures_util::future::join_all(asks)).await.is_none() {
                return;
            }
        }
    }

    async fn ask(&self, index: usize) {
        let Some(worker) = self.shared.workers.get(index) else { return };
        let alive = check::alive(&worker.spec.url, &self.shared.settings).await;
        let changed = self.roster().asked(index, alive, Instant::now());
        if changed {
            tracing::warn!(worker = worker.spec.name, alive, "worker changed its state");
        }
        self.publish();
    }

    async fn dial(&self, slot: Slot, query: &str) -> Option<Link> {
        let started = Instant::now();
        let worker = self.shared.workers.get(slot.index)?;
        let dialed =
            tokio::time::timeout(self.shared.settings.connect, link::dial(&worker.spec, query)).await;
        worker.connect_seconds.record(started.elapsed());
        match dialed {
            Ok(Ok(socket)) => {
                slot.works();
                Some(Link::new(socket, slot))
            }
            Ok(Err(fault)) => {
                tracing::warn!(worker = worker.spec.name, %fault, "worker did not take a stream");
                if fault.counts() {
                    slot.failed();
                }
                None
            }
            Err(_) => {
                tracing::warn!(worker = worker.spec.name, "worker did not answer in time");
                slot.failed();
                None
            }
        }
    }

    fn seat(&self, model: &str, tried: &[usize]) -> Result<Slot, NoWorker> {
        let index = self.roster().pick(model, tried, Instant::now())?;
        if let Some(worker) = self.shared.workers.get(index) {
            worker.streams.increment(1.0);
        }
        Ok(Slot { pool: self.clone(), index })
    }

    fn publish(&self) {
        let now = Instant::now();
        let roster = self.roster();
        for (index, worker) in self.shared.workers.iter().enumerate() {
            worker.up.set(if roster.up(index, now) { 1.0 } else { 0.0 });
        }
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.shared.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One stream's place at a worker; free again when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    pool: Pool,
    index: usize,
}

impl Slot {
    fn name(&self) -> &str {
        self.pool.shared.workers.get(self.index).map_or("", |worker| &worker.spec.name)
    }

    fn works(&self) {
        self.pool.roster().works(self.index);
        self.pool.publish();
    }

    fn failed(&self) {
        self.pool.roster().failed(self.index, Instant::now());
        self.pool.publish();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.roster().leave(self.index);
        if let Some(worker) = self.pool.shared.workers.get(self.index) {
            worker.streams.decrement(1.0);
        }
    }
}

/// One worker as configured.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// Its name in logs, metrics and ledger rows.
    pub name: String,
    /// Where it listens.
    pub url: WorkerUrl,
    /// Models it serves; empty: all.
    pub models: Vec<String>,
    /// Most streams at once.
    pub streams_max: u32,
    /// Its share of the streams relative to the others, at least 1.
    pub weight: u32,
    /// Sent as `Authorization: Token …`.
    pub token: Option<Secret>,
}

/// How the pool behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a worker may take to accept a connection, upgrade included.
    pub connect: Duration,
    /// How workers are asked whether they are alive.
    pub check: Check,
    /// How often they are asked.
    pub check_every: Duration,
    /// How long a worker is left out after its first failure; doubles with each further one.
    pub eject_first: Duration,
    /// Longest time a worker is left out.
    pub eject_max: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect: limits::WORKER_CONNECT,
            check: Check::Http { path: "/v1/status".into() },
            check_every: Duration::from_secs(5),
            eject_first: Duration::from_secs(1),
            eject_max: Duration::from_secs(30),
        }
    }
}

/// How a worker is asked whether it is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// Not at all: only failed streams tell.
    Off,
    /// It accepts a TCP connection.
    Tcp,
    /// It gives any HTTP answer at this path.
    Http {
        /// Begins with a slash.
        path: String,
    },
}

/// A checked `ws://host[:port][/path]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerUrl {
    /// `host:port`, as connected to and as sent in `Host`.
    authority: String,
    /// Path of the stream endpoint.
    path: String,
}

impl WorkerUrl {
    /// Reads an address; without a path it means `/v1/listen`, without a port 80.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn parse(text: &str) -> Result<Self, String> {
        let uri: http::Uri = text.parse().map_err(|fault| format!("not an address: {fault}"))?;
        match uri.scheme_str() {
            Some("ws") => {}
            Some("wss") => return Err("wss:// workers are not supported yet, use ws://".into()),
            Some(_) | None => return Err("a worker's address begins with ws://".into()),
        }
        let Some(host) = uri.host().filter(|host| !host.is_empty()) else { return Err("no host".into()) };
        if uri.query().is_some() {
            return Err("a worker's address has no query: the client's is passed on".into());
        }
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("no credentials in a worker's address: use its token".into());
        }
        let authority = format!("{host}:{}", uri.port_u16().unwrap_or(80));
        let path = if uri.path() == "/" || uri.path().is_empty() { "/v1/listen" } else { uri.path() };
        Ok(Self { authority, path: path.to_owned() })
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ws://{}{}", self.authority, self.path)
    }
}

/// A text that no log, error or debug output shows.
#[derive(Clone)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps the text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// How a worker does.
#[derive(Clone, Debug)]
pub struct WorkerState {
    /// Its configured name.
    pub name: String,
    /// Whether it is asked for new streams.
    pub up: bool,
    /// Streams it has from this gateway.
    pub streams: u32,
    /// Most it may have.
    pub streams_max: u32,
}

/// Why there is no worker for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWorker {
    /// None is configured for this model.
    #[error("no worker serves this model")]
    Unknown,
    /// All that are well have as many streams as they may.
    #[error("every worker is full")]
    Full,
    /// None could be reached.
    #[error("no worker can be reached")]
    Down,
}

#[derive(Debug)]
struct Shared {
    workers: Vec<Worker>,
    settings: Settings,
    roster: Mutex<Roster>,
}

struct Worker {
    spec: WorkerSpec,
    streams: Gauge,
    up: Gauge,
    connect_seconds: Histogram,
}

impl Worker {
    fn new(spec: WorkerSpec) -> Self {
        let name = spec.name.clone();
        Self {
            streams: gauge!("voxgate_worker_streams", "worker" => name.clone()),
            up: gauge!("voxgate_worker_up", "worker" => name.clone()),
            connect_seconds: histogram!("voxgate_worker_connect_seconds", "worker" => name),
            spec,
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

fn jitter() -> Duration {
    Duration::from_millis(fastrand::u64(10..50))
}

#[cfg(test)]
mod tests {
    use super::{Secret, WorkerUrl};

    #[test]
    fn worker_address_needs_ws() {
        let url = WorkerUrl::parse("ws://127.0.0.1:9000").expect("a plain address");
        assert_eq!(url.to_string(), "ws://127.0.0.1:9000/v1/listen");
        assert_eq!(WorkerUrl::parse("ws://w/x").expect("a path").to_string(), "ws://w:80/x");
        for text in ["", "http://a", "wss://a", "ws://", "ws://a?x=1", "ws://u:p@a", "127.0.0.1:9000"] {
            assert!(WorkerUrl::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn debug_hides_secrets() {
        assert_eq!(format!("{:?}", Secret::new("marker")), "Secret(…)");
    }
}
