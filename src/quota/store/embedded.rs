//! The store in process: the very Lua files that Redis runs, over keys in memory; it never waits on a network.
//!
//! In memory only, its keys end with the process. With a directory they outlive it, see `disk` and
//! `keeper`: calls still only touch memory, and a thread brings what changed to disk behind them.
//!
//! Keys live in shards by hash slot, each behind a lock of its own with its own Lua, so one call touches one
//! shard and sees nobody else's half-done work. A script's keys must share one slot exactly as in Redis Cluster,
//! and a key of another slot is an error, not a surprise on the day a cluster is used. What a script wrote before
//! it failed stays written, as in Redis.
//!
//! Differences from Redis, all of them refusals: only the commands in `keyspace` exist; Lua
//! has no `cjson`, `cmsgpack`, `struct`, `bit`, coroutines or `load`; a script is stopped after a bounded number
//! of instructions; commands over all keys (`SCAN`, `KEYS`, `DBSIZE`, `FLUSHALL`) can't be called from a script.
//! `SCAN` takes a whole shard per step whatever `COUNT` says.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    Reply, Script, StoreError,
    keyspace::{Answer, Fault, Keyspace, Reach, Verb, Write, keys::glob, number::parse_int, verb},
};

mod dialect;
mod disk;
mod flags;
mod keeper;

use super::slot::slot;
use dialect::Dialect;
use disk::Books;
use keeper::Keeper;

/// A store in this process; clones share it.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

struct Inner {
    shards: Arc<[Shard]>,
    clock: Clock,
    /// Brings changes to disk; none for a store in memory.
    keeper: Option<Keeper>,
}

/// Where the store takes its time from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The system's clock.
    System,
    /// Unix microseconds that somebody else moves; for tests and simulations.
    Manual(Arc<AtomicU64>),
}

/// Keys of some slots, and the Lua that runs over them.
struct Shard {
    /// Taken first, for a whole script or command.
    dialect: Mutex<Dialect>,
    /// Taken under the other, for one command.
    room: Arc<Mutex<Room>>,
}

/// What a script's commands see.
struct Room {
    space: Keyspace,
    scope: Scope,
}

/// What the running script may do.
#[derive(Clone, Copy, Default)]
struct Scope {
    /// The slot of its KEYS; none when it has no keys.
    slot: Option<u16>,
    /// Writes are refused.
    read_only: bool,
    /// Keys of other slots of the same shard are allowed.
    any_slot: bool,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Embedded").field("clock", &self.inner.clock).finish_non_exhaustive()
    }
}

impl Embedded {
    /// Makes an empty store in memory.
    ///
    /// # Errors
    /// [`StoreError::Odd`] when Lua can't be set up (memory).
    pub fn new(clock: Clock) -> Result<Self, StoreError> {
        let shards = (0..SHARDS).map(|_| Shard::new()).collect::<Result<_, _>>()?;
        Ok(Self { inner: Arc::new(Inner { shards, clock, keeper: None }) })
    }

    /// Opens the store that is kept in the directory `folder`, which is made when there is none. Blocks: all of it is
    /// checked and read.
    ///
    /// # Errors
    /// Each says what to do. [`StoreError::Away`]: another process has it open. [`StoreError::Refuses`]: it can't be
    /// written. [`StoreError::Corrupt`]: it is damaged, is no store of ours, or was written by a newer version.
    pub fn open(folder: &Path, clock: Clock) -> Result<Self, StoreError> {
        let mut store = Self::new(clock)?;
        let books = Books::open(folder)?;
        store.each(|space| space.keep_journal());
        books.load(|loaded| {
            let shard = store.shard(slot(&loaded.key))?;
            store.with(shard, |space| space.restore(loaded));
            Ok(())
        })?;
        let keeper = Keeper::start(books, Arc::clone(&store.inner.shards))?;
        if let Some(inner) = Arc::get_mut(&mut store.inner) {
            inner.keeper = Some(keeper);
        }
        store.each(|_| ()); // keys whose time is over were marked: they go now
        store.flush()?;
        Ok(store)
    }

