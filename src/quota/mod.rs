//! Money: accounts, budgets, leases, admission. INTERFACE SKETCH: bodies arrive with the quota room.

use std::sync::Arc;
use std::time::Duration;

use crate::ending::Ending;
use crate::units::Units;

pub mod store;

use store::{Reply, StoreError};

/// A name that may become part of a key: `A-Z a-z 0-9 - _ .`, 1 to 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);
impl Name {
    /// The name, or `None` outside the alphabet or the length.
    pub fn parse(_text: &str) -> Option<Self> {
        todo!()
    }
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How an account's time is cut into budget periods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeriodRule {
    /// Calendar hours of the account's zone.
    Hour,
    /// Calendar days.
    Day,
    /// Calendar months.
    Month,
    /// Fixed length in seconds (1 ..= 31 days), counted from 1970.
    Fixed(u32),
}

/// One account: who pays, and what it may use in a period. Stored under `account:{a}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub id: Name,
    /// Units per period.
    pub cap: Units,
    /// How time is cut.
    pub period: PeriodRule,
    /// IANA zone name of calendar periods, default `UTC`.
    pub zone: String,
    /// One session may reserve at most 1/share of what is free (1 = all of it). Default 8.
    pub share: u32,
    /// No new leases.
    pub frozen: bool,
}

/// One API key as stored under `key:<sha256>`; the secret itself is never stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// First 16 hex digits of the secret's SHA-256: how people and logs name the key.
    pub fingerprint: String,
    /// Whose key.
    pub account: Name,
    /// A word for people.
    pub label: String,
    /// Units per period through this key; `None`: only the account's cap.
    pub cap: Option<Units>,
    /// Units per session; `None`: no session cap.
    pub session_cap: Option<Units>,
    /// Live streams at once.
    pub streams_max: u32,
    /// Models this key may use; empty: all.
    pub models: Vec<String>,
    /// No new streams, and live ones end within one heartbeat.
    pub revoked: bool,
}

/// Where a budget stands in its running period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Period id, e.g. `d1764460800`.
    pub period: String,
    /// Unix seconds.
    pub starts_at: i64,
    /// Unix seconds.
    pub ends_at: i64,
    /// Cap in force, top-ups included.
    pub cap: Units,
    /// Settled plus held.
    pub taken: Units,
    /// Reserved by open leases.
    pub held: Units,
    /// Charged by closed leases.
    pub settled: Units,
    /// Cap less taken.
    pub left: Units,
}

/// What a stream is, as far as money cares.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Who pays.
    pub account: Arc<Account>,
    /// The key that opened it.
    pub key: Arc<Key>,
    /// Session asked for by the client or its token; minted when `None`.
    pub session: Option<Name>,
    /// Model name (at most 64 bytes are kept in the ledger).
    pub model: String,
    /// Units per second of audio: sizes the first envelope.
    pub units_per_second: u32,
    /// Tags for the ledger row, joined by commas (cut at 128 bytes).
    pub tags: String,
}

/// Why nothing was reserved, or no more can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The period's budget is spent; it renews at this unix second.
    Budget { left: Units, renews_at: i64 },
    /// What is left is held by other streams until about this unix second.
    Held { left: Units, until: i64 },
    /// The session's own cap is used up.
    Session { left: Units },
    /// The key's own cap for the period is used up.
    Key { left: Units, renews_at: i64 },
    /// Too many live streams on this key.
    Streams { max: u32 },
    /// Too many open leases of this session.
    Leases,
    /// Account frozen.
    Frozen,
    /// No such account (any more), or the key is revoked.
    Revoked,
    /// The session was ended by its owner.
    Ended,
    /// The session was opened with other terms (model, tariff, tags).
    Conflict,
    /// The session belongs to somebody else.
    NotYours,
    /// The store lost this period's or session's books; an operator must run `audit --rebuild`.
    Lost,
}

/// Why `open` gave no lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The store decided against it.
    #[error("refused")]
    Refused(Refusal),
    /// The store did not decide (503 to the client).
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What was decided about one chunk. A refusal is an answer, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Paid for; hand it to the link, then call [`Lease::tally`] or [`Lease::waste`].
    Grant,
    /// Not paid, nothing taken. `left` units can still be had in one piece: cut the chunk there and admit the
    /// first part (then ask again with the rest, which will be refused with `left` 0).
    Refuse { left: Units, why: Refusal },
    /// The quota key is gone (ended, revoked, reaped): stop.
    Lapse,
}

