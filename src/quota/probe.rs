//! How long each script takes at its largest allowed input, on every primary, tried on private keys.
//!
//! # What is tried
//! [`Quota::probe`] runs `admit` alone: one plain command, the script, one plain command. [`Quota::probe_scripts`] lets
//! every script do its full work once: `reserve` creates a lease, `settle` and `reap` close one, `rebuild` writes a whole
//! budget. Names, amounts, tags and notes are as long as they get, and each answer must be the one foretold.
//!
//! # Private keys
//! They carry a prefix of their own (`vox:probe:`), so that no list, reaper or audit meets them, and an account's name of
//! this process that lies in a slot of the primary. `lua/probe.lua` gives each an end before anything is written into
//! it, and removes them behind the last call; what is cut short goes away by itself after
//! [`PROBE_KEEP`].
//!
//! # Time
//! Complete call: from sending to the decoded reply. The server's own time stands in [`Timed::own`], where it was asked
//! for; the rest is way and queue. Probes do not pause and repeat: what goes wrong is what they are for.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::Instant;

use super::answer::{Admitted, Bill, Books, Entry, Raised, Reaped, Reserved, Settled, Words};
use super::breaker::Lane;
use super::keys::{Keys, Name};
use super::script::{self, Reserve, Settle};
use super::store::{Reply, Script, Shard, StoreError, slot};
use super::watch::Own;
use super::{Quota, ms};
use crate::limits::{ACCOUNT_PAIRS_MAX, META_BYTES_MAX, NAME_BYTES_MAX, PROBE_KEEP, REBUILD_KEYS_MAX};
use crate::units::Units;

/// One timed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Which script.
    pub script: &'static str,
    /// The complete call.
    pub took: Duration,
    /// What the server counted between the call's start and end, all its clients together; `None` when it was not
    /// asked, or does not say.
    pub own: Option<Own>,
}

/// Why the probe of every script ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{script}: {error}")]
pub struct ProbeError {
    /// The script that was tried.
    pub script: &'static str,
    /// What became of it.
    pub error: StoreError,
}

/// Names of private accounts, by the slot that they lie in; as many as there are primaries.
#[derive(Default)]
pub(super) struct Places(Mutex<HashMap<u16, Name>>);

impl Quota {
    /// The primaries of the store, asked for once: unlike [`Quota::shards`] it does not wait for better days.
    pub async fn shards_now(&self) -> Result<Vec<Shard>, StoreError> {
        let pending = self.0.breaker.begin(Lane::Command);
        let answer = self.0.store.shards().await;
        // Often known from memory, so that a good answer tells the breaker nothing.
        if answer.is_err() {
            pending.done(&answer);
        }
        answer
    }

