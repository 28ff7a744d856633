//! The bench that the script tests work at: one account on one store, and short ways to call each verb.

use voxgate::quota::Name;
use voxgate::quota::answer::{Admitted, Books, Entry, Raised, Reaped, Reserved, Settled};
use voxgate::quota::keys::{Keys, Member};
use voxgate::quota::script::{self, Reserve, Settle};
use voxgate::quota::store::embedded::{Clock, Embedded};
use voxgate::quota::store::redis::RedisStore;
use voxgate::quota::store::{Reply, Script, Store, StoreError};
use voxgate::units::Units;

use crate::harness::redis_server::{self, RedisServer};

/// Stores to run a fact on; servers live as long as this.
pub struct Stores {
    servers: Vec<RedisServer>,
}

impl Stores {
    pub fn start() -> Self {
        Self { servers: redis_server::stores() }
    }

    /// A fresh bench on every store.
    pub async fn benches(&self) -> Vec<Bench> {
        let embedded: Store = Embedded::new(Clock::System).unwrap().into();
        let mut benches = vec![Bench::new(embedded, "embedded".into()).await];
        for server in &self.servers {
            let store: Store = RedisStore::new(&server.url()).unwrap().into();
            store.command(&["FLUSHALL"]).await.unwrap();
            benches.push(Bench::new(store, server.to_string()).await);
        }
        benches
    }
}

/// One account with a cap of 10,000 units on one store.
pub struct Bench {
    pub store: Store,
    pub name: String,
    pub keys: Keys,
    pub account: Name,
}

pub fn units(units: u32) -> Units {
    Units::from(units)
}

/// What most reserves of these tests ask for: lease 1 of session `s`, 1,000 units, in a period that runs.
pub fn ask() -> Reserve {
    Reserve {
        sid: "k.s".into(),
        n: 1,
        period: "d1".into(),
        start: 0,
        end: 4_000_000_000,
        owner: "k".into(),
        terms: "m|1000|".into(),
        attachment: "a1".into(),
        stream: "g.1".into(),
        want: units(1000),
        floor: units(250),
        least: units(250),
        cap: units(10_000),
        share: 1,
        key_cap: None,
        session_cap: None,
        streams_max: 10,
        lifetime_ms: 60_000,
        lease_keep_ms: 600_000,
        session_keep_ms: 600_000,
        budget_keep_ms: 600_000,
        plan: 0,
    }
}

/// The attachment of [`ask`] leaves with so much handed over.
pub fn leave(tally: u32) -> Settle {
    Settle {
        sid: "k.s".into(),
        n: 1,
        period: "d1".into(),
        owner: "k".into(),
        attachment: "a1".into(),
        stream: Some("g.1".into()),
        tally: units(tally),
        waste: Units::ZERO,
        epsilon: Units::ZERO,
        tombstone_ms: 600_000,
        ledger_keep_ms: 600_000,
        meta: "{}".into(),
    }
}

impl Bench {
    async fn new(store: Store, name: String) -> Self {
        let bench = Self { store, name, keys: Keys::new("vox:"), account: Name::parse("acme").unwrap() };
        bench.command(&["HSET", &bench.keys.account(&bench.account), "cap", "10000", "frozen", "0"]).await;
        bench
    }

    pub async fn command(&self, words: &[&str]) -> Reply {
        self.store.command(words).await.unwrap_or_else(|error| panic!("{words:?} on {}: {error}", self.name))
    }

    pub async fn run(&self, script: &Script, keys: &[String], args: &[String]) -> Result<Reply, StoreError> {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.store.run(script, &keys, &args).await
    }

    pub fn reserve_keys(&self, ask: &Reserve) -> Vec<String> {
        let (keys, a) = (&self.keys, &self.account);
        vec![
            keys.account(a),
            keys.session(a, &ask.sid),
            keys.lease(a, &ask.sid, ask.n),
            keys.quota(a, &ask.sid, ask.n),
            keys.budget(a, &ask.period),
            keys.leases(a),
            keys.streams(a, &ask.owner),
        ]
    }

