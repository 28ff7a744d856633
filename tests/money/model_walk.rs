//! Random script calls on a store, every answer held field by field against the plain model; a difference is told by
//! the shortest list of calls that still shows it. Corrupt values and plan changes are not drawn: they have tests of
//! their own.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use tokio::runtime::Runtime;
use voxgate::quota::Name;
use voxgate::quota::keys::Keys;
use voxgate::quota::script::{self, Reserve, Settle};
use voxgate::quota::store::embedded::{Clock, Embedded};
use voxgate::quota::store::redis::RedisStore;
use voxgate::quota::store::{Reply, Script, Store};
use voxgate::units::Units;

use super::model::{At, Field, LIMIT, Member, Model, Seat};
use super::walks::{seeds, shrink};
use crate::harness::redis_server::stores;

const CALLS: usize = 300;
const TOMBSTONE_MS: i64 = 15_000;
const SESSION_KEEP_MS: u64 = 1 << 40;
const FIRST_MS: u64 = 1_764_460_800_000;

/// One call, complete: it says the same whatever came before it.
#[derive(Clone, Debug)]
enum Call {
    Reserve(Reserve),
    Admit { at: At, cost: String },
    Settle(Settle),
    Reap { member: Member, force: bool },
    Topup { id: &'static str, amount: i64, period: String },
    Cap(i64),
    Frozen(bool),
    End { sid: String },
    LoseQuota(At),
    LoseLease(At),
    LoseBudget { period: String },
    Look { at: At, period: String },
    Wait { ms: i64 },
}

/// A store with one account of its own, and the time that it goes by.
struct Ground {
    store: Store,
    /// None: the store's own clock, which is asked.
    clock: Option<Arc<AtomicU64>>,
    keys: Keys,
    account: Name,
    damaged: Option<Script>,
}

impl Ground {
    fn embedded(damaged: Option<&Script>) -> Self {
        let clock = Arc::new(AtomicU64::new(FIRST_MS * 1000));
        let store = Embedded::new(Clock::Manual(clock.clone())).unwrap().into();
        let damaged = damaged.map(|script| Script::new(script.name, script.text.clone()));
        Self { store, clock: Some(clock), keys: Keys::new("vox:"), account: account(), damaged }
    }

    fn redis(store: Store, prefix: &str) -> Self {
        Self { store, clock: None, keys: Keys::new(prefix), account: account(), damaged: None }
    }

    /// The store's time, unix milliseconds.
    async fn now(&self) -> i64 {
        if let Some(clock) = &self.clock {
            return i64::try_from(clock.load(Ordering::Acquire) / 1000).unwrap();
        }
        let Reply::List(parts) = self.store.command(&["TIME"]).await.unwrap() else { panic!("TIME") };
        let part = |at: usize| match &parts[at] {
            Reply::Bulk(text) => String::from_utf8_lossy(text).parse::<i64>().unwrap(),
            other => panic!("TIME: {other:?}"),
        };
        part(0) * 1000 + part(1) / 1000
    }

    async fn run(&self, script: &Script, keys: &[String], args: &[String]) -> Reply {
        let script = self.damaged.as_ref().filter(|damaged| damaged.name == script.name).unwrap_or(script);
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        match self.store.run(script, &keys, &args).await {
            Ok(reply) => reply,
            Err(error) => Reply::Status(error.to_string()),
        }
    }

    async fn plain(&self, words: &[&str]) -> Reply {
        self.store.command(words).await.unwrap()
    }

