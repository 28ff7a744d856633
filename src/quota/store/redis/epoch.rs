//! One connection to one server, from its opening to its end: an epoch.
//!
//! It is open once the server has taken our login and has said that it is a primary. It ends when it breaks, when it
//! owes answers and gives none for [`STALL`], or when nobody holds it any more. Calls that were sent stay pending until
//! then; only its end puts them in doubt. A call that comes later is not sent on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::{Reply, StoreError};
use super::access::Access;
use super::target::Address;
use crate::limits::{STALL, STORE_CALLS_WAITING, STORE_CONNECT, STORE_WRITE_BYTES};

/// A connection, and the proof that it is alive.
pub(super) struct Epoch {
    connection: MultiplexedConnection,
    pulse: Arc<Pulse>,
    /// Ends the connection's task with the last holder.
    _end: DropGuard,
}

impl Epoch {
    /// Connects, logs in, and makes sure that the server is a primary.
    ///
    /// # Errors
    /// `Denied` for a login that is not taken, `Away` for everything else that time may mend; never in doubt.
    pub(super) async fn open(address: &Address, access: &Access) -> Result<Self, StoreError> {
        match tokio::time::timeout(STORE_CONNECT, Self::open_now(address, access)).await {
            Ok(opened) => opened,
            Err(_) => {
                Err(StoreError::Away(format!("connecting to {address} took more than {STORE_CONNECT:?}")))
            }
        }
    }

    async fn open_now(address: &Address, access: &Access) -> Result<Self, StoreError> {
        let away = |error: &dyn std::fmt::Display| {
            StoreError::Away(format!("can't connect to {address}: {error:.200}"))
        };
        let host = address.host.as_str();
        let stream = TcpStream::connect((host, address.port)).await.map_err(|error| away(&error))?;
        stream.set_nodelay(true).map_err(|error| away(&error))?;
        let epoch = match &access.tls {
            None => Self::over(stream).await?,
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned()).map_err(|error| away(&error))?;
                let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
                Self::over(stream.map_err(|error| away(&error))?).await?
            }
        };
        epoch.greet(address, access).await?;
        Ok(epoch)
    }

    async fn over<S>(stream: S) -> Result<Self, StoreError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // The library's own login and greeting stay out: ours tell the server's answers apart.
        let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_pipeline_buffer_size(STORE_CALLS_WAITING)
            .set_write_backpressure_boundary(STORE_WRITE_BYTES);
        let opened = MultiplexedConnection::new_with_config(&silent, stream, config).await;
        let (connection, driver) = opened.map_err(|error| StoreError::Away(format!("{error:.200}")))?;
        let (pulse, end) = (Arc::new(Pulse::new()), CancellationToken::new());
        tokio::spawn(drive(driver, Arc::clone(&pulse), end.clone()));
        Ok(Self { connection, pulse, _end: end.drop_guard() })
    }

    /// Logs in, chooses the database, and asks for the role.
    async fn greet(&self, address: &Address, access: &Access) -> Result<(), StoreError> {
        let guess = match access.tls {
            Some(_) => "it may want a certificate of ours (store.cert_file)",
            None => "it may want TLS (rediss://)",
        };
        let said = |error| match error {
            // Nothing of ours ran on a connection that never was.
            StoreError::Lost(why) => StoreError::Away(format!("{address} hung up: {why}; {guess}")),
            StoreError::Away(ended) if ended == ENDED => {
                StoreError::Away(format!("{address} hung up; {guess}"))
            }
            StoreError::Late(within) => StoreError::Away(format!("{address} said nothing within {within:?}")),
            StoreError::Odd(text) => StoreError::Away(format!("{address} said: {text:.200}")),
            sorted => sorted,
        };
        for greeting in access.greetings() {
            self.send(&greeting).await.map_err(|error| said(without_login(error)))?;
        }
        if access.any_role {
            return Ok(());
        }
        let role = self.send(&::redis::cmd("ROLE")).await.map_err(said)?;
        let word = match &role {
            Reply::List(parts) => parts.first(),
            Reply::Nil | Reply::Int(_) | Reply::Bulk(_) | Reply::Status(_) => None,
        };
        match word {
            Some(Reply::Bulk(word)) if word == b"master" => Ok(()),
            _ => Err(StoreError::Away(format!("READONLY {address} is not a primary"))),
        }
    }

    /// Whether calls may still be sent.
    pub(super) fn is_alive(&self) -> bool {
        !self.pulse.dead.is_cancelled()
    }

    /// Ends it, with all that is pending: the server is known to be replaced.
    pub(super) fn end(&self) {
        self.pulse.dead.cancel();
    }

    /// Sends one command and waits for its reply, as long as the connection lives.
    pub(super) async fn send(&self, call: &Cmd) -> Result<Reply, StoreError> {
        let mut connection = self.connection.clone();
        self.answer(connection.send_packed_command(call)).await.and_then(read)
    }

    /// Sends commands in one write; gives each one's reply.
    pub(super) async fn send_all(
        &self,
        calls: &Pipeline,
    ) -> Result<Vec<Result<Reply, StoreError>>, StoreError> {
        let mut connection = self.connection.clone();
        let values = self.answer(connection.send_packed_commands(calls, 0, calls.len())).await?;
        Ok(values.into_iter().map(read).collect())
    }

    async fn answer<T>(&self, call: impl Future<Output = Result<T, RedisError>>) -> Result<T, StoreError> {
        if !self.is_alive() {
            return Err(StoreError::Away(ENDED.into()));
        }
        let owed = Owed::new(&self.pulse);
        let answer = tokio::select! { biased;
            answer = call => answer,
            () = self.pulse.dead.cancelled() => return Err(StoreError::Late(STALL)),
        };
        drop(owed);
        match answer {
            Ok(value) => {
                self.pulse.touch();
                Ok(value)
            }
            Err(error) => match error.code() {
                Some(code) => {
                    self.pulse.touch();
                    Err(StoreError::from_text(&format!("{code} {}", error.detail().unwrap_or_default())))
                }
                None => {
                    self.end();
                    Err(StoreError::Lost(format!("{error:.200}")))
                }
            },
        }
    }
}

