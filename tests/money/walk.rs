//! The random walk: sockets of a few sessions on two gateways open, draw, rest, leave and crash; answers are lost
//! before, after or long after their call ran; leases fall due; periods end. The books are held against the
//! invariants after every step, and at the end against what was really handed over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use voxgate::ending::Ending;
use voxgate::quota::keys::Member;
use voxgate::quota::store::embedded::{Clock, Embedded};
use voxgate::quota::store::faults::{Faults, Rates};
use voxgate::quota::store::redis::RedisStore;
use voxgate::quota::store::{Script, Store};
use voxgate::quota::{
    Account, Admission, Key, Lease, Name, OpenError, PeriodRule, Quota, Refusal, Settings, Terms, script,
};
use voxgate::units::Units;

use super::books::{self, Books};
use crate::harness::redis_server::{RedisServer, redis};

const STEPS: u32 = 700;
const SOCKETS: usize = 8;
const SEEDS_AT_ONCE: usize = 12;
const SESSIONS: [&str; 3] = ["alpha", "beta", "gamma"];

/// Where the walk goes.
struct Ground {
    store: Store,
    /// Set for the in-process store: time moves only when the walk says so.
    clock: Option<Arc<AtomicU64>>,
    prefix: String,
    /// Set for a store on disk: now and then it is closed and opened again.
    folder: Option<tempfile::TempDir>,
}

struct Socket {
    lease: Lease,
    units: i64,
}

struct Walk {
    rng: fastrand::Rng,
    ground: Ground,
    rates: Rates,
    gateways: Vec<Quota>,
    faults: Vec<Arc<Faults>>,
    account: Arc<Account>,
    key: Arc<Key>,
    sockets: Vec<Option<Socket>>,
    /// Units handed to workers, over all streams.
    handed: i64,
    /// Units that count as waste, over all streams.
    wasted: i64,
    /// Whether a lease may have been closed under a stream that still counted in it.
    rough: bool,
}

fn settings(prefix: &str) -> Settings {
    Settings {
        prefix: prefix.into(),
        envelope_first: Duration::from_millis(200),
        envelope_longest: Duration::from_millis(1600),
        floor: Duration::from_millis(50),
        lifetime: Duration::from_millis(400),
        hold: Duration::from_millis(300),
        ..Settings::default()
    }
}

