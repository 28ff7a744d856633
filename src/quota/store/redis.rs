//! Redis and Valkey, standalone: scripts by EVALSHA on one multiplexed connection.
//!
//! # States
//! *No connection* → the next call connects (callers share one attempt; failures back off with jitter) →
//! *Epoch*: one connection, until it breaks, stalls, or turns out to lead to a replica → *No connection*.
//!
//! # What may be repeated
//! Only what certainly never ran: a failed connect, and EVALSHA answered by NOSCRIPT. The client library's own
//! resending is not in use (a plain multiplexed connection has none). A call that was sent stays pending as long
//! as its connection gives any reply at all; [`STALL`] without one drops the connection, and only then are its
//! calls in doubt.
//!
//! # Failures
//! | seen | error | charge |
//! |---|---|---|
//! | connect refused, timed out, or backing off | `Away` | none |
//! | connection broke with the call in flight | `Lost` | unknown |
//! | nothing came back for `STALL` | `Late` | unknown |
//! | an error reply | by its first word, see `StoreError::from_text` | none, unless it can't be read |

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, RedisError, Value};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Reply, Script, StoreError};
use crate::limits::{STALL, STORE_BACKOFF_MAX, STORE_BACKOFF_MIN, STORE_CONNECT};

/// One Redis or Valkey server. Cheap to clone; all clones share one connection.
#[derive(Clone)]
pub struct RedisStore(Arc<Shared>);

struct Shared {
    client: Client,
    /// The running connection. Held for a few instructions only, never across an await.
    epoch: Mutex<Option<Arc<Epoch>>>,
    /// Serializes connecting, and remembers failures.
    dial: tokio::sync::Mutex<Dial>,
    /// Serializes SCRIPT LOAD; counts them.
    loads: tokio::sync::Mutex<()>,
    loaded: AtomicU64,
}

#[derive(Default)]
struct Dial {
    failures: u32,
    not_before: Option<Instant>,
    last_error: Option<StoreError>,
}

/// One connection and the proof that it is alive.
struct Epoch {
    connection: MultiplexedConnection,
    pulse: Arc<Pulse>,
    /// Ends the watchdog with the last call.
    _watch: DropGuard,
}

/// What the watchdog looks at.
struct Pulse {
    born: Instant,
    /// Calls without an answer.
    owed: AtomicU64,
    /// Milliseconds after `born` of the last reply, or of the first call after a quiet time.
    moved: AtomicU64,
    /// Cancelled when the connection is given up.
    dead: CancellationToken,
}

impl Pulse {
    fn touch(&self) {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved.store(now, Ordering::Relaxed);
    }

    fn stalled(&self) -> bool {
        let quiet =
            self.born.elapsed().saturating_sub(Duration::from_millis(self.moved.load(Ordering::Relaxed)));
        self.owed.load(Ordering::Relaxed) > 0 && quiet > STALL
    }
}

/// Counts one call as owed until it is answered, dropped or given up.
struct Owed<'a>(&'a Pulse);