    /// What the store answers to `call`; plain commands answer nothing.
    async fn ask(&self, call: &Call) -> Reply {
        let (keys, account) = (&self.keys, &self.account);
        match call {
            Call::Reserve(ask) => {
                let names = [
                    keys.account(account),
                    keys.session(account, &ask.sid),
                    keys.lease(account, &ask.sid, ask.n),
                    keys.quota(account, &ask.sid, ask.n),
                    keys.budget(account, &ask.period),
                    keys.leases(account),
                    keys.streams(account, &ask.owner),
                ];
                return self.run(&script::RESERVE, &names, &ask.args()).await;
            }
            Call::Admit { at: (sid, n), cost } => {
                let names = [keys.quota(account, sid, *n)];
                return self.run(&script::ADMIT, &names, std::slice::from_ref(cost)).await;
            }
            Call::Settle(ask) => {
                let mut names = self.of_lease(&ask.sid, ask.n, &ask.period).to_vec();
                names.push(keys.streams(account, &ask.owner));
                return self.run(&script::SETTLE, &names, &ask.args()).await;
            }
            Call::Reap { member: (sid, n, period, granted), force } => {
                let args = [
                    sid.clone(),
                    n.to_string(),
                    period.clone(),
                    granted.to_string(),
                    u8::from(*force).to_string(),
                    TOMBSTONE_MS.to_string(),
                    SESSION_KEEP_MS.to_string(),
                    String::new(),
                ];
                return self.run(&script::REAP, &self.of_lease(sid, *n, period), &args).await;
            }
            Call::Topup { id, amount, period } => {
                let names = [keys.account(account), keys.credits(account, period)];
                let args = [(*id).to_owned(), amount.to_string(), period.clone(), TOMBSTONE_MS.to_string()];
                return self.run(&script::TOPUP, &names, &args).await;
            }
            Call::Look { at: (sid, n), period } => {
                let of_budget = ["taken", "held", "settled", "rows", "key:k0", "key:k1"];
                let budget = keys.budget(account, period);
                let session = keys.session(account, sid);
                return Reply::List(vec![
                    self.plain(&[&["HMGET", &budget], &of_budget[..]].concat()).await,
                    self.plain(&["HMGET", &session, "n", "used", "held", "open"]).await,
                    self.plain(&["GET", &keys.quota(account, sid, *n)]).await,
                    self.plain(&["ZCARD", &keys.leases(account)]).await,
                ]);
            }
            Call::Cap(cap) => self.plain(&["HSET", &keys.account(account), "cap", &cap.to_string()]).await,
            Call::Frozen(on) => {
                let on = u8::from(*on).to_string();
                self.plain(&["HSET", &keys.account(account), "frozen", &on]).await
            }
            Call::End { sid } => self.plain(&["HSET", &keys.session(account, sid), "ended", "1"]).await,
            Call::LoseQuota((sid, n)) => self.plain(&["DEL", &keys.quota(account, sid, *n)]).await,
            Call::LoseLease((sid, n)) => self.plain(&["DEL", &keys.lease(account, sid, *n)]).await,
            Call::LoseBudget { period } => self.plain(&["DEL", &keys.budget(account, period)]).await,
            Call::Wait { ms } => {
                let clock = self.clock.as_ref().expect("waits are drawn for a clock of ours only");
                clock.fetch_add(u64::try_from(*ms).unwrap() * 1000, Ordering::AcqRel);
                Reply::Nil
            }
        };
        Reply::Nil
    }