impl Walk {
    async fn new(seed: u64, ground: Ground, damaged: Option<Script>) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let calm = rng.bool();
        let most = if calm { 0 } else { 40 };
        let rates = Rates { before: rng.u32(0..=most), after: rng.u32(0..=most), later: rng.u32(0..=most) };
        let mut damaged = damaged.map(|script| (script.name, script.text));
        let mut gateways = Vec::new();
        let mut faults = Vec::new();
        for gateway in 0..2 {
            let mut line = Faults::new(seed * 2 + gateway, rates);
            if let Some((name, text)) = damaged.as_mut() {
                line = line.with_damaged(Script::new(name, text.clone()));
            }
            let line = Arc::new(line);
            gateways
                .push(Quota::new(ground.store.clone().with_faults(line.clone()), settings(&ground.prefix)));
            faults.push(line);
        }
        let mut account = Account::new(Name::parse("acme").unwrap(), Units::from(rng.u32(500..6000)));
        account.period = PeriodRule::Fixed(1);
        account.share = *rng.choice([1, 2, 8].iter()).unwrap();
        let session_cap = rng.bool().then(|| Units::from(rng.u32(300..3000)));
        let key = Key {
            fingerprint: String::new(),
            account: account.id.clone(),
            label: "walk".into(),
            cap: None,
            session_cap,
            streams_max: 6,
            models: Vec::new(),
            revoked: false,
        };
        let plain = Quota::new(ground.store.clone(), settings(&ground.prefix));
        plain.put_account(&account).await.unwrap();
        let key = plain.add_key(key).await.unwrap().1;
        let sockets = (0..SOCKETS).map(|_| None).collect();
        let (account, key) = (Arc::new(account), Arc::new(key));
        Self {
            rng,
            ground,
            rates,
            gateways,
            faults,
            account,
            key,
            sockets,
            handed: 0,
            wasted: 0,
            rough: false,
        }
    }

    async fn run(mut self) -> Result<Books, String> {
        for step in 0..STEPS {
            let what = self.step().await;
            let books = self.books().await;
            self.check(&books).map_err(|wrong| format!("step {step} ({what}): {wrong}"))?;
        }
        self.end().await
    }

    fn check(&self, books: &Books) -> Result<(), String> {
        let session_cap = self.key.session_cap.map(|cap| cap.get() as i64);
        books.check(self.account.cap.get() as i64, session_cap)
    }

    async fn books(&self) -> Books {
        books::read(&self.ground.store, &self.ground.prefix, &self.account.id).await
    }

    async fn step(&mut self) -> &'static str {
        let slot = self.rng.usize(0..SOCKETS);
        match self.rng.u32(0..100) {
            0..14 => self.open(slot).await,
            14..76 => self.draw(slot).await,
            76..80 => self.beat(slot),
            80..83 => self.rest(slot),
            83..88 => self.leave(slot).await,
            88..90 => self.crash(slot),
            90..93 => self.late().await,
            93..96 => self.reap().await,
            96..97 => self.force().await,
            97..98 if self.ground.folder.is_some() => self.reopen(),
            _ => self.wait().await,
        }
    }

    async fn open(&mut self, slot: usize) -> &'static str {
        if self.sockets[slot].is_some() {
            return "slot taken";
        }
        let session = self.rng.choice(SESSIONS.iter()).and_then(|name| Name::parse(name));
        let session = session.filter(|_| self.rng.u32(0..5) > 0);
        let terms = Terms {
            account: self.account.clone(),
            key: self.key.clone(),
            session,
            model: "m".into(),
            units_per_second: 1000,
            tags: String::new(),
        };
        let gateway = self.rng.usize(0..self.gateways.len());
        match self.gateways[gateway].open(terms).await {
            Ok(lease) => {
                self.sockets[slot] = Some(Socket { lease, units: 0 });
                "opened"
            }
            Err(OpenError::Refused(Refusal::Lost | Refusal::NotYours | Refusal::Conflict)) => {
                panic!("books lost")
            }
            Err(OpenError::Refused(_)) => "open refused",
            Err(OpenError::Store(_)) => "open failed",
        }
    }

    async fn draw(&mut self, slot: usize) -> &'static str {
        let cost = self.rng.u32(1..=60);
        let keep = self.rng.u32(0..20) > 0;
        let slow = self.rng.u32(0..4) == 0;
        let Some(socket) = &mut self.sockets[slot] else { return "slot empty" };
        let mut cost = Units::from(cost);
        let what = loop {
            match socket.lease.admit(cost).await {
                Ok(Admission::Grant) if keep => {
                    if slow {
                        deliver_slowly(&mut socket.lease).await;
                    }
                    socket.lease.tally(cost);
                    socket.units += cost.get() as i64;
                    break "granted";
                }
                Ok(Admission::Grant) => {
                    socket.lease.waste(cost);
                    break "granted, not handed over";
                }
                Ok(Admission::Refuse { left, .. }) if !left.is_zero() => cost = left,
                Ok(Admission::Refuse { .. }) => break "refused",
                Ok(Admission::Lapse) => break "lapsed",
                Err(_) => break "no answer",
            }
        };
        if matches!(what, "refused" | "lapsed" | "no answer") {
            self.leave(slot).await;
        }
        what
    }

    fn beat(&mut self, slot: usize) -> &'static str {
        if let Some(socket) = &mut self.sockets[slot] {
            socket.lease.beat();
        }
        "beat"
    }

    fn rest(&mut self, slot: usize) -> &'static str {
        if let Some(socket) = &mut self.sockets[slot] {
            socket.lease.rest();
        }
        "rested"
    }

    async fn leave(&mut self, slot: usize) -> &'static str {
        if let Some(socket) = self.sockets[slot].take() {
            let settlement = socket.lease.settle(Ending::ClientDone, "w1").await;
            assert_eq!(settlement.tally.get() as i64, socket.units, "the lease counts what was handed over");
            self.handed += socket.units;
            self.wasted += settlement.waste.get() as i64;
        }
        "left"
    }

    /// A gateway that dies: its memory is gone, nothing is settled.
    fn crash(&mut self, slot: usize) -> &'static str {
        if let Some(socket) = self.sockets[slot].take() {
            self.handed += socket.units;
            self.wasted += socket.lease.wasted().get() as i64;
            self.rough = true;
        }
        "crashed"
    }

    async fn late(&mut self) -> &'static str {
        for gateway in &self.gateways {
            gateway.deliver_late().await;
        }
        "late calls arrived"
    }

    async fn reap(&mut self) -> &'static str {
        // A lost answer may end the round early; that is one of the things to try.
        let _ = self.gateways[0].reap_round().await;
        self.rough = true;
        "reaped"
    }

    async fn force(&mut self) -> &'static str {
        let books = self.books().await;
        if let Some(member) = self.rng.choice(books.leases.iter()) {
            let member: Member = member.clone();
            let _ = self.gateways[1].reap(&self.account.id, &member, true).await;
            self.rough = true;
        }
        "forced"
    }

    /// Everything dies and comes back over what is on disk; calls still on their way are lost.
    fn reopen(&mut self) -> &'static str {
        for slot in 0..SOCKETS {
            self.crash(slot);
        }
        let (Some(folder), Some(clock)) = (&self.ground.folder, &self.ground.clock) else { return "no disk" };
        self.rough = true;
        self.ground.store.close().expect("the disk takes it");
        self.ground.store = Embedded::open(folder.path(), Clock::Manual(clock.clone())).unwrap().into();
        for (gateway, line) in self.gateways.iter_mut().zip(&mut self.faults) {
            *line = Arc::new(Faults::new(self.rng.u64(..), self.rates));
            let store = self.ground.store.clone().with_faults(line.clone());
            *gateway = Quota::new(store, settings(&self.ground.prefix));
        }
        "reopened"
    }

    /// Lets time pass: now and then more than a lease lives.
    async fn wait(&mut self) -> &'static str {
        let ms = self.rng.u64(1..150);
        match &self.ground.clock {
            Some(clock) => _ = clock.fetch_add(ms * 1000, Ordering::SeqCst),
            None => tokio::time::sleep(Duration::from_millis(ms / 10)).await,
        }
        "time passed"
    }

    /// Everybody leaves, what was late arrives, what is left falls due: then the ledger must say what was handed over.
    async fn end(mut self) -> Result<Books, String> {
        for slot in 0..SOCKETS {
            self.leave(slot).await;
        }
        for line in &self.faults {
            line.set(Rates::default());
        }
        for gateway in &self.gateways {
            assert_eq!(gateway.drain(Duration::from_secs(20)).await, 0, "settles in flight end");
        }
        self.late().await;
        for gateway in &self.gateways {
            assert_eq!(gateway.drain(Duration::from_secs(20)).await, 0, "settles in flight end");
        }
        match &self.ground.clock {
            Some(clock) => _ = clock.fetch_add(2_000_000, Ordering::SeqCst),
            None => tokio::time::sleep(Duration::from_millis(450)).await,
        }
        let rough = self.rough;
        self.reap().await;
        let books = self.books().await;
        self.check(&books)?;
        if !books.leases.is_empty() {
            return Err(format!("leases beyond their deadline: {:?}", books.leases));
        }
        let (charged, slack) = (books.charged(), if rough { self.wasted } else { 0 });
        // A lease that was settled by everybody charges what was handed over, to the unit. One that was reaped can't
        // know whether a doubtful take landed: it is off by that doubt at most.
        let orderly = books.hows.keys().all(|how| how == "settled");
        let slack = if orderly { 0 } else { slack };
        if (charged - self.handed).abs() > slack {
            let (handed, wasted) = (self.handed, self.wasted);
            return Err(format!(
                "charged {charged}, handed over {handed}, wasted {wasted}, {:?}",
                books.hows
            ));
        }
        Ok(books)
    }
}

