//! The one seam to the store: a script or a command goes in, a reply comes out.
//!
//! Two stores stand behind it, an enum of the two we own: [`Embedded`] runs the same Lua files in process,
//! [`RedisStore`] sends them to Redis or Valkey. Nothing above this file can tell which one it talks to.
//!
//! A call has one of three outcomes. *Answered*: a [`Reply`]. *Never ran*: an error whose [`Charge`] is
//! `None`, which may be repeated at will. *Unknown*: an error whose [`Charge`] is `Unknown`; the caller must
//! treat it as doubt (`design` of money: settle, then reserve anew) and never repeat an `admit`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sha1::{Digest, Sha1};

pub mod code;
pub mod embedded;
pub mod faults;
mod keyspace;
pub mod redis;
pub mod slot;

use embedded::Embedded;
use faults::{Fault, Faults};
use redis::RedisStore;

/// What a store answered, in the shape of RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A missing value.
    Nil,
    /// An integer.
    Int(i64),
    /// A bulk string, byte for byte.
    Bulk(Vec<u8>),
    /// A status line such as `OK`.
    Status(String),
    /// An array.
    List(Vec<Reply>),
}

/// A Lua script as stores know it: its text and the SHA-1 (hex) by which EVALSHA names it.
#[derive(Debug)]
pub struct Script {
    /// Metric label and file name, without the ending.
    pub name: &'static str,
    /// The whole text, `#!lua` line included.
    pub text: String,
    /// Lower-case hex SHA-1 of `text`.
    pub sha: String,
    /// Whether replicas are waited for, where that is asked for: it moves money between budgets and leases, so that
    /// losing it in a failover loses more than a chunk.
    pub waits: bool,
}

impl Script {
    /// A script by its text.
    pub fn new(name: &'static str, text: String) -> Self {
        let sha = hex::encode(Sha1::digest(text.as_bytes()));
        Self { name, text, sha, waits: false }
    }
}

/// Whether a call that gave no answer may have moved units all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// The script did not run.
    None,
    /// It may have run.
    Unknown,
}

/// Why a call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another script holds the server, so ours never began. Charge: none.
    #[error("store is busy in another script")]
    Busy,
    /// The server can't serve this now or is not the one to ask (`LOADING`, `CLUSTERDOWN`, `TRYAGAIN`,
    /// `MASTERDOWN`, `READONLY`, `MOVED`, `ASK`, `NOSCRIPT`), or could not be reached at all. Charge: none.
    #[error("store is not serving: {0}")]
    Away(String),
    /// The server refuses writes (`OOM`, `MISCONF`, `NOREPLICAS`). Charge: none.
    #[error("store refuses writes: {0}")]
    Refuses(String),
    /// A key holds something that our scripts never write. Charge: none.
    #[error("store holds a corrupt value: {0}")]
    Corrupt(String),
    /// Wrong password or missing permission. Charge: none, but for [`code::stopped_half_way`].
    #[error("store denies access: {0}")]
    Denied(String),
    /// The store answered something that this version can't read; a bug or a foreign script. Charge: unknown.
    #[error("store answered unexpectedly: {0}")]
    Odd(String),
    /// The connection was lost, or nothing came back on it for this long. Charge: unknown.
    #[error("no reply from the store within {0:?}")]
    Late(Duration),
    /// It ran, but fewer replicas have it than were asked for: a failover may lose it. Charge: unknown.
    #[error("written, but only {have} of {want} replicas have it")]
    Thin {
        /// Replicas that have it.
        have: u32,
        /// Replicas that should.
        want: u32,
        /// What it answered.
        reply: Box<Reply>,
    },
    /// The connection broke with the call in flight. Charge: unknown.
    #[error("connection to the store was lost: {0}")]
    Lost(String),
}

impl StoreError {
    /// Whether units may have moved although no answer came.
    pub const fn charge(&self) -> Charge {
        match self {
            Self::Busy | Self::Away(_) | Self::Refuses(_) | Self::Corrupt(_) | Self::Denied(_) => {
                Charge::None
            }
            Self::Odd(_) | Self::Late(_) | Self::Thin { .. } | Self::Lost(_) => Charge::Unknown,
        }
    }

    /// The error that a reply's error text means, by [`code`]'s table.
    pub fn from_text(text: &str) -> Self {
        code::error(text)
    }

    /// The metric label: the error reply's own, see [`code::CODES`], or `unreachable`, `odd`, `late`, `lost`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Away(text) => code::label(text, "unreachable"),
            Self::Refuses(text) => code::label(text, "refuses"),
            Self::Corrupt(_) => "corrupt",
            Self::Denied(text) => code::label(text, "denied"),
            Self::Odd(_) => "odd",
            Self::Late(_) => "late",
            Self::Thin { .. } => "thin",
            Self::Lost(_) => "lost",
        }
    }
}

/// One primary of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// `host:port`, or `embedded`: for metrics and tables.
    pub name: String,
    /// A hash slot that it serves.
    pub slot: u16,
}

/// The store, one of the two we own; with [`Faults`] for tests that lose answers on purpose.
#[derive(Clone)]
pub struct Store {
    kind: Kind,
    faults: Option<Arc<Faults>>,
}

#[derive(Clone)]
enum Kind {
    Embedded(Embedded),
    Redis(RedisStore),
}

