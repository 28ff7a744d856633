//! Keys, values and times to live of one shard, with the commands of Redis over them; never a lock, a clock or Lua.
//!
//! [`Keyspace::call`] is the one door through which anything is read or written, for scripts and for plain
//! commands alike; for a store on disk the journal of what changed hangs there, and on the one way out, `remove`.
//! The time is set from outside by
//! [`Keyspace::advance`] and stands still between two calls of it. An expired key is gone for whoever asks,
//! and a bounded sweep frees what nobody asks for.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::Reply;

pub(super) mod codec;
mod command;
mod hash;
mod journal;
pub(super) mod keys;
pub(super) mod number;
mod sorted;
mod stream;
mod strings;

pub(super) use codec::{Damage, LAYOUT, Loaded, Loader, Write};
pub(super) use command::{Reach, Verb, verb};
use hash::Hash;
use journal::Journal;
use sorted::Sorted;
use stream::Stream;

/// All keys of one shard.
#[derive(Default)]
pub(super) struct Keyspace {
    entries: HashMap<Arc<[u8]>, Entry>,
    /// Every key that has a time to live, the soonest first.
    deadlines: BTreeSet<(u64, Arc<[u8]>)>,
    /// Unix microseconds; stands still while a script runs.
    now: u64,
    /// What changed since the last drain; kept only for a store on disk.
    journal: Option<Journal>,
}

/// What a command answers: a reply, or the text of an error whose first word is its code.
pub(super) type Answer = Result<Reply, Fault>;

/// The text of an error, code first, as Redis spells it.
pub(super) type Fault = Cow<'static, str>;

struct Entry {
    value: Value,
    /// Unix milliseconds after which the key is gone.
    deadline: Option<u64>,
}

enum Value {
    Text(Vec<u8>),
    Hash(Hash),
    Sorted(Sorted),
    Stream(Stream),
}

/// A type that a key can hold.
trait Kind: Default {
    /// The value as this type, if it is one.
    fn of(value: &mut Value) -> Option<&mut Self>;
    /// The value as stored.
    fn wrap(self) -> Value;
    /// Whether a key holding this goes away.
    fn is_spent(&self) -> bool;
}

impl Keyspace {
    /// Moves the clock to `now` (Unix microseconds) and frees at most [`SWEEP`] expired keys.
    pub(super) fn advance(&mut self, now: u64) {
        self.now = now;
        for _ in 0..SWEEP {
            let Some((deadline, key)) = self.deadlines.first() else { return };
            if !is_past(*deadline, now) {
                return;
            }
            let key = Arc::clone(key);
            self.remove(&key);
        }
    }

    /// Runs one command; `words` starts with its name and was checked against the verb's arity.
    pub(super) fn call(&mut self, verb: &Verb, words: &[&[u8]]) -> Answer {
        let answer = (verb.run)(self, words);
        if let Some(journal) = &mut self.journal {
            journal.note(verb, words, &answer);
        }
        answer
    }