    /// Returns when all that was written before is on disk; at once for a store in memory. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Refuses`] with the disk's reason.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.inner.keeper.as_ref().map_or(Ok(()), Keeper::flush)
    }

    /// As [`Embedded::flush`], and gives the directory free; every later write is refused.
    ///
    /// # Errors
    /// As [`Embedded::flush`]: what the last second changed is lost then.
    pub fn close(&self) -> Result<(), StoreError> {
        self.inner.keeper.as_ref().map_or(Ok(()), Keeper::close)
    }

    /// Whether a write may begin.
    fn may_write(&self, space: &Keyspace) -> Result<(), StoreError> {
        self.inner.keeper.as_ref().map_or(Ok(()), |keeper| keeper.may_write(space.marks()))
    }

    /// Tells the keeper what a call left to it; under the shard's lock.
    fn changed(&self, space: &Keyspace) {
        if let Some(keeper) = &self.inner.keeper {
            keeper.changed(space.marks());
        }
    }

    /// Runs a script to its end; microseconds for ours, bounded for any.
    ///
    /// # Errors
    /// What the script raised or returned as an error, by its code: [`StoreError::Corrupt`] when a key holds
    /// the wrong type or no integer, else [`StoreError::Odd`], also for keys of several slots.
    /// [`StoreError::Refuses`] when the disk fails or can't follow; the script did not begin then.
    pub fn run(&self, script: &Script, keys: &[&str], args: &[&str]) -> Result<Reply, StoreError> {
        let slot = common_slot(keys.iter().map(|key| key.as_bytes())).map_err(refused)?;
        let shard = self.shard(slot.unwrap_or_default())?;
        let mut dialect = lock(&shard.dialect);
        let compiled = dialect.compiled(script).map_err(refused)?;
        {
            let mut room = lock(&shard.room);
            if !compiled.flags.no_writes {
                self.may_write(&room.space)?;
            }
            room.space.advance(self.now());
            room.scope = Scope {
                slot,
                read_only: compiled.flags.no_writes,
                any_slot: compiled.flags.allow_cross_slot_keys,
            };
        }
        let answer = dialect.run(&compiled.function, keys, args).map_err(refused);
        self.changed(&lock(&shard.room).space);
        answer
    }

    /// Runs one plain command; `words` starts with its name, in any case.
    ///
    /// # Errors
    /// As [`Embedded::run`].
    pub fn command(&self, words: &[&[u8]]) -> Result<Reply, StoreError> {
        self.plain(words).map_err(refused)
    }

    fn plain(&self, words: &[&[u8]]) -> Answer {
        let Some((name, rest)) = words.split_first() else { return Err("ERR empty command".into()) };
        if let Some(answer) = self.everywhere(name, rest) {
            return answer;
        }
        let verb = verb(name).ok_or_else(|| unknown(name, rest))?;
        if !(verb.least..=verb.most).contains(&words.len()) {
            return Err(wrong_number(verb.name));
        }
        let slot = common_slot(keys(verb, words).iter().copied())?.unwrap_or_default();
        let shard = self.shard(slot).map_err(|error| Fault::Owned(error.to_string()))?;
        let _alone = lock(&shard.dialect);
        let mut room = lock(&shard.room);
        if verb.writes() {
            self.may_write(&room.space).map_err(misconf)?;
        }
        room.space.advance(self.now());
        let answer = room.space.call(verb, words);
        self.changed(&room.space);
        answer
    }

    /// Commands over all shards, one shard after the other; nothing when it is none of them.
    fn everywhere(&self, name: &[u8], rest: &[&[u8]]) -> Option<Answer> {
        let name = name.to_ascii_uppercase();
        Some(match (name.as_slice(), rest) {
            (b"DBSIZE", []) => Ok(Reply::Int(self.each(|space| space.len()).into_iter().fold(0, add))),
            (b"FLUSHALL", [] | [b"ASYNC" | b"SYNC" | b"async" | b"sync"]) => self
                .each(|space| self.may_write(space).map(|()| space.clear()))
                .into_iter()
                .collect::<Result<Vec<()>, _>>()
                .map(|_| Reply::Status("OK".to_owned()))
                .map_err(misconf),
            (b"FLUSHALL", _) => Err("ERR syntax error".into()),
            (b"KEYS", [pattern]) => {
                Ok(Reply::List(self.each(|space| matching(space, pattern)).into_iter().flatten().collect()))
            }
            (b"SCAN", [cursor, terms @ ..]) => self.scan(cursor, terms),
            (b"DBSIZE", _) => Err(wrong_number("dbsize")),
            (b"KEYS", _) => Err(wrong_number("keys")),
            (b"SCAN", _) => Err(wrong_number("scan")),
            _ => return None,
        })
    }

    fn scan(&self, cursor: &[u8], terms: &[&[u8]]) -> Answer {
        let cursor: usize = std::str::from_utf8(cursor)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or(Fault::Borrowed("ERR invalid cursor"))?;
        let mut pattern: &[u8] = b"*";
        let (pairs, []) = terms.as_chunks::<2>() else { return Err("ERR syntax error".into()) };
        for [name, value] in pairs {
            match name.to_ascii_uppercase().as_slice() {
                b"MATCH" => pattern = value,
                b"COUNT" => match parse_int(value) {
                    None => return Err("ERR value is not an integer or out of range".into()),
                    Some(count) if count < 1 => return Err("ERR syntax error".into()),
                    Some(_) => {}
                },
                _ => return Err("ERR syntax error".into()),
            }
        }
        let found =
            self.inner.shards.get(cursor).map(|shard| self.with(shard, |space| matching(space, pattern)));
        let next = if cursor + 1 < SHARDS { cursor + 1 } else { 0 };
        let next = Reply::Bulk(next.to_string().into_bytes());
        Ok(Reply::List(vec![next, Reply::List(found.unwrap_or_default())]))
    }

    fn each<T>(&self, mut work: impl FnMut(&mut Keyspace) -> T) -> Vec<T> {
        self.inner.shards.iter().map(|shard| self.with(shard, &mut work)).collect()
    }

    fn with<T>(&self, shard: &Shard, work: impl FnOnce(&mut Keyspace) -> T) -> T {
        let _alone = lock(&shard.dialect);
        let mut room = lock(&shard.room);
        room.space.advance(self.now());
        let outcome = work(&mut room.space);
        self.changed(&room.space);
        outcome
    }

    fn shard(&self, slot: u16) -> Result<&Shard, StoreError> {
        self.inner
            .shards
            .get(usize::from(slot) % SHARDS)
            .ok_or_else(|| StoreError::Odd("no such shard".to_owned()))
    }

    /// Unix microseconds.
    fn now(&self) -> u64 {
        match &self.inner.clock {
            Clock::System => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX)),
            Clock::Manual(micros) => micros.load(Ordering::Acquire),
        }
    }
}