    /// Runs `admit` at its largest allowed input on every primary at once; gives the first grant. The others are given up:
    /// this asks whether there is a store, not whether all of it is well. Cheap: the breaker asks several times a second.
    pub(super) async fn probe_any(&self) -> Result<Duration, StoreError> {
        let shards = self.shards_now().await?;
        let mut probes: FuturesUnordered<_> = shards.iter().map(|shard| self.probe_on(shard)).collect();
        let mut last = Err(StoreError::Away("no primary is known".into()));
        while let Some(answer) = probes.next().await {
            last = answer;
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// The same, until every primary has answered or one has failed; gives the longest complete call.
    pub async fn probe(&self) -> Result<Duration, StoreError> {
        let shards = self.shards_now().await?;
        let all = try_join_all(shards.iter().map(|shard| self.probe_on(shard))).await?;
        Ok(all.into_iter().max().unwrap_or_default())
    }

    /// The same on one primary. Moves the breaker as one plain command does: where nobody streams, probes are all that it
    /// hears.
    pub async fn probe_on(&self, shard: &Shard) -> Result<Duration, StoreError> {
        let answer = self.admit_on(shard).await;
        let took = answer.as_ref().copied().unwrap_or_default();
        self.0.breaker.heard(Lane::Command, took, answer.as_ref().err());
        answer
    }

    async fn admit_on(&self, shard: &Shard) -> Result<Duration, StoreError> {
        let account = self.probe_account(shard)?;
        // A number of its own: two probes at once must not draw on one key.
        let n = Units::MAX.get().saturating_sub(self.mint());
        let key = self.spell().of_probes().quota(&account, &sid('q'), n);
        let (most, keep) = (Units::MAX.to_string(), ms(PROBE_KEEP).to_string());
        let store = &self.0.store;
        self.noted(store.command(&["SET", &key, &most, "PX", &keep])).await?;
        let start = Instant::now();
        let reply = self.noted(store.run(&script::ADMIT, &[&key], &[&most])).await?;
        let admitted = Admitted::read(&reply)?;
        let took = start.elapsed();
        metrics::histogram!("voxgate_probe_seconds", "script" => script::ADMIT.name).record(took);
        foretold(&admitted, &Admitted::Grant(Units::ZERO))?;
        self.noted(store.command(&["DEL", &key])).await?;
        Ok(took)
    }

    /// Waits for a call's answer, and lets the breaker know that it does.
    async fn noted<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let pending = self.0.breaker.begin(Lane::Other);
        let answer = call.await;
        pending.done(&answer);
        answer
    }

    /// Lets every script do its full work at its largest allowed input on one primary, and checks each answer.
    ///
    /// With `own` the server is asked before and behind each call how long it was at work itself. Not for two callers at
    /// once: they would meet on the same keys.
    pub async fn probe_scripts(&self, shard: &Shard, own: bool) -> Result<Vec<Timed>, ProbeError> {
        let mut run =
            Run::new(self, shard, own).map_err(|error| ProbeError { script: script::PROBE.name, error })?;
        run.all().await.map_err(|error| ProbeError { script: run.at, error })?;
        let times = run.times;
        for timed in &times {
            metrics::histogram!("voxgate_probe_seconds", "script" => timed.script).record(timed.took);
        }
        let slowest = times.iter().map(|timed| timed.took).max().unwrap_or_default();
        metrics::gauge!("voxgate_probe_slowest_seconds", "shard" => shard.name.clone()).set(slowest);
        Ok(times)
    }

    /// An account's name of this process, as long as names get, in the slot of a primary.
    fn probe_account(&self, shard: &Shard) -> Result<Name, StoreError> {
        let mut places = self.0.probes.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = places.get(&shard.slot) {
            return Ok(name.clone());
        }
        let name = account_in(shard.slot, &self.0.id)
            .ok_or_else(|| StoreError::Odd(format!("no name lies in slot {}", shard.slot)))?;
        places.insert(shard.slot, name.clone());
        Ok(name)
    }
}

/// A name as long as names get that begins with `id` and lies in `wanted`; `None` if there is none.
///
/// Nothing is searched: a digit that turns from 0 to 1 turns the same bits of the slot whatever stands beside it, so the
/// digits are found as one solves 14 equations.
pub(super) fn account_in(wanted: u16, id: &str) -> Option<Name> {
    let places = NAME_BYTES_MAX.checked_sub(id.len())?;
    let digit = |ones: u64, place: usize| if ones >> place & 1 == 1 { '1' } else { '0' };
    let name = |ones: u64| id.chars().chain((0..places).map(|place| digit(ones, place))).collect::<String>();
    let slot_of = |ones: u64| slot::slot(name(ones).as_bytes());
    // Turns of digits that change the slot, each by its highest bit.
    let mut turns: HashMap<u32, (u16, u64)> = HashMap::new();
    for place in 0..places {
        let (mut bits, mut ones) = (slot_of(1 << place) ^ slot_of(0), 1_u64 << place);
        while bits != 0 {
            let Some(turn) = turns.get(&bits.ilog2()) else {
                turns.insert(bits.ilog2(), (bits, ones));
                break;
            };
            (bits, ones) = (bits ^ turn.0, ones ^ turn.1);
        }
    }
    let (mut bits, mut ones) = (slot_of(0) ^ wanted, 0);
    while bits != 0 {
        let turn = turns.get(&bits.ilog2())?;
        (bits, ones) = (bits ^ turn.0, ones ^ turn.1);
    }
    Name::parse(&name(ones))
}

fn foretold<T: PartialEq + std::fmt::Debug>(answer: &T, expected: &T) -> Result<(), StoreError> {
    if answer == expected { Ok(()) } else { Err(StoreError::Odd(format!("answered {answer:?}"))) }
}

/// A session as stored, as long as it gets: fingerprint, dot, public name.
fn sid(letter: char) -> String {
    format!("{OWNER}.{}", letter.to_string().repeat(NAME_BYTES_MAX))
}

/// Fingerprint of a key.
const OWNER: &str = "ffffffffffffffff";
/// Longest number of a lease.
const N: u64 = Units::MAX.get();
/// The account's own cap; with [`TOPUP`] all that there can be.
const CAP: Units = Units::saturating(1 << 52);
const TOPUP: Units = Units::saturating((1 << 52) - 1);
/// Periods, by what becomes of them; [`BEFORE`] was opened before them.
const SETTLED: &str = "2678400s9999999991";
const REAPED: &str = "2678400s9999999992";
const REBUILT: &str = "2678400s9999999993";
const BEFORE: &str = "2678400s9999999990";

/// One probe of every script on one primary.
struct Run<'a> {
    quota: &'a Quota,
    shard: &'a Shard,
    own: bool,
    keys: Keys,
    account: Name,
    /// The script that is being tried.
    at: &'static str,
    times: Vec<Timed>,
}

