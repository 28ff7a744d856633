//! Money: accounts, budgets, envelopes, admission, settlement. Nobody outside can tell that Redis exists.
//!
//! # The flow
//! 1. [`Quota::open`] runs `reserve`: an envelope leaves the account's budget for one session (or the session's open
//!    lease is joined) and this stream is attached to it.
//! 2. [`Lease::admit`] runs `admit` on the envelope's quota key, once per batch of waiting audio. Before the envelope
//!    runs low the next one is reserved in the background.
//! 3. The caller says what became of the units: [`Lease::tally`] (handed to the worker) or [`Lease::waste`].
//! 4. [`Lease::settle`] reports both; the last stream out of a lease closes it, and what was not used returns.
//! 5. What a dead gateway left behind is closed by `reap` after its deadline, see [`reaper`].
//!
//! # Doubt
//! | answer lost on | done |
//! |---|---|
//! | `admit` | cost counts as waste, this lease is settled, the next one is reserved, the chunk is admitted there |
//! | `reserve` | repeated with the same attachment: the script repeats its answer |
//! | `settle` | repeated until the lease's deadline, then left to the reaper |
//!
//! # Looking after it
//! [`ledger`] and [`export`]: what was charged, row by row. [`audit`]: whether the books agree. [`rebuild`]: a lost
//! budget comes back. [`probe`] and [`watch`]: how long scripts take, and what their server says of it. `operate`:
//! freeze, end, revoke, delete, top up. `schema`: which versions share a store; call
//! [`Quota::check_schema`] before the first stream. `deploy/mechanisms.md` names the test of each mechanism.
//!
//! # Tests
//! Unit facts beside the code; `tests/scripts.rs` (each script, both stores), `tests/money.rs` (random walks with
//! lost answers, crashes and period edges; races through two gateways).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_util::task::TaskTracker;

use crate::limits::{DEADLINE, HOLD};
use crate::units::Units;

mod accounts;
pub mod answer;
mod ask;
pub mod audit;
mod breaker;
mod change;
mod clock;
mod command;
pub mod export;
pub mod keys;
mod lease;
pub mod ledger;
mod meters;
mod operate;
mod pause;
pub mod period;
pub mod permissions;
pub mod probe;
pub mod reaper;
pub mod rebuild;
mod schema;
pub mod script;
mod settler;
mod signing;
pub mod store;
pub mod watch;
mod work;

pub use accounts::{Account, Key, Past};
use answer::Books;
use breaker::{Breaker, Lane};
pub use breaker::{Gate, Unasked};
pub use change::AccountChange;
use keys::Keys;
pub use keys::Name;
pub use lease::Lease;
pub use operate::{Made, OpenLease, Operated, Session, Topup, TopupError};
use pause::{Pause, pauses};
pub use period::PeriodRule;
pub use schema::{SCHEMA, SchemaError};
use script::Reserve;
use store::{Charge, Reply, Script, Store, StoreError};

/// What an operator can set about money.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What every key begins with.
    pub prefix: String,
    /// First envelope, in audio time.
    pub envelope_first: Duration,
    /// Longest envelope, in audio time.
    pub envelope_longest: Duration,
    /// Least that a stream may be opened with, in audio time.
    pub floor: Duration,
    /// Overrun allowed at settle.
    pub epsilon: Units,
    /// How long a lease lives without a heartbeat: at most [`DEADLINE`] unless in simulations.
    pub lifetime: Duration,
    /// How long a session is remembered.
    pub session_keep: Duration,
    /// How long budgets and ledgers are kept behind their period.
    pub retention: Duration,
    /// How long an answer of the store is waited for before a stream ends.
    pub hold: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "vox:".into(),
            envelope_first: Duration::from_secs(10),
            envelope_longest: Duration::from_secs(300),
            floor: Duration::from_millis(250),
            epsilon: Units::ZERO,
            lifetime: DEADLINE,
            session_keep: Duration::from_secs(24 * 3600),
            retention: Duration::from_secs(400 * 24 * 3600),
            hold: HOLD,
        }
    }
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
    /// taken - held - settled: 0 unless data was lost.
    pub drift: i64,
    /// Open leases of the account, of any period.
    pub leases: u64,
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
    /// Model name.
    pub model: String,
    /// Units per second of audio: sizes envelopes.
    pub units_per_second: u32,
    /// Tags for the ledger, joined by commas.
    pub tags: String,
}