    fn of_lease(&self, sid: &str, n: u64, period: &str) -> [String; 6] {
        let (keys, account) = (&self.keys, &self.account);
        [
            keys.session(account, sid),
            keys.lease(account, sid, n),
            keys.quota(account, sid, n),
            keys.budget(account, period),
            keys.leases(account),
            keys.ledger(account, period),
        ]
    }
}

fn account() -> Name {
    Name::parse("acme").unwrap()
}

/// What the model answers to `call`.
fn predict(model: &mut Model, call: &Call) -> Reply {
    match call {
        Call::Reserve(ask) => return model.reserve(ask),
        Call::Admit { at, cost } => return model.admit(at, cost),
        Call::Settle(ask) => return model.settle(ask),
        Call::Reap { member, force } => return model.reap(member, *force, TOMBSTONE_MS),
        Call::Topup { id, amount, period } => return model.topup(id, *amount, period, TOMBSTONE_MS),
        Call::Look { at, period } => return look(model, at, period),
        Call::Cap(cap) => model.cap = Some(*cap),
        Call::Frozen(on) => model.frozen = *on,
        Call::End { sid } => {
            if let Some(session) = model.sessions.get_mut(sid) {
                session.ended = true;
            }
        }
        Call::LoseQuota(at) => drop(model.quotas.remove(at)),
        Call::LoseLease(at) => drop(model.leases.remove(at)),
        Call::LoseBudget { period } => drop(model.budgets.remove(period)),
        Call::Wait { .. } => {}
    }
    Reply::Nil
}

fn look(model: &Model, (sid, n): &At, period: &str) -> Reply {
    let bulk = |value: Option<i64>| value.map_or(Reply::Nil, |value| Field::from(&value.to_string()).0);
    let bulks = |values: &[Option<i64>]| Reply::List(values.iter().copied().map(bulk).collect());
    let budget = model.budgets.get(period);
    let key = |name: &str| budget.and_then(|budget| budget.keys.get(name).copied());
    let session = model.sessions.get(sid);
    let count = |count: usize| i64::try_from(count).unwrap();
    Reply::List(vec![
        bulks(&[
            budget.map(|budget| budget.taken),
            budget.map(|budget| budget.held),
            budget.map(|budget| budget.settled),
            budget.map(|budget| budget.rows),
            key("k0"),
            key("k1"),
        ]),
        bulks(&[
            session.map(|session| i64::try_from(session.n).unwrap()),
            session.map(|session| session.used),
            session.map(|session| session.held),
            session.map(|session| count(session.open)),
        ]),
        bulk(model.quotas.get(&(sid.clone(), *n)).map(|(left, _)| *left)),
        Reply::Int(count(model.queue.len())),
    ])
}

/// The time that a script said it ran at.
fn said_now(call: &Call, reply: &Reply) -> Option<i64> {
    let (Call::Reserve(_), Reply::List(parts)) = (call, reply) else { return None };
    let at = if parts.len() == 8 { 6 } else { parts.len().checked_sub(1)? };
    match (parts.get(at), parts.first()) {
        (_, Some(Reply::Bulk(word))) if word == b"bad argument" || word == b"corrupt" => None,
        (Some(Reply::Int(now)), _) => Some(*now),
        _ => None,
    }
}

/// Where model and store part.
#[derive(Debug)]
struct Parting {
    model: Reply,
    store: Reply,
}

/// Runs the calls that `next` gives until it gives none; both answers of each go to `told`.
async fn play(
    ground: &Ground,
    next: &mut dyn FnMut(&Model) -> Option<Call>,
    told: &mut dyn FnMut(Call, &Reply),
) -> Result<(), Parting> {
    let mut model = Model::default();
    model.move_to(ground.now().await);
    while let Some(call) = next(&model) {
        // The flag alone would make a broken session.
        let known = !matches!(&call, Call::End { sid } if !model.sessions.contains_key(sid));
        let store = if known { ground.ask(&call).await } else { Reply::Nil };
        let after = ground.now().await;
        // A clock of its own runs on between two questions: then a time between them is right.
        let now = said_now(&call, &store).filter(|now| (model.now..=after).contains(now)).unwrap_or(after);
        model.move_to(now);
        let expected = predict(&mut model, &call);
        told(call, &store);
        if expected != store {
            return Err(Parting { model: expected, store });
        }
    }
    Ok(())
}

/// The words and numbers of an answer.
fn plain(reply: &Reply) -> String {
    match reply {
        Reply::Nil => "-".into(),
        Reply::Int(number) => number.to_string(),
        Reply::Bulk(text) => format!("'{}'", String::from_utf8_lossy(text)),
        Reply::Status(text) => text.clone(),
        Reply::List(parts) => format!("{{{}}}", parts.iter().map(plain).collect::<Vec<_>>().join(", ")),
    }
}

/// What a walk is drawn by.
struct Draw {
    rng: Rng,
    /// Whether time is ours to move.
    clock: bool,
    key_cap: Option<Units>,
    session_cap: Option<Units>,
    cap: i64,
    streams_max: u32,
    drawn: usize,
}

const SIDS: [(&str, &str); 5] = [("s0", "k0"), ("s1", "k0"), ("s2", "k0"), ("s3", "k1"), ("s4", "k1")];
const SEATS: [(&str, u32); 6] = [("a0", 20), ("a1", 50), ("a2", 50), ("a3", 100), ("a4", 100), ("a5", 300)];

impl Draw {
    fn new(seed: u64, clock: bool) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x6d6f_6465);
        let key_cap = rng.bool().then(|| rng.u32(50..800).into());
        let session_cap = rng.bool().then(|| rng.u32(50..1200).into());
        let (cap, streams_max) = (rng.i64(50..1500), rng.u32(2..9));
        Self { rng, clock, key_cap, session_cap, cap, streams_max, drawn: 0 }
    }

    fn rare(&mut self, one_in: u32) -> bool {
        self.rng.u32(0..one_in) == 0
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(0..of.len())].clone()
    }

    fn next(&mut self, model: &Model) -> Option<Call> {
        self.drawn += 1;
        if self.drawn > CALLS {
            return None;
        }
        if self.drawn == 1 && !self.rare(20) {
            return Some(Call::Cap(self.cap));
        }
        Some(match self.rng.u32(0..1000) {
            0..330 => Call::Reserve(self.reserve(model)),
            330..560 => self.admit(model),
            560..760 => Call::Settle(self.settle(model)),
            760..820 => self.reap(model),
            820..860 => Call::Topup {
                id: self.one(&["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7"]),
                amount: if self.rare(15) {
                    self.one(&[0, LIMIT, LIMIT - 1])
                } else {
                    self.one(&[100, 100, 250])
                },
                period: self.period(model).0,
            },
            860..870 => Call::Cap(self.rng.i64(0..1500)),
            870..880 => Call::Frozen(self.rare(10)),
            880..882 => Call::End { sid: self.one(&SIDS).0.into() },
            882..888 => Call::LoseQuota(self.lease(model)),
            888..892 => Call::LoseLease(self.lease(model)),
            892..893 => Call::LoseBudget { period: self.period(model).0 },
            893..930 => Call::Look { at: self.lease(model), period: self.period(model).0 },
            _ if self.clock => Call::Wait { ms: self.wait(model) },
            _ => Call::Look { at: self.lease(model), period: self.period(model).0 },
        })
    }

    /// A period and its window, mostly the running one.
    fn period(&mut self, model: &Model) -> (String, i64, i64) {
        let length = if self.clock { 30 } else { 10_000_000 };
        let shift = if self.rare(12) { self.one(&[-1, 1]) } else { 0 };
        let start = (model.now / 1000 / length + shift) * length;
        (format!("f{start}"), start, start + length)
    }

    /// Mostly an open lease, else a late one or none.
    fn lease(&mut self, model: &Model) -> At {
        let open: Vec<_> = model.queue.keys().map(|(sid, n, ..)| (sid.clone(), *n)).collect();
        if !open.is_empty() && !self.rare(4) {
            return self.one(&open);
        }
        let sid = self.one(&SIDS).0;
        let current = model.sessions.get(sid).map_or(0, |session| session.n);
        (sid.into(), current.saturating_sub(self.rng.u64(0..4)).max(1))
    }

    fn reserve(&mut self, model: &Model) -> Reserve {
        let (sid, owner) = self.one(&SIDS);
        let current = model.sessions.get(sid).map_or(0, |session| session.n);
        let over = model.leases.get(&(sid.into(), current)).is_none_or(|lease| lease.closed.is_some());
        let n = match self.rng.u32(0..20) {
            0 => current + 2,
            1 => current.saturating_sub(1),
            2..6 => current + 1,
            _ if over && !self.rare(5) => current + 1,
            _ => current.max(1),
        };
        let (attachment, want) = self.one(&SEATS);
        let want = if self.rare(15) { 70 } else { want };
        let floor = self.one(&[5, 20, 60]);
        let least = if self.rare(40) { self.one(&[0, 61, 500]) } else { self.one(&[1, 5, floor.min(want)]) };
        let (period, start, end) = self.period(model);
        let lifetimes: &[u64] = if self.clock { &[0, 500, 5000, 5000, 20_000] } else { &[0, 900_000] };
        Reserve {
            sid: sid.into(),
            n,
            period,
            start,
            end,
            owner: if self.rare(30) { "k0".into() } else { owner.into() },
            terms: if self.rare(40) { "other".into() } else { "terms".into() },
            attachment: attachment.into(),
            stream: format!("x{}", self.rng.u32(0..8)),
            want: want.into(),
            floor: floor.into(),
            least: least.into(),
            cap: Units::saturating(self.cap.unsigned_abs()),
            share: if self.rare(60) { 0 } else { self.one(&[1, 2, 8]) },
            key_cap: self.key_cap,
            session_cap: if self.rare(10) { None } else { self.session_cap },
            streams_max: self.streams_max,
            lifetime_ms: self.one(lifetimes),
            lease_keep_ms: if self.clock { 20_000 } else { SESSION_KEEP_MS },
            session_keep_ms: SESSION_KEEP_MS,
            budget_keep_ms: if self.clock { 25_000 } else { SESSION_KEEP_MS },
            plan: 0,
        }
    }

    fn admit(&mut self, model: &Model) -> Call {
        let at = self.lease(model);
        let odd = ["0", "01", "x", "", "-1", "1e3", "9007199254740991", "9007199254740992"];
        let cost = if self.rare(25) { self.one(&odd).to_owned() } else { self.rng.u32(1..60).to_string() };
        Call::Admit { at, cost }
    }

    fn settle(&mut self, model: &Model) -> Settle {
        let at = self.lease(model);
        let lease = model.leases.get(&at);
        let granted = lease.map_or(50, |lease| lease.granted);
        let seats: Vec<_> = lease.map(|lease| lease.seats.clone().into_iter().collect()).unwrap_or_default();
        let sits = if seats.is_empty() { None } else { Some(self.one(&seats)) };
        let seat = sits.filter(|_| !self.rare(15));
        let most = if self.rare(8) { granted + 9 } else { self.one(&[granted / 3, granted]) };
        let (mut tally, mut waste) = (self.rng.i64(0..=most), self.rng.i64(0..=granted / 4));
        if let Some((
            _,
            Seat::Left { tally: first, waste: also } | Seat::Closer { tally: first, waste: also },
        )) = seat
            && !self.rare(4)
        {
            (tally, waste) = (first, also);
        }
        let owner = lease.map_or("k0", |lease| lease.owner.as_str());
        let period = lease.map(|lease| lease.period.clone()).filter(|_| !self.rare(30));
        Settle {
            sid: at.0,
            n: at.1,
            period: period.unwrap_or_else(|| self.period(model).0),
            owner: if self.rare(30) { "k1".into() } else { owner.into() },
            attachment: seat.map_or_else(|| self.one(&SEATS).0.into(), |(attachment, _)| attachment),
            stream: self.rng.bool().then(|| format!("x{}", self.rng.u32(0..8))),
            tally: Units::saturating(tally.unsigned_abs()),
            waste: Units::saturating(waste.unsigned_abs()),
            epsilon: self.one(&[0_u32, 5]).into(),
            tombstone_ms: TOMBSTONE_MS.unsigned_abs(),
            ledger_keep_ms: SESSION_KEEP_MS,
            meta: String::new(),
        }
    }

    fn reap(&mut self, model: &Model) -> Call {
        let members: Vec<_> = model.queue.keys().cloned().collect();
        let unknown = || ("s0".to_owned(), 1, "f0".to_owned(), 50);
        let member = if members.is_empty() || self.rare(12) { unknown() } else { self.one(&members) };
        Call::Reap { member, force: self.rare(3) }
    }

    /// A while, or just before, at or after a moment at which something ends.
    fn wait(&mut self, model: &Model) -> i64 {
        let mut moments: Vec<i64> = model.queue.values().copied().collect();
        moments.extend(model.leases.values().map(|lease| lease.expires));
        moments.extend(model.budgets.values().map(|budget| budget.expires));
        moments.extend(model.streams.values().flat_map(|streams| streams.values().copied()));
        moments.push((model.now / 30_000 + 1) * 30_000);
        moments.retain(|moment| *moment > model.now && *moment < model.now + 30_000);
        if moments.is_empty() || self.rare(2) {
            return self.rng.i64(0..3000);
        }
        (self.one(&moments) - model.now + self.rng.i64(-1..=1)).max(0)
    }
}