impl<'a> Run<'a> {
    fn new(quota: &'a Quota, shard: &'a Shard, own: bool) -> Result<Self, StoreError> {
        let (keys, account) = (quota.spell().of_probes(), quota.probe_account(shard)?);
        Ok(Self { quota, shard, own, keys, account, at: script::PROBE.name, times: Vec::new() })
    }

    async fn all(&mut self) -> Result<(), StoreError> {
        let now = self.store_seconds().await?;
        let keep = ms(PROBE_KEEP).to_string();
        self.lay_out(&["make", &keep, OWNER, &terms()], "made").await?;
        self.account().await?;
        self.topup().await?;
        self.reserve('a', SETTLED, Units::MAX, now).await?;
        self.admit().await?;
        self.settle().await?;
        self.reserve('b', REAPED, CAP, now).await?;
        self.audit().await?;
        self.reap().await?;
        self.rebuild().await?;
        self.session().await?;
        self.at = script::PROBE.name;
        self.lay_out(&["clear"], "cleared").await
    }

    /// One timed call: it ends when its reply is read.
    async fn call<T>(
        &mut self,
        script: &Script,
        keys: &[String],
        args: &[&str],
        read: impl FnOnce(&Reply) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.at = script.name;
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let before = self.counted().await?;
        let start = Instant::now();
        let answer = read(&self.quota.0.store.run(script, &keys, args).await?)?;
        let took = start.elapsed();
        let own = self.counted().await?.zip(before).map(|(after, before)| after.since(before));
        self.times.push(Timed { script: script.name, took, own });
        Ok(answer)
    }

    async fn counted(&self) -> Result<Option<Own>, StoreError> {
        if self.own { self.quota.own_time(self.shard).await } else { Ok(None) }
    }

    async fn store_seconds(&self) -> Result<i64, StoreError> {
        let time = self.quota.0.store.command_on(self.shard, &["TIME"]).await?;
        let seconds = Words::of(&time).text()?.parse();
        seconds.map_err(|_| StoreError::Odd("TIME".into()))
    }

    async fn lay_out(&self, args: &[&str], done: &str) -> Result<(), StoreError> {
        let (keys, account) = (&self.keys, &self.account);
        let (a, b, c) = (sid('a'), sid('b'), sid('c'));
        let keys = [
            keys.account(account),
            keys.leases(account),
            keys.streams(account, OWNER),
            keys.session(account, &a),
            keys.session(account, &b),
            keys.session(account, &c),
            keys.lease(account, &a, N),
            keys.lease(account, &b, N),
            keys.quota(account, &a, N),
            keys.quota(account, &b, N),
            keys.budget(account, SETTLED),
            keys.budget(account, REAPED),
            keys.budget(account, REBUILT),
            keys.ledger(account, SETTLED),
            keys.ledger(account, REAPED),
            keys.credits(account, SETTLED),
        ];
        let reply =
            self.quota.0.store.run(&script::PROBE, &keys.each_ref().map(String::as_str), args).await?;
        foretold(&Words::of(&reply).text()?, &done)
    }