/// What a settle gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Units this stream handed to its worker over its whole life.
    pub tally: Units,
    /// Units taken, or maybe taken, that are not owed.
    pub waste: Units,
}

/// The money room. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Quota;

impl Quota {
    /// Reads an account.
    pub async fn account(&self, _id: &Name) -> Result<Option<Account>, StoreError> {
        todo!()
    }
    /// Creates or changes an account.
    pub async fn put_account(&self, _account: &Account) -> Result<(), StoreError> {
        todo!()
    }
    /// All accounts (admin only; pages through the store).
    pub async fn accounts(&self) -> Result<Vec<Account>, StoreError> {
        todo!()
    }
    /// The key behind a secret, by its SHA-256.
    pub async fn key(&self, _secret: &str) -> Result<Option<Key>, StoreError> {
        todo!()
    }
    /// Makes a key and gives its secret, the only time it is seen. `fingerprint` of the argument is ignored.
    pub async fn add_key(&self, _key: Key) -> Result<(String, Key), StoreError> {
        todo!()
    }
    /// Keys of an account.
    pub async fn keys(&self, _account: &Name) -> Result<Vec<Key>, StoreError> {
        todo!()
    }
    /// Where the running period stands.
    pub async fn balance(&self, _account: &Account) -> Result<Balance, StoreError> {
        todo!()
    }
    /// Opens a stream: reserves its first envelope.
    pub async fn open(&self, _terms: Terms) -> Result<Lease, OpenError> {
        todo!()
    }
    /// Runs `admit` at its largest allowed input on a private key and gives the complete call's time.
    pub async fn probe(&self) -> Result<Duration, StoreError> {
        todo!()
    }
    /// Waits until every settle in flight is done, at most `patience`; gives how many were left to the reaper.
    pub async fn drain(&self, _patience: Duration) -> usize {
        todo!()
    }
    /// Runs one plain command; for `check` and admin only.
    pub async fn command(&self, _words: &[&str]) -> Result<Reply, StoreError> {
        todo!()
    }
}

/// One stream's claim on its session's envelope. One admit in flight at a time, by `&mut`.
#[derive(Debug)]
pub struct Lease;

impl Lease {
    /// The session's public id (what the client may come back with).
    pub fn session(&self) -> &str {
        todo!()
    }
    /// Takes `cost` units (> 0) or says why not; refills, doubt and a slow store are dealt with inside, for at most
    /// [`crate::limits::HOLD`] before the store's error is given. Never drop this future half way.
    pub async fn admit(&mut self, _cost: Units) -> Result<Admission, StoreError> {
        todo!()
    }
    /// The units of the last grant went to the worker.
    pub fn tally(&mut self, _cost: Units) {
        todo!()
    }
    /// The units of the last grant were not handed over.
    pub fn waste(&mut self, _cost: Units) {
        todo!()
    }
    /// What this stream may still use, as far as known: envelope plus what was free at the last reserve.
    pub fn left(&self) -> Units {
        todo!()
    }
    /// Cap of the period as last known.
    pub fn cap(&self) -> Units {
        todo!()
    }
    /// Call every [`crate::limits::HEARTBEAT`]: renews the lease and the stream's place in the background.
    pub fn beat(&mut self) {
        todo!()
    }
    /// Resolves when something in the background went so wrong that the stream must end (revoked, ended, lost).
    /// Cancel safe; pending for ever while all is well.
    pub async fn ended(&mut self) -> Ending {
        todo!()
    }
    /// Nobody spoke for [`crate::limits::LEASE_IDLE`]: gives the envelope back; the next admit reserves again.
    pub fn rest(&mut self) {
        todo!()
    }
    /// The end: settles what was handed over. Waits a short while for the store, then leaves it to a background
    /// retry (and at last to the reaper). `note` (worker name) goes into the ledger row.
    pub async fn settle(self, _ending: Ending, _note: &str) -> Settlement {
        todo!()
    }
}