/// A worker that takes its time: meanwhile the stream hears its background work, beats and would like to rest.
async fn deliver_slowly(lease: &mut Lease) {
    lease.beat();
    for _ in 0..20 {
        tokio::select! { biased;
            _ = lease.ended() => return,
            () = tokio::task::yield_now() => {}
        }
    }
    lease.beat();
    assert!(!lease.rest(), "nothing is left under a grant");
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("VOXGATE_SEED").unwrap_or(0);
    let count = number("VOXGATE_SEEDS").unwrap_or(if number("VOXGATE_SEED").is_some() { 1 } else { usual });
    first..first + count
}

fn embedded() -> Ground {
    let clock = Arc::new(AtomicU64::new(1_764_460_800_000_000));
    let store = Embedded::new(Clock::Manual(clock.clone())).unwrap().into();
    Ground { store, clock: Some(clock), prefix: "vox:".into(), folder: None }
}

fn on_disk() -> Ground {
    let clock = Arc::new(AtomicU64::new(1_764_460_800_000_000));
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path(), Clock::Manual(clock.clone())).unwrap().into();
    Ground { store, clock: Some(clock), prefix: "vox:".into(), folder: Some(folder) }
}

/// One walk on the in-process store; time stands still but for the walk's own steps.
fn walk_embedded(seed: u64, damaged: Option<Script>) -> Result<Books, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async { Walk::new(seed, embedded(), damaged).await.run().await })
}