    /// How many keys there are, expired ones that nobody asked for included.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        if let Some(journal) = &mut self.journal {
            self.entries.keys().for_each(|key| journal.whole(key));
        }
        self.entries.clear();
        self.deadlines.clear();
    }

    /// Every live key, in no order.
    pub(super) fn names(&self) -> impl Iterator<Item = &[u8]> {
        let now = self.now;
        let live = move |entry: &Entry| entry.deadline.is_none_or(|deadline| !is_past(deadline, now));
        self.entries.iter().filter(move |(_, entry)| live(entry)).map(|(key, _)| &**key)
    }

    fn now_ms(&self) -> u64 {
        self.now / 1000
    }

    fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let some_past = self.deadlines.first().is_some_and(|(deadline, _)| is_past(*deadline, self.now));
        if some_past {
            let deadline = self.entries.get(key).and_then(|entry| entry.deadline);
            if deadline.is_some_and(|deadline| is_past(deadline, self.now)) {
                self.remove(key);
                return None;
            }
        }
        self.entries.get_mut(key)
    }

    fn has(&mut self, key: &[u8]) -> bool {
        self.entry(key).is_some()
    }

    /// The value of `key` as a `K`, nothing when there is no key.
    fn typed<K: Kind>(&mut self, key: &[u8]) -> Result<Option<&mut K>, Fault> {
        match self.entry(key) {
            None => Ok(None),
            Some(entry) => K::of(&mut entry.value).map(Some).ok_or(WRONG_TYPE),
        }
    }

    /// The value of `key` as a `K`; an empty one is made when there is no key.
    fn typed_or_new<K: Kind>(&mut self, key: &[u8]) -> Result<&mut K, Fault> {
        if !self.has(key) {
            let entry = Entry { value: K::default().wrap(), deadline: None };
            self.entries.insert(key.into(), entry);
        }
        let entry = self.entries.get_mut(key).ok_or(WRONG_TYPE)?;
        K::of(&mut entry.value).ok_or(WRONG_TYPE)
    }

    /// Removes `key` when its collection became empty.
    fn prune<K: Kind>(&mut self, key: &[u8]) {
        let spent =
            self.entries.get_mut(key).and_then(|entry| K::of(&mut entry.value)).is_some_and(|k| k.is_spent());
        if spent {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let Some((key, entry)) = self.entries.remove_entry(key) else { return false };
        if let Some(journal) = &mut self.journal {
            journal.whole(&key);
        }
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, key));
        }
        true
    }

    /// Gives `key` a deadline (Unix ms), or none; a deadline in the past removes the key.
    fn set_deadline(&mut self, key: &[u8], deadline: Option<u64>) {
        if deadline.is_some_and(|deadline| deadline <= self.now_ms()) {
            self.remove(key);
            return;
        }
        let Some((name, _)) = self.entries.get_key_value(key) else { return };
        let name = Arc::clone(name);
        let Some(entry) = self.entries.get_mut(key) else { return };
        let before = std::mem::replace(&mut entry.deadline, deadline);
        if let Some(before) = before {
            self.deadlines.remove(&(before, Arc::clone(&name)));
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, name));
        }
    }
}

/// Redis keeps a key for the whole millisecond that its deadline names.
fn is_past(deadline: u64, now: u64) -> bool {
    now / 1000 > deadline
}

fn int(value: usize) -> Reply {
    Reply::Int(i64::try_from(value).unwrap_or(i64::MAX))
}

fn flag(value: bool) -> Reply {
    Reply::Int(i64::from(value))
}

fn ok() -> Reply {
    Reply::Status("OK".to_owned())
}

/// Most expired keys freed by one call; bounds what a call pays for others' keys.
const SWEEP: usize = 4;
const WRONG_TYPE: Fault = Cow::Borrowed("WRONGTYPE Operation against a key holding the wrong kind of value");
const SYNTAX: Fault = Cow::Borrowed("ERR syntax error");
const OVERFLOW: Fault = Cow::Borrowed("ERR increment or decrement would overflow");

#[cfg(test)]
mod tests {
    use super::*;

    fn call(space: &mut Keyspace, line: &str) -> Answer {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        space.call(verb(words[0]).unwrap(), &words)
    }

    #[test]
    fn expired_key_is_gone() {
        let mut space = Keyspace::default();
        space.advance(1_000_000);
        call(&mut space, "SET k v PX 5").unwrap();

        space.now = 1_005_999;
        assert_eq!(call(&mut space, "GET k"), Ok(Reply::Bulk(b"v".to_vec())));
        space.now = 1_006_000;

        assert_eq!(call(&mut space, "GET k"), Ok(Reply::Nil));
        assert_eq!(space.len(), 0);
        assert!(space.deadlines.is_empty());
    }

    #[test]
    fn sweep_frees_what_nobody_asks() {
        let mut space = Keyspace::default();
        for n in 0..SWEEP * 3 {
            call(&mut space, &format!("SET k{n} v PX 5")).unwrap();
        }

        for left in [8, 4, 0] {
            space.advance(1_000_000);
            assert_eq!(space.len(), left);
        }
    }

    #[test]
    fn deadline_follows_the_key() {
        let mut space = Keyspace::default();
        for line in [
            "SET a 1 PX 500",
            "PEXPIRE a 600",
            "SET a 2",
            "SET a 3 PX 700",
            "PERSIST a",
            "SET a 1 EX 9",
            "DEL a",
        ] {
            call(&mut space, line).unwrap();
            let dated = space.entries.values().filter(|entry| entry.deadline.is_some()).count();
            assert_eq!(space.deadlines.len(), dated, "after {line}");
        }
    }
}