/// Why nothing was reserved, or no more can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The period's budget is spent.
    Budget {
        /// Units that are left, too few to go on.
        left: Units,
        /// Unix second of the next period.
        renews_at: i64,
    },
    /// What is left is held by other streams.
    Held {
        /// Units that are free all the same.
        left: Units,
        /// Unix second when held units come back at the latest, if nobody renews them.
        until: i64,
    },
    /// The session's own cap is used up.
    Session {
        /// Units left under it.
        left: Units,
    },
    /// The key's own cap for the period is used up.
    Key {
        /// Units left under it.
        left: Units,
        /// Unix second of the next period.
        renews_at: i64,
    },
    /// Too many live streams on this key.
    Streams {
        /// How many are allowed.
        max: u32,
    },
    /// Too many open leases of this session.
    Leases,
    /// The account is frozen.
    Frozen,
    /// No such account any more, or the key was revoked.
    Revoked,
    /// The session was ended by its owner.
    Ended,
    /// The session was opened with another model, tariff or tags.
    Conflict,
    /// The session belongs to somebody else.
    NotYours,
    /// The store lost this period's or session's books.
    Lost,
}

/// Why [`Quota::open`] gave no lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The store decided against it.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// The store did not decide.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What was decided about one chunk. A refusal is an answer, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Paid for: hand it to the link, then say [`Lease::tally`] or [`Lease::waste`].
    Grant,
    /// Nothing was taken. `left` units can still be had in one piece: cut the chunk there, admit that part, then ask
    /// for the rest; `left` 0 is the end.
    Refuse {
        /// Units in the envelope, less than the cost.
        left: Units,
        /// Why there is no more.
        why: Refusal,
    },
    /// The quota key is gone (ended, revoked, reaped, lost): stop.
    Lapse,
}

/// What a stream came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Units handed to workers.
    pub tally: Units,
    /// Units taken, or maybe taken, that are not owed.
    pub waste: Units,
    /// Whether every settle of the stream was answered in time; else it is still being retried.
    pub done: bool,
}

/// The money room. Cheap to clone; all clones share one store.
#[derive(Clone)]
pub struct Quota(Arc<Inner>);

struct Inner {
    store: Store,
    settings: Settings,
    keys: Keys,
    /// Store's clock less ours, in milliseconds, as last heard.
    skew_ms: AtomicI64,
    clock: clock::Clock,
    /// This process among all gateways.
    id: String,
    minted: AtomicU64,
    /// Settles in flight and other work that outlives its stream.
    tracker: TaskTracker,
    unsettled: AtomicU64,
    active: reaper::Active,
    meters: meters::Meters,
    breaker: Breaker,
    probes: probe::Places,
}

impl Quota {
    /// A money room over a store. Does no I/O.
    pub fn new(store: Store, settings: Settings) -> Self {
        let id = uuid::Uuid::new_v4().simple().to_string().split_off(20);
        Self(Arc::new(Inner {
            keys: Keys::new(&settings.prefix),
            store,
            settings,
            skew_ms: AtomicI64::new(0),
            clock: clock::Clock::default(),
            id,
            minted: AtomicU64::new(0),
            tracker: TaskTracker::new(),
            unsettled: AtomicU64::new(0),
            active: reaper::Active::default(),
            meters: meters::Meters::new(),
            breaker: Breaker::new(),
            probes: probe::Places::default(),
        }))
    }

    /// Opens a stream: reserves its first envelope or joins its session's.
    ///
    /// Gives up after [`crate::limits::STORE_PATIENCE`] (or [`Settings::hold`], if that is less) with the store's error; a
    /// call that was sent is waited for all the same. A lease that is dropped instead of settled is left
    /// to the reaper.
    pub async fn open(&self, terms: Terms) -> Result<Lease, OpenError> {
        Lease::open(self.clone(), terms).await
    }

    /// Where the running period of an account stands.
    pub async fn balance(&self, account: &Account) -> Result<Balance, StoreError> {
        let now_ms = i64::try_from(self.store_now_ms().await?).unwrap_or(i64::MAX);
        let window = account.window(now_ms / 1000);
        let fields = self.fields(&self.spell().account(&account.id)).await?;
        let credit = fields.get(&format!("credit:{}", window.id)).and_then(|text| Units::parse(text));
        let cap = account.cap_of(&window).saturating_add(credit.unwrap_or(Units::ZERO));
        let books = self.books(&account.id, &window.id).await?;
        let (taken, held, settled) = books.map_or_else(Default::default, |b| (b.taken, b.held, b.settled));
        Ok(Balance {
            period: window.id,
            starts_at: window.start,
            ends_at: window.end,
            cap,
            taken,
            held,
            settled,
            left: cap.saturating_sub(taken),
            drift: books.map_or(0, |b| b.drift),
            leases: books.map_or(0, |b| b.leases),
        })
    }

