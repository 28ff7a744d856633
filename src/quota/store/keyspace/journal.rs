//! Which keys, and which parts of them, a shard has changed since the last drain; never their values.
//!
//! A mark names at least what changed, maybe more: values are read when the journal is drained, so a part that was
//! marked in vain costs a write and changes nothing. That makes a hundred admits of one quota key one write.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    Answer, Keyspace, Reply, Verb,
    codec::{self, Write},
    command::Reach,
    stream::Stream,
};

/// What a command may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Change {
    /// Nothing: it only reads.
    Nothing,
    /// The key's plain value or its deadline.
    Key,
    /// All of the key, its type included.
    Whole,
    /// Every second word after the key is a field.
    Pairs,
    /// The word after the key is a field.
    Field,
    /// Every word after the key may name a part.
    Rest,
    /// The row that it answers, and rows before the first that is left.
    Row,
    /// Rows before the first that is left.
    Front,
    /// Every word after the key is a row's id.
    Rows,
}

/// Marks of one shard.
#[derive(Debug, Default)]
pub(super) struct Journal {
    marks: HashMap<Arc<[u8]>, Mark>,
}

#[derive(Debug, Default)]
struct Mark {
    /// Nothing that is kept of this key holds any more.
    whole: bool,
    /// Rows may be gone before the first that is left.
    front: bool,
    parts: BTreeSet<Vec<u8>>,
}

impl Journal {
    /// Marks what a command that ran may have changed.
    pub(super) fn note(&mut self, verb: &Verb, words: &[&[u8]], answer: &Answer) {
        if verb.change == Change::Nothing {
            return;
        }
        if verb.reach == Reach::Each {
            words.iter().skip(1).for_each(|key| self.mark(key, |_| {}));
            return;
        }
        let [_, key, rest @ ..] = words else { return };
        self.mark(key, |mark| mark.note(verb.change, rest, answer));
    }

    /// Marks all of a key: it was removed, or is about to be replaced.
    pub(super) fn whole(&mut self, key: &[u8]) {
        self.mark(key, |mark| mark.whole = true);
    }

    fn mark(&mut self, key: &[u8], change: impl FnOnce(&mut Mark)) {
        if let Some(mark) = self.marks.get_mut(key) {
            change(mark);
            return;
        }
        let mut mark = Mark::default();
        change(&mut mark);
        self.marks.insert(key.into(), mark);
    }
}

impl Mark {
    fn note(&mut self, change: Change, rest: &[&[u8]], answer: &Answer) {
        match change {
            Change::Nothing | Change::Key => {}
            Change::Whole => self.whole = true,
            Change::Pairs => self.add(rest.iter().step_by(2)),
            Change::Field => self.add(rest.iter().take(1)),
            Change::Rest => self.add(rest.iter()),
            Change::Front => self.front = true,
            Change::Rows => {
                self.parts.extend(rest.iter().filter_map(|id| Stream::part_name(id)).map(Vec::from));
            }
            Change::Row => {
                self.front |= rest.first().and_then(|word| word.first()).is_some_and(u8::is_ascii_alphabetic);
                if let Ok(Reply::Bulk(id)) = answer {
                    self.parts.extend(Stream::part_name(id).map(Vec::from));
                }
            }
        }
    }

    fn add<'a>(&mut self, names: impl Iterator<Item = &'a &'a [u8]>) {
        if self.whole {
            return;
        }
        for name in names {
            if !self.parts.contains(*name) {
                self.parts.insert(name.to_vec());
            }
        }
    }
}

impl Keyspace {
    /// Begins to keep a journal.
    pub(in super::super) fn keep_journal(&mut self) {
        self.journal.get_or_insert_default();
    }

    /// How many keys and parts are marked, about: each costs one write.
    pub(in super::super) fn marks(&self) -> usize {
        self.journal.as_ref().map_or(0, |journal| journal.marks.len())
    }

    /// Puts what must be written so that records equal this shard behind `into`, and forgets the marks.
    pub(in super::super) fn drain(&mut self, into: &mut Vec<Write>) {
        let Some(journal) = &mut self.journal else { return };
        for (key, mark) in std::mem::take(&mut journal.marks) {
            let Some(entry) = self.entries.get(&key) else {
                codec::erase(&key, into);
                continue;
            };
            if mark.whole {
                codec::whole(&key, &entry.value, entry.deadline, into);
                continue;
            }
            codec::head(&key, &entry.value, entry.deadline, into);
            if mark.front {
                codec::front(&key, &entry.value, into);
            }
            codec::parts(&key, &entry.value, mark.parts, into);
        }
    }

    /// Takes a key that was read from records; one whose time is over is marked, so that its records go.
    pub(in super::super) fn restore(&mut self, loaded: codec::Loaded) {
        let codec::Loaded { key, value, deadline } = loaded;
        if deadline.is_some_and(|deadline| super::is_past(deadline, self.now)) {
            if let Some(journal) = &mut self.journal {
                journal.whole(&key);
            }
            return;
        }
        let key: Arc<[u8]> = key.into();
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, Arc::clone(&key)));
        }
        self.entries.insert(key, super::Entry { value, deadline });
    }
}