/// The embedded store keeps every invariant under lost answers, crashes and period edges.
#[test]
fn walks_keep_the_books_embedded() {
    let mut rows = 0;
    for seed in seeds(60) {
        match walk_embedded(seed, None) {
            Ok(books) => rows += books.hows.values().sum::<i64>(),
            Err(wrong) => panic!("VOXGATE_SEED={seed} replays it: {wrong}"),
        }
    }
    println!("embedded: {:?}, {STEPS} steps each, {rows} ledger rows, 0 violations", seeds(60));
    assert!(rows > 0);
}

/// So does a store on disk that is closed and opened again now and then.
#[test]
fn walks_keep_the_books_on_disk() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let mut rows = 0;
    for seed in seeds(25) {
        let walk = runtime.block_on(async { Walk::new(seed, on_disk(), None).await.run().await });
        rows += walk.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}")).hows.values().sum::<i64>();
    }
    println!("disk: {:?}, {STEPS} steps each, {rows} ledger rows, 0 violations", seeds(25));
    assert!(rows > 0);
}

/// Walks of several seeds at once, each under its own prefix, on one server.
async fn walk_redis(server: &RedisServer, seeds: std::ops::Range<u64>) -> i64 {
    let walks = seeds.map(|seed| {
        let store: Store = RedisStore::new(&server.url()).unwrap().into();
        let ground = Ground { store, clock: None, prefix: format!("s{seed}:"), folder: None };
        tokio::spawn(async move { (seed, Walk::new(seed, ground, None).await.run().await) })
    });
    let mut rows = 0;
    for walk in walks.collect::<Vec<_>>() {
        match walk.await.unwrap() {
            (_, Ok(books)) => rows += books.hows.values().sum::<i64>(),
            (seed, Err(wrong)) => panic!("seed {seed} on {server}: {wrong}"),
        }
    }
    rows
}

/// A real server keeps them too.
#[tokio::test]
async fn walks_keep_the_books_on_redis() {
    let all = seeds(60);
    let mut rows = 0;
    for first in all.clone().step_by(SEEDS_AT_ONCE) {
        let server = RedisServer::start(redis(), &[]);
        rows += walk_redis(&server, first..all.end.min(first + SEEDS_AT_ONCE as u64)).await;
    }
    println!("redis: seeds {all:?}, {STEPS} steps each, {rows} ledger rows, 0 violations");
    assert!(rows > 0);
}

/// A check that can't fail proves nothing: each of these one-line damages must be seen.
#[test]
fn damaged_scripts_are_caught() {
    let damages: [(&Script, &str, &str); 7] = [
        (&script::ADMIT, "if have < paid", "if have + 5 < paid"),
        (
            &script::RESERVE,
            "math.max(floor, math.floor(free / share)), room)",
            "math.max(floor, math.floor(free / share)))",
        ),
        (&script::RESERVE, "redis.call('HINCRBY', KEYS[5], 'held', amount)", ""),
        (&script::RESERVE, "'in', exact(joined + 1)", "'in', exact(joined)"),
        (&script::SETTLE, "redis.call('HINCRBY', key.budget, 'held', exact(-granted))", ""),
        (&script::SETTLE, "if string.sub(mine, 1, 3) ~= 'in:' then", "if false then"),
        (&script::REAP, "granted - left - waste", "granted - waste"),
    ];
    for (script, line, damage) in damages {
        assert!(script.text.contains(line), "{}: {line}", script.name);
        let damaged = || Script::new(script.name, script.text.replace(line, damage));
        let caught = (0..20).find_map(|seed| {
            let walk = std::panic::catch_unwind(|| walk_embedded(seed, Some(damaged())));
            walk.unwrap_or_else(|_| Err("panicked".into())).err()
        });
        let wrong =
            caught.unwrap_or_else(|| panic!("{}: nobody noticed that {line:?} is {damage:?}", script.name));
        println!("{}: {line:?} damaged: {wrong:.100}", script.name);
    }
}