impl<'a> Owed<'a> {
    fn new(pulse: &'a Pulse) -> Self {
        if pulse.owed.fetch_add(1, Ordering::Relaxed) == 0 {
            pulse.touch();
        }
        Self(pulse)
    }
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        self.0.owed.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RedisStore {
    /// A store at a `redis://` URL; connects at the first call. `Denied` when the URL can't be read (the text
    /// does not repeat it, since it may hold a password).
    pub fn new(url: &str) -> Result<Self, StoreError> {
        let client =
            Client::open(url).map_err(|_| StoreError::Denied("the store URL can't be read".into()))?;
        Ok(Self(Arc::new(Shared {
            client,
            epoch: Mutex::new(None),
            dial: tokio::sync::Mutex::default(),
            loads: tokio::sync::Mutex::default(),
            loaded: AtomicU64::new(0),
        })))
    }

    /// Runs a script: EVALSHA, and SCRIPT LOAD once when the server has lost it.
    pub async fn run(&self, script: &Script, keys: &[&str], args: &[&str]) -> Result<Reply, StoreError> {
        let mut call = ::redis::cmd("EVALSHA");
        call.arg(&script.sha).arg(keys.len()).arg(keys).arg(args);
        for _ in 0..LOADS_MAX {
            let seen = self.0.loaded.load(Ordering::Acquire);
            match self.send(&call).await {
                Err(StoreError::Away(text)) if text.starts_with("NOSCRIPT") => {
                    self.load(script, seen).await?
                }
                answer => return answer,
            }
        }
        Err(StoreError::Away("the server keeps losing its scripts".into()))
    }

    /// Runs one plain command.
    pub async fn command(&self, words: &[&[u8]]) -> Result<Reply, StoreError> {
        let mut call = Cmd::new();
        for word in words {
            call.arg(*word);
        }
        self.send(&call).await
    }

    /// The one server.
    pub async fn shards(&self) -> Result<Vec<super::Shard>, StoreError> {
        self.epoch().await?;
        Ok(vec![super::Shard { name: self.0.client.get_connection_info().addr().to_string(), slot: 0 }])
    }

    /// Runs one plain command on the one server.
    pub async fn command_on(&self, _: &super::Shard, words: &[&str]) -> Result<Reply, StoreError> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.command(&words).await
    }

    /// How often scripts were loaded since the start.
    pub fn loads(&self) -> u64 {
        self.0.loaded.load(Ordering::Relaxed)
    }

    /// Loads a script unless another caller has done so since `seen`.
    async fn load(&self, script: &Script, seen: u64) -> Result<(), StoreError> {
        let _turn = self.0.loads.lock().await;
        if self.0.loaded.load(Ordering::Acquire) != seen {
            return Ok(());
        }
        self.send(::redis::cmd("SCRIPT").arg("LOAD").arg(&script.text)).await?;
        self.0.loaded.fetch_add(1, Ordering::Release);
        metrics::counter!("voxgate_script_loads_total").increment(1);
        Ok(())
    }

    async fn send(&self, call: &Cmd) -> Result<Reply, StoreError> {
        let epoch = self.epoch().await?;
        let mut connection = epoch.connection.clone();
        let owed = Owed::new(&epoch.pulse);
        let answer = tokio::select! { biased;
            answer = connection.send_packed_command(call) => answer,
            () = epoch.pulse.dead.cancelled() => return Err(StoreError::Late(STALL)),
        };
        drop(owed);
        match answer {
            Ok(Value::ServerError(error)) => Err(self.denied(&epoch, error.code(), error.details())),
            Ok(value) => {
                epoch.pulse.touch();
                read(value)
            }
            Err(error) => match error.code() {
                Some(code) => Err(self.denied(&epoch, code, error.detail())),
                None => {
                    self.give_up(&epoch);
                    Err(StoreError::Lost(format!("{:?}", error.kind())))
                }
            },
        }
    }

    /// Sorts an error reply; a server that is not the one to ask is left.
    fn denied(&self, epoch: &Arc<Epoch>, code: &str, detail: Option<&str>) -> StoreError {
        epoch.pulse.touch();
        if matches!(code, "READONLY" | "MOVED" | "MASTERDOWN") {
            self.give_up(epoch);
        }
        StoreError::from_text(&format!("{code} {}", detail.unwrap_or_default()))
    }