    async fn account(&mut self) -> Result<(), StoreError> {
        let (cap, most, earlier) = (CAP.to_string(), Units::MAX.to_string(), "e".repeat(EARLIER_BYTES_MAX));
        let digest = "d".repeat(64);
        let mut args = vec!["-", "9007199254740"];
        args.extend(["cap", &cap, "frozen", "0", "last", BEFORE, "plan", &most, "share", "4294967295"]);
        args.extend(["period", "2678400s", "zone", LONGEST_ZONE, "earlier", &earlier, "since", "0"]);
        args.extend(["cap_before", &most]);
        let owners: Vec<String> = (0..ACCOUNT_PAIRS_MAX).map(|n| format!("key:{n:016}")).collect();
        let room = (2 + 2 * ACCOUNT_PAIRS_MAX).saturating_sub(args.len()) / 2;
        args.extend(owners.iter().take(room).flat_map(|owner| [owner.as_str(), &digest]));
        let keys = [self.keys.account(&self.account)];
        self.call(&script::ACCOUNT, &keys, &args, |reply| foretold(&Words::of(reply).text()?, &"written"))
            .await
    }

    async fn topup(&mut self) -> Result<(), StoreError> {
        let (id, amount, keep) = ("t".repeat(NAME_BYTES_MAX), TOPUP.to_string(), ms(PROBE_KEEP).to_string());
        let keys = [self.keys.account(&self.account), self.keys.credits(&self.account, SETTLED)];
        let expected = Raised::Raised { sum: TOPUP, replay: false };
        let read = |reply: &Reply| foretold(&Raised::read(reply)?, &expected);
        self.call(&script::TOPUP, &keys, &[&id, &amount, SETTLED, &keep], read).await
    }

    /// Creates a lease of all that the account has.
    async fn reserve(&mut self, letter: char, period: &str, all: Units, now: i64) -> Result<(), StoreError> {
        let (keys, account, sid) = (&self.keys, &self.account, sid(letter));
        let keys = [
            keys.account(account),
            keys.session(account, &sid),
            keys.lease(account, &sid, N),
            keys.quota(account, &sid, N),
            keys.budget(account, period),
            keys.leases(account),
            keys.streams(account, OWNER),
        ];
        let keep = ms(PROBE_KEEP);
        let ask = Reserve {
            sid,
            n: N,
            period: period.to_owned(),
            start: now - 3600,
            end: now + 3600,
            owner: OWNER.to_owned(),
            terms: terms(),
            attachment: attachment(),
            stream: stream(),
            want: all,
            floor: all,
            least: all,
            cap: Units::MAX,
            share: u32::MAX,
            key_cap: Some(Units::MAX),
            session_cap: Some(Units::MAX),
            streams_max: u32::MAX,
            lifetime_ms: keep,
            lease_keep_ms: keep,
            session_keep_ms: keep,
            budget_keep_ms: keep,
            plan: Units::MAX.get(),
        };
        let args = ask.args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let read = |reply: &Reply| match Reserved::read(reply)? {
            Reserved::In { entry: Entry::Opened, n: N, granted, left, .. } => {
                foretold(&(granted, left), &(all, all))
            }
            other => Err(StoreError::Odd(format!("answered {other:?}"))),
        };
        self.call(&script::RESERVE, &keys, &args, read).await
    }

    async fn admit(&mut self) -> Result<(), StoreError> {
        let keys = [self.keys.quota(&self.account, &sid('a'), N)];
        let read = |reply: &Reply| foretold(&Admitted::read(reply)?, &Admitted::Grant(Units::ZERO));
        self.call(&script::ADMIT, &keys, &[&Units::MAX.to_string()], read).await
    }

    async fn settle(&mut self) -> Result<(), StoreError> {
        let (keys, account, sid) = (&self.keys, &self.account, sid('a'));
        let keys = [
            keys.session(account, &sid),
            keys.lease(account, &sid, N),
            keys.quota(account, &sid, N),
            keys.budget(account, SETTLED),
            keys.leases(account),
            keys.ledger(account, SETTLED),
            keys.streams(account, OWNER),
        ];
        let call = Settle {
            sid,
            n: N,
            period: SETTLED.to_owned(),
            owner: OWNER.to_owned(),
            attachment: attachment(),
            stream: Some(stream()),
            tally: Units::MAX,
            waste: Units::MAX,
            epsilon: Units::ZERO,
            tombstone_ms: ms(PROBE_KEEP),
            ledger_keep_ms: ms(PROBE_KEEP),
            meta: "m".repeat(META_BYTES_MAX),
        };
        let args = call.args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let bill = Bill { charged: Units::MAX, returned: Units::ZERO, excess: Units::ZERO };
        let read = |reply: &Reply| foretold(&Settled::read(reply)?, &(Settled::Closed(bill), false));
        self.call(&script::SETTLE, &keys, &args, read).await
    }