/// Draws and plays one seed's walk; what parted, told by the shortest list of calls that shows it.
fn walk(
    runtime: &Runtime,
    seed: u64,
    ground: &dyn Fn() -> Ground,
    told: &mut dyn FnMut(&Reply),
) -> Result<(), String> {
    let fresh = ground();
    let (mut calls, mut draw) = (Vec::new(), Draw::new(seed, fresh.clock.is_some()));
    let first = runtime.block_on(play(&fresh, &mut |model| draw.next(model), &mut |call, reply| {
        told(reply);
        calls.push(call);
    }));
    if first.is_ok() {
        return Ok(());
    }
    let again = |calls: &[Call], told: &mut dyn FnMut(Call, &Reply)| {
        let mut calls = calls.iter().cloned();
        runtime.block_on(play(&ground(), &mut |_| calls.next(), told))
    };
    let drawn = calls.len();
    let fewest = shrink(calls, |fewer| again(fewer, &mut |_, _| {}).is_err());
    let mut text = format!("VOXGATE_SEED={seed} replays it; {} of {drawn} calls are enough:\n", fewest.len());
    let parting = again(&fewest, &mut |call, reply| {
        writeln!(text, "  {call:?}\n    -> {}", plain(reply)).unwrap();
    });
    match parting.or(first) {
        Ok(()) => unreachable!("the first walk parted"),
        Err(parting) => {
            Err(format!("{text}  model {}\n  store {}", plain(&parting.model), plain(&parting.store)))
        }
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// How often each first word (and why, for a refusal) was answered.
#[derive(Default)]
struct Words(std::collections::BTreeMap<String, u64>);

impl Words {
    fn count(&mut self, reply: &Reply) {
        let Reply::List(parts) = reply else { return };
        let word = |at: usize| match parts.get(at) {
            Some(Reply::Bulk(text)) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        };
        let Some(first) = word(0) else { return };
        let second = word(1).filter(|_| first == "refuse" || first == "closed");
        *self.0.entry(second.map_or(first.clone(), |second| format!("{first} {second}"))).or_default() += 1;
    }
}

/// The embedded store answers every call as the plain model says.
#[test]
fn model_foretells_embedded_answers() {
    let (runtime, mut words) = (runtime(), Words::default());
    for seed in seeds(100) {
        let answers = walk(&runtime, seed, &|| Ground::embedded(None), &mut |reply| words.count(reply));
        answers.unwrap_or_else(|parting| panic!("{parting}"));
    }
    println!("seeds {:?}, {CALLS} calls each, as the model says: {:?}", seeds(100), words.0);
}

/// So does every real server, by its own clock.
#[test]
fn model_foretells_redis_answers() {
    let (runtime, count) = (runtime(), AtomicU64::new(0));
    for server in stores() {
        let store: Store = runtime.block_on(async { RedisStore::new(&server.url()) }).unwrap().into();
        let ground = || Ground::redis(store.clone(), &format!("m{}:", count.fetch_add(1, Ordering::Relaxed)));
        for seed in seeds(20) {
            let answers = walk(&runtime, seed, &ground, &mut |_| {});
            answers.unwrap_or_else(|parting| panic!("{server}: {parting}"));
        }
        println!("{server}: seeds {:?}, {CALLS} calls each, as the model says", seeds(20));
    }
}

/// A comparison that can't fail proves nothing: each of these one-line damages parts store and model.
#[test]
fn model_notices_damaged_scripts() {
    let damages: [(&Script, &str, &str); 8] = [
        (&script::ADMIT, "and have >= paid and", "and have + 1 >= paid and"),
        (&script::RESERVE, "session_cap - used - reserved", "session_cap - used"),
        (&script::RESERVE, "if open_leases >= 4", "if open_leases > 4"),
        (&script::RESERVE, "now >= number[5] * 1000", "now > number[5] * 1000"),
        (&script::SETTLE, "exact(math.max(whole(lease[6]) or 0, granted))", "lease[6]"),
        (&script::SETTLE, "math.min(tallies, granted + epsilon)", "math.min(tallies, granted)"),
        (&script::REAP, "granted - left - waste", "granted - left"),
        (&script::TOPUP, "if before ~= ARGV[2]", "if false"),
    ];
    let runtime = runtime();
    for (script, line, damage) in damages {
        assert!(script.text.contains(line), "{}: {line}", script.name);
        let damaged = Script::new(script.name, script.text.replace(line, damage));
        let ground = || Ground::embedded(Some(&damaged));
        let noticed = (0..200).find_map(|seed| walk(&runtime, seed, &ground, &mut |_| {}).err());
        let told = noticed.unwrap_or_else(|| panic!("{}: nobody noticed {damage:?}", script.name));
        println!("{}: {damage:?}\n{told}", script.name);
        assert!(told.lines().count() < 60, "not shrunk: {told}");
    }
}