    fn give_up(&self, epoch: &Arc<Epoch>) {
        let mut current = self.0.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|now| Arc::ptr_eq(now, epoch)) {
            *current = None;
            metrics::gauge!("voxgate_store_up").set(0.0);
        }
    }

    fn running(&self) -> Option<Arc<Epoch>> {
        let mut current = self.0.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|epoch| epoch.pulse.dead.is_cancelled()) {
            *current = None;
        }
        current.clone()
    }

    /// The running connection, or a new one.
    async fn epoch(&self) -> Result<Arc<Epoch>, StoreError> {
        if let Some(epoch) = self.running() {
            return Ok(epoch);
        }
        let mut dial = self.0.dial.lock().await;
        if let Some(epoch) = self.running() {
            return Ok(epoch);
        }
        if let Some(error) =
            dial.last_error.clone().filter(|_| dial.not_before.is_some_and(|at| Instant::now() < at))
        {
            return Err(error);
        }
        match self.connect().await {
            Ok(epoch) => {
                *dial = Dial::default();
                *self.0.epoch.lock().unwrap_or_else(PoisonError::into_inner) = Some(epoch.clone());
                metrics::gauge!("voxgate_store_up").set(1.0);
                metrics::counter!("voxgate_store_connects_total").increment(1);
                Ok(epoch)
            }
            Err(error) => {
                dial.failures = dial.failures.saturating_add(1);
                dial.not_before = Some(Instant::now() + backoff(dial.failures));
                dial.last_error = Some(error.clone());
                metrics::gauge!("voxgate_store_up").set(0.0);
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<Arc<Epoch>, StoreError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(STORE_CONNECT))
            .set_response_timeout(None);
        let dialing = self.0.client.get_multiplexed_async_connection_with_config(&config);
        let connection = match tokio::time::timeout(STORE_CONNECT, dialing).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(refused(&error)),
            Err(_) => return Err(StoreError::Away(format!("connecting took more than {STORE_CONNECT:?}"))),
        };
        let pulse = Arc::new(Pulse {
            born: Instant::now(),
            owed: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            dead: CancellationToken::new(),
        });
        let done = CancellationToken::new();
        tokio::spawn(watch(pulse.clone(), done.clone()));
        Ok(Arc::new(Epoch { connection, pulse, _watch: done.drop_guard() }))
    }
}

/// Declares a connection dead when it owes answers and gives none for [`STALL`].
async fn watch(pulse: Arc<Pulse>, done: CancellationToken) {
    let mut tick = tokio::time::interval(STALL / 8);
    loop {
        tokio::select! {
            () = done.cancelled() => return,
            _ = tick.tick() => {}
        }
        if pulse.stalled() {
            tracing::warn!(stall = ?STALL, "store gives no reply: connection dropped");
            pulse.dead.cancel();
            return;
        }
    }
}

/// Why a connection could not be had: an error reply in its set-up (wrong password, loading), or the network.
fn refused(error: &RedisError) -> StoreError {
    match error.code() {
        Some(code) => {
            match StoreError::from_text(&format!("{code} {}", error.detail().unwrap_or_default())) {
                StoreError::Odd(text) => StoreError::Away(text),
                sorted => sorted,
            }
        }
        None if error.kind() == ::redis::ErrorKind::AuthenticationFailed => {
            StoreError::Denied("the store refused our user or password".into())
        }
        None => StoreError::Away(format!("can't connect: {error:.200}")),
    }
}

/// Grows from [`STORE_BACKOFF_MIN`] to [`STORE_BACKOFF_MAX`], with full jitter in its upper half.
fn backoff(failures: u32) -> Duration {
    let most = STORE_BACKOFF_MIN.saturating_mul(1 << failures.min(10)).min(STORE_BACKOFF_MAX);
    most / 2 + most.mul_f64(fastrand::f64() / 2.0)
}

/// How often one call may find its script lost and loaded again.
const LOADS_MAX: u32 = 8;

fn read(value: Value) -> Result<Reply, StoreError> {
    Ok(match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => Reply::Bulk(bytes),
        Value::SimpleString(text) => Reply::Status(text),
        Value::Okay => Reply::Status("OK".into()),
        Value::Array(values) => Reply::List(values.into_iter().map(read).collect::<Result<_, _>>()?),
        other => return Err(StoreError::Odd(format!("{:.120}", format!("{other:?}")))),
    })
}