impl From<Embedded> for Store {
    fn from(store: Embedded) -> Self {
        Self { kind: Kind::Embedded(store), faults: None }
    }
}

impl From<RedisStore> for Store {
    fn from(store: RedisStore) -> Self {
        Self { kind: Kind::Redis(store), faults: None }
    }
}

impl Store {
    /// The store behind a URL: `embedded`, `embedded:DIRECTORY`, or what [`redis::Target`] reads.
    ///
    /// Blocks for a directory, which is checked and read, see [`Embedded::open`]; no I/O for the others.
    pub fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(url, &redis::Options::default())
    }

    /// As [`Store::open`], with what the URL of a Redis store can't hold.
    pub fn open_with(url: &str, options: &redis::Options) -> Result<Self, StoreError> {
        if let Some(folder) = url.strip_prefix("embedded:") {
            return Ok(Embedded::open(Path::new(folder), embedded::Clock::System)?.into());
        }
        if url == "embedded" {
            return Ok(Embedded::new(embedded::Clock::System)?.into());
        }
        Ok(RedisStore::with(url, options)?.into())
    }

    /// The same store, behind a line that loses answers as `faults` says.
    #[must_use]
    pub fn with_faults(mut self, faults: Arc<Faults>) -> Self {
        self.faults = Some(faults);
        self
    }

    /// Runs one script. All `keys` lie in one slot. Errors say whether units may have moved.
    pub async fn run(&self, script: &Script, keys: &[&str], args: &[&str]) -> Result<Reply, StoreError> {
        let script = self.faults.as_ref().and_then(|faults| faults.damaged(script.name)).unwrap_or(script);
        match self.faults.as_ref().map_or(Fault::None, |faults| faults.next(script.name)) {
            Fault::None => self.run_now(script, keys, args).await,
            Fault::Before => Err(StoreError::Lost("cut before".into())),
            Fault::After => {
                self.run_now(script, keys, args).await?;
                Err(StoreError::Lost("cut after".into()))
            }
            Fault::Later => {
                if let Some(faults) = &self.faults {
                    faults.keep(script, keys, args);
                }
                Err(StoreError::Lost("still on its way".into()))
            }
        }
    }

    /// Delivers the calls that [`Fault::Later`] kept back; answers are dropped, as their callers are gone.
    pub async fn deliver_late(&self) {
        for late in self.faults.iter().flat_map(|faults| faults.take()) {
            let (keys, args): (Vec<_>, Vec<_>) = (late.keys(), late.args());
            if let Err(error) = self.run_now(late.script(), &keys, &args).await {
                tracing::trace!(%error, "late call failed");
            }
        }
    }

    async fn run_now(&self, script: &Script, keys: &[&str], args: &[&str]) -> Result<Reply, StoreError> {
        match &self.kind {
            Kind::Embedded(store) => store.run(script, keys, args),
            // Boxed: dialling and looking for the primary take room that every stream's task would carry for life.
            Kind::Redis(store) => Box::pin(store.run(script, keys, args)).await,
        }
    }

    /// Runs one plain command on one key (or none).
    pub async fn command(&self, words: &[&str]) -> Result<Reply, StoreError> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        match &self.kind {
            Kind::Embedded(store) => store.command(&words),
            Kind::Redis(store) => Box::pin(store.command(&words)).await,
        }
    }

    /// The primaries of the store, as known now, each with a slot that it serves; one for a store that is one server.
    ///
    /// # Errors
    /// The store does not say.
    pub async fn shards(&self) -> Result<Vec<Shard>, StoreError> {
        match &self.kind {
            Kind::Embedded(_) => Ok(vec![Shard { name: "embedded".into(), slot: 0 }]),
            Kind::Redis(store) => Box::pin(store.shards()).await,
        }
    }

    /// Runs one command that names no key (`INFO`, `SCAN`, `SLOWLOG`, …) on one primary.
    pub async fn command_on(&self, shard: &Shard, words: &[&str]) -> Result<Reply, StoreError> {
        match &self.kind {
            Kind::Embedded(_) => self.command(words).await,
            Kind::Redis(store) => Box::pin(store.command_on(shard, words)).await,
        }
    }

    /// Writes what is not on disk yet and gives the directory free; later writes are refused. Blocks. Nothing for a
    /// store without a directory.
    ///
    /// # Errors
    /// [`StoreError::Refuses`]: what the last second changed is lost.
    pub fn close(&self) -> Result<(), StoreError> {
        match &self.kind {
            Kind::Embedded(store) => store.close(),
            Kind::Redis(_) => Ok(()),
        }
    }

    /// `embedded` or `redis`: for logs and tables.
    pub const fn word(&self) -> &'static str {
        match self.kind {
            Kind::Embedded(_) => "embedded",
            Kind::Redis(_) => "redis",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_doubtful_errors_may_have_charged() {
        assert_eq!(StoreError::from_text("BUSY x").charge(), Charge::None);
        assert_eq!(StoreError::from_text("WRONGTYPE x").charge(), Charge::None);
        assert_eq!(StoreError::from_text("ERR x").charge(), Charge::Unknown);
        assert_eq!(StoreError::Late(Duration::from_secs(2)).charge(), Charge::Unknown);
    }
}