    /// The books of one period, by `lua/audit.lua`; `None` before its first lease.
    pub async fn books(&self, account: &Name, period: &str) -> Result<Option<Books>, StoreError> {
        let (budget, leases) = (self.spell().budget(account, period), self.spell().leases(account));
        let reply = self.call(&script::AUDIT, &[&budget, &leases], &[]).await?;
        let books = Books::read(&reply)?;
        if let Some(books) = books {
            self.heard(books.now_ms);
        }
        Ok(books)
    }

    /// Waits until everything that outlives its stream is done, at most `patience`; gives the number of settles that are
    /// left to the reaper.
    pub async fn drain(&self, patience: Duration) -> u64 {
        self.0.tracker.close();
        let done = tokio::time::timeout(patience, self.0.tracker.wait()).await;
        self.0.tracker.reopen();
        if done.is_ok() { 0 } else { self.0.unsettled.load(Ordering::Relaxed) }
    }

    /// Delivers what a faulty line kept back, see [`store::faults`]; does nothing otherwise.
    pub async fn deliver_late(&self) {
        self.0.store.deliver_late().await;
    }

    /// Ends the store after the last call: what a store in a directory has not written yet goes to disk. Blocks. Every
    /// later write is refused.
    pub fn close(&self) -> Result<(), StoreError> {
        self.0.store.close()
    }

    /// The store's word: `embedded` or `redis`.
    pub fn store_word(&self) -> &'static str {
        self.0.store.word()
    }

    fn spell(&self) -> &Keys {
        &self.0.keys
    }

    /// Our best knowledge of the store's clock, unix milliseconds.
    fn now_ms(&self) -> i64 {
        wall_ms() + self.0.skew_ms.load(Ordering::Relaxed)
    }

    /// Learns the store's clock from an answer.
    fn heard(&self, now_ms: u64) {
        self.0.clock.heard(now_ms);
        let store = i64::try_from(now_ms).unwrap_or(i64::MAX);
        self.0.skew_ms.store(store.saturating_sub(wall_ms()), Ordering::Relaxed);
    }

    fn mint(&self) -> u64 {
        self.0.minted.fetch_add(1, Ordering::Relaxed)
    }

    /// One script call with its metrics.
    async fn call(&self, script: &Script, keys: &[&str], args: &[&str]) -> Result<Reply, StoreError> {
        let pending = self.0.breaker.begin(Lane::of(script.name));
        let answer = self.0.store.run(script, keys, args).await;
        let took = pending.done(&answer);
        self.0.meters.script(script).record(took);
        if let Err(error) = &answer {
            self.failed(script, error);
        }
        answer
    }

    /// Counts a call that got no answer.
    fn failed(&self, script: &Script, error: &StoreError) {
        metrics::counter!("voxgate_script_errors_total", "script" => script.name, "kind" => error.word())
            .increment(1);
        if error.charge() == Charge::Unknown {
            metrics::counter!("voxgate_doubts_total", "script" => script.name).increment(1);
        }
    }

    fn reserve_call(&self, deed: &ask::Deed, ask: &ask::Ask) -> ([String; 7], Reserve) {
        let (settings, keys, account) = (&self.0.settings, self.spell(), deed.account());
        let terms = &ask.account;
        let key = &deed.terms.key;
        let spelled = [
            keys.account(account),
            keys.session(account, &deed.sid),
            keys.lease(account, &deed.sid, ask.n),
            keys.quota(account, &deed.sid, ask.n),
            keys.budget(account, &ask.window.id),
            keys.leases(account),
            keys.streams(account, &key.fingerprint),
        ];
        let call = Reserve {
            sid: deed.sid.clone(),
            n: ask.n,
            period: ask.window.id.clone(),
            start: ask.window.start,
            end: ask.window.end,
            owner: deed.owner().to_owned(),
            terms: deed.contract.clone(),
            attachment: ask.name(deed),
            stream: deed.stream.clone(),
            want: ask.size.want,
            floor: ask.size.floor,
            least: ask.size.least,
            cap: terms.cap_of(&ask.window),
            share: terms.share,
            key_cap: key.cap,
            session_cap: key.session_cap,
            streams_max: key.streams_max,
            lifetime_ms: ms(settings.lifetime),
            lease_keep_ms: LEASE_KEEP_MS,
            session_keep_ms: ms(settings.session_keep),
            budget_keep_ms: ms(settings.retention),
            plan: terms.past.plan,
        };
        (spelled, call)
    }
}

/// An open lease and its quota outlive their deadline by 7 days, so that a reaper always finds them.
const LEASE_KEEP_MS: u64 = 7 * 24 * 3600 * 1000;
/// A closed lease repeats its answers for 10 minutes.
const TOMBSTONE_MS: u64 = 10 * 60 * 1000;

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