impl Shard {
    fn new() -> Result<Self, StoreError> {
        let room = Arc::new(Mutex::new(Room { space: Keyspace::default(), scope: Scope::default() }));
        let dialect = Dialect::new(&room).map_err(|error| StoreError::Odd(error.to_string()))?;
        Ok(Self { dialect: Mutex::new(dialect), room })
    }
}

impl Room {
    /// Runs one command of a script, within its scope.
    fn call(&mut self, words: &[&[u8]]) -> Answer {
        let Some(name) = words.first() else {
            return Err("ERR Please specify at least one argument for this redis lib call".into());
        };
        let verb = verb(name).ok_or_else(|| unknown_in_script(name))?;
        if !(verb.least..=verb.most).contains(&words.len()) {
            return Err("ERR Wrong number of args calling Redis command from script".into());
        }
        if verb.writes() && self.scope.read_only {
            return Err("ERR Write commands are not allowed from read-only scripts.".into());
        }
        for key in keys(verb, words) {
            self.scope.check(key)?;
        }
        self.space.call(verb, words).map_err(one_line)
    }
}

impl Scope {
    fn check(self, key: &[u8]) -> Result<(), Fault> {
        let slot = slot(key);
        match self.slot {
            Some(own) if own == slot => Ok(()),
            Some(own) if usize::from(own) % SHARDS != usize::from(slot) % SHARDS => Err(NOT_LOCAL),
            Some(_) if self.any_slot => Ok(()),
            Some(_) => Err("ERR Script attempted to access keys that do not hash to the same slot".into()),
            None => Err(NOT_LOCAL),
        }
    }
}