    pub async fn reserve(&self, ask: &Reserve) -> Reserved {
        let reply = self.run(&script::RESERVE, &self.reserve_keys(ask), &ask.args()).await;
        Reserved::read(&reply.unwrap_or_else(|error| panic!("{}: {error}", self.name))).unwrap()
    }

    /// Reserves, which must put the attachment into a lease; gives how and what it holds.
    pub async fn enter(&self, ask: &Reserve) -> (Entry, Units) {
        match self.reserve(ask).await {
            Reserved::In { entry, granted, .. } => (entry, granted),
            other => panic!("on {}: {other:?}", self.name),
        }
    }

    pub async fn admit_text(&self, sid: &str, n: u64, cost: &str) -> Result<Admitted, StoreError> {
        let key = self.keys.quota(&self.account, sid, n);
        Admitted::read(&self.run(&script::ADMIT, &[key], &[cost.to_owned()]).await?)
    }

    pub async fn admit(&self, cost: u32) -> Admitted {
        self.admit_text("k.s", 1, &cost.to_string()).await.unwrap()
    }

    pub async fn settle(&self, call: &Settle) -> (Settled, bool) {
        let (keys, a) = (&self.keys, &self.account);
        let keys = [
            keys.session(a, &call.sid),
            keys.lease(a, &call.sid, call.n),
            keys.quota(a, &call.sid, call.n),
            keys.budget(a, &call.period),
            keys.leases(a),
            keys.ledger(a, &call.period),
            keys.streams(a, &call.owner),
        ];
        Settled::read(&self.run(&script::SETTLE, &keys, &call.args()).await.unwrap()).unwrap()
    }

    /// Reaps the lease of [`ask`].
    pub async fn reap(&self, force: bool) -> Reaped {
        let member = Member { sid: "k.s".into(), n: 1, period: "d1".into(), granted: "1000".into() };
        let (keys, a) = (&self.keys, &self.account);
        let keys = [
            keys.session(a, &member.sid),
            keys.lease(a, &member.sid, 1),
            keys.quota(a, &member.sid, 1),
            keys.budget(a, "d1"),
            keys.leases(a),
            keys.ledger(a, "d1"),
        ];
        let force = if force { "1" } else { "0" };
        let args = ["k.s", "1", "d1", "1000", force, "600000", "600000", "{}"].map(str::to_owned);
        Reaped::read(&self.run(&script::REAP, &keys, &args).await.unwrap()).unwrap()
    }

    pub async fn topup(&self, id: &str, amount: &str) -> Result<Raised, StoreError> {
        let keys = [self.keys.account(&self.account), self.keys.credits(&self.account, "d1")];
        let args = [id, amount, "d1", "600000"].map(str::to_owned);
        Raised::read(&self.run(&script::TOPUP, &keys, &args).await?)
    }

    pub async fn books(&self) -> Option<Books> {
        let keys = [self.keys.budget(&self.account, "d1"), self.keys.leases(&self.account)];
        Books::read(&self.run(&script::AUDIT, &keys, &[]).await.unwrap()).unwrap()
    }

    /// taken, held, settled of the books.
    pub async fn sums(&self) -> (u64, u64, u64) {
        self.books().await.map_or((0, 0, 0), |b| (b.taken.get(), b.held.get(), b.settled.get()))
    }

    pub fn quota_key(&self) -> String {
        self.keys.quota(&self.account, "k.s", 1)
    }

    pub async fn text(&self, words: &[&str]) -> Option<String> {
        match self.command(words).await {
            Reply::Bulk(bytes) => Some(String::from_utf8(bytes).unwrap()),
            Reply::Nil => None,
            other => panic!("{other:?}"),
        }
    }

    pub async fn int(&self, words: &[&str]) -> i64 {
        match self.command(words).await {
            Reply::Int(value) => value,
            other => panic!("{other:?}"),
        }
    }
}