    async fn audit(&mut self) -> Result<(), StoreError> {
        let keys = [self.keys.budget(&self.account, REAPED), self.keys.leases(&self.account)];
        let read = |reply: &Reply| {
            let books = Books::read(reply)?;
            foretold(&books.map(|b| (b.taken, b.held, b.drift, b.leases)), &Some((CAP, CAP, 0, 2)))
        };
        self.call(&script::AUDIT, &keys, &[], read).await
    }

    async fn reap(&mut self) -> Result<(), StoreError> {
        let (keys, account, sid) = (&self.keys, &self.account, sid('b'));
        let keys = [
            keys.session(account, &sid),
            keys.lease(account, &sid, N),
            keys.quota(account, &sid, N),
            keys.budget(account, REAPED),
            keys.leases(account),
            keys.ledger(account, REAPED),
        ];
        let (n, granted, keep) = (N.to_string(), CAP.to_string(), ms(PROBE_KEEP).to_string());
        let meta = "m".repeat(META_BYTES_MAX);
        // By force, so that no step of a clock decides whether it is due.
        let args = [&sid, &n, REAPED, &granted, "1", &keep, &keep, &meta];
        let bill = Bill { charged: Units::ZERO, returned: CAP, excess: Units::ZERO };
        let expected = Reaped::Closed { how: "forced".to_owned(), bill };
        let read = |reply: &Reply| foretold(&Reaped::read(reply)?, &expected);
        self.call(&script::REAP, &keys, &args, read).await
    }

    /// Writes a budget of which nothing is there, with as many keys as one call may name.
    async fn rebuild(&mut self) -> Result<(), StoreError> {
        let (keys, account) = (&self.keys, &self.account);
        let keys = [keys.budget(account, REBUILT), keys.ledger(account, REBUILT), keys.leases(account)];
        let (most, held, settled) = (Units::MAX.to_string(), CAP.to_string(), TOPUP.to_string());
        let keep = ms(PROBE_KEEP).to_string();
        let owners: Vec<String> = (0..REBUILD_KEYS_MAX).map(|n| format!("{n:016}")).collect();
        let mut args = vec!["0", "0-0", "1", "-", "sums", &most, &held, &settled, &most, &keep];
        args.extend(owners.iter().flat_map(|owner| [owner.as_str(), &most]));
        self.call(&script::REBUILD, &keys, &args, |reply| foretold(&Words::of(reply).text()?, &"written"))
            .await
    }

    async fn session(&mut self) -> Result<(), StoreError> {
        let (keys, keep) = ([self.keys.session(&self.account, &sid('c'))], ms(PROBE_KEEP).to_string());
        let args = ["make", OWNER, &Units::MAX.to_string(), &keep];
        self.call(&script::SESSION, &keys, &args, |reply| foretold(&Words::of(reply).text()?, &"made")).await
    }
}

/// Ways of cutting time that an account remembers: so many bytes at most, zones and all.
const EARLIER_BYTES_MAX: usize = 512;
/// The longest name in the zone database.
const LONGEST_ZONE: &str = "America/Argentina/ComodRivadavia";

/// Model, tariff and tags, in letters as wide as there are.
fn terms() -> String {
    let (model, tags) = ("\u{1F399}".repeat(NAME_BYTES_MAX), "\u{1F399}".repeat(super::ask::TAGS_CHARS_MAX));
    format!("{model}|{}|{tags}", u32::MAX)
}

fn stream() -> String {
    format!("g{}.{}", "0".repeat(12), u64::MAX)
}

fn attachment() -> String {
    format!("{}.{}", stream(), u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_name() {
        for wanted in (0..16_384).step_by(63).chain([1, 16_383]) {
            let name = account_in(wanted, "0123456789ab").unwrap();
            assert_eq!((name.as_str().len(), slot::slot(name.as_str().as_bytes())), (NAME_BYTES_MAX, wanted));
            let key = Keys::new("vox:").of_probes().quota(&name, &sid('a'), N);
            assert_eq!(slot::slot(key.as_bytes()), wanted, "{key}");
        }
    }
}