fn keys<'a, 'b>(verb: &Verb, words: &'a [&'b [u8]]) -> &'a [&'b [u8]] {
    match verb.reach {
        Reach::Nothing => &[],
        Reach::First => words.get(1..2).unwrap_or_default(),
        Reach::Each => words.get(1..).unwrap_or_default(),
    }
}

/// The slot that all keys share; none without keys.
fn common_slot<'a>(keys: impl Iterator<Item = &'a [u8]>) -> Result<Option<u16>, Fault> {
    let mut common = None;
    for key in keys {
        let slot = slot(key);
        if *common.get_or_insert(slot) != slot {
            return Err("CROSSSLOT Keys in request don't hash to the same slot".into());
        }
    }
    Ok(common)
}

fn matching(space: &Keyspace, pattern: &[u8]) -> Vec<Reply> {
    space.names().filter(|name| glob(pattern, name)).map(|name| Reply::Bulk(name.to_vec())).collect()
}

fn add(sum: i64, more: usize) -> i64 {
    sum.saturating_add(i64::try_from(more).unwrap_or(i64::MAX))
}

fn refused(fault: Fault) -> StoreError {
    StoreError::from_text(&one_line(fault))
}

/// A refusal to write, with the code that servers use for it.
fn misconf(error: StoreError) -> Fault {
    match error {
        StoreError::Refuses(reason) => format!("MISCONF {reason}").into(),
        error => error.to_string().into(),
    }
}

/// An error as the protocol carries it.
fn one_line(fault: Fault) -> Fault {
    if !fault.contains(['\r', '\n']) {
        return fault;
    }
    fault.trim_matches(['\r', '\n']).replace(['\r', '\n'], " ").into()
}

fn wrong_number(name: &str) -> Fault {
    format!("ERR wrong number of arguments for '{name}' command").into()
}

fn unknown(name: &[u8], rest: &[&[u8]]) -> Fault {
    let mut text =
        format!("ERR unknown command '{}', with args beginning with: ", String::from_utf8_lossy(name));
    for word in rest {
        if text.len() > 128 {
            break;
        }
        text.push_str(&format!("'{}' ", String::from_utf8_lossy(word)));
    }
    text.into()
}

fn unknown_in_script(name: &[u8]) -> Fault {
    let everywhere: [&[u8]; 4] = [b"SCAN", b"KEYS", b"DBSIZE", b"FLUSHALL"];
    if everywhere.iter().any(|known| name.eq_ignore_ascii_case(known)) {
        return "ERR This Redis command is not allowed from script".into();
    }
    "ERR Unknown Redis command called from script".into()
}

/// A panic under a lock ends one call; keys stay whole, since each command's writes come last.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks and Luas; more would only cost memory, as a call takes microseconds.
const SHARDS: usize = 16;
const NOT_LOCAL: Fault = Fault::Borrowed("ERR Script attempted to access a non local key in a cluster node");

#[cfg(test)]
mod tests;