/// An error of a greeting; a server that does not know `AUTH` repeats what it was told, password and all.
fn without_login(error: StoreError) -> StoreError {
    match error {
        StoreError::Odd(text) if text.contains("AUTH") => {
            let word = text.split([' ', '\r', '\n']).next().unwrap_or_default();
            StoreError::Odd(format!("{word} to the login"))
        }
        other => other,
    }
}

/// Runs the connection until it breaks, stalls, or is not wanted any more.
async fn drive(connection: impl Future<Output = ()>, pulse: Arc<Pulse>, end: CancellationToken) {
    let mut connection = std::pin::pin!(connection);
    let mut tick = tokio::time::interval(STALL / 8);
    loop {
        tokio::select! { biased;
            () = end.cancelled() => break,
            () = pulse.dead.cancelled() => break,
            () = &mut connection => break,
            _ = tick.tick() => {}
        }
        if pulse.stalled() {
            tracing::warn!(stall = ?STALL, "store gives no reply: connection dropped");
            break;
        }
    }
    pulse.dead.cancel();
}

/// Of a call that was not sent any more.
const ENDED: &str = "the connection ended a moment ago";

/// What tells whether a connection is alive.
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
    fn new() -> Self {
        let (owed, moved) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { born: Instant::now(), owed, moved, dead: CancellationToken::new() }
    }

    fn touch(&self) {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved.store(now, Ordering::Relaxed);
    }

    fn stalled(&self) -> bool {
        let moved = Duration::from_millis(self.moved.load(Ordering::Relaxed));
        self.owed.load(Ordering::Relaxed) > 0 && self.born.elapsed().saturating_sub(moved) > STALL
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

fn read(value: Value) -> Result<Reply, StoreError> {
    Ok(match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => Reply::Bulk(bytes),
        Value::SimpleString(text) => Reply::Status(text),
        Value::Okay => Reply::Status("OK".into()),
        Value::Array(values) => Reply::List(values.into_iter().map(read).collect::<Result<_, _>>()?),
        Value::ServerError(error) => {
            let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
            return Err(StoreError::from_text(&text));
        }
        other => return Err(StoreError::Odd(format!("{:.120}", format!("{other:?}")))),
    })
}
