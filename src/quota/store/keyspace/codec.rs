//! Keys and values as records, and back; pure, no file. Reading is total: a damaged record is an error, never a panic.
//!
//! # Layout 1
//! A key is one head and, unless it is plain text, one record per part (a hash's field, a member of a sorted set, a
//! stream's row), so that a growing ledger or a large hash costs what changed in it.
//!
//! | record | name | value |
//! |---|---|---|
//! | head | key, 0 | kind, deadline, then text as it is, or the number of parts; a stream's last id |
//! | part | key, 1, part | hash: value; sorted set: 8 bytes of score; stream: words, each behind its length |
//!
//! A key stands behind its length (4 bytes, big-endian), so the records of one key lie together, its head first. A
//! deadline is 0 or 1, then 8 bytes of Unix milliseconds. A head counts its parts: a lost record is found at loading.
//! Fields of a hash come back in the order of their bytes.

use super::{Value, hash::Hash, sorted::Sorted, stream::Stream};

/// The layout that is written, and the newest that is read.
pub(in super::super) const LAYOUT: u64 = 1;

/// One step of bringing records up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Write {
    /// This record has this value.
    Put(Vec<u8>, Vec<u8>),
    /// This record is gone.
    Drop(Vec<u8>),
    /// All records from the first name on and before the second are gone.
    Clear(Vec<u8>, Vec<u8>),
}

/// A value that is kept in parts.
pub(super) trait Parted {
    /// How many parts there are.
    fn count(&self) -> usize;
    /// One part's value, if it is there.
    fn part(&self, name: &[u8]) -> Option<Vec<u8>>;
    /// The names of all parts.
    fn names(&self) -> impl Iterator<Item = Vec<u8>>;
    /// Takes a part that was read; nothing when it can't be one, or is there already.
    fn restore(&mut self, name: &[u8], value: &[u8]) -> Option<()>;
}

/// A key read from records.
pub(in super::super) struct Loaded {
    /// Its name.
    pub(in super::super) key: Vec<u8>,
    /// What it holds.
    pub(super) value: Value,
    /// Unix milliseconds.
    pub(super) deadline: Option<u64>,
}

/// What is wrong with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Damage(pub(in super::super) String);

/// Writes nothing of `key`.
pub(super) fn erase(key: &[u8], into: &mut Vec<Write>) {
    into.push(Write::Drop(name(key, HEAD, b"")));
    into.push(Write::Clear(name(key, PART, b""), name(key, END, b"")));
}

/// Writes all of a key, whatever was there.
pub(super) fn whole(key: &[u8], value: &Value, deadline: Option<u64>, into: &mut Vec<Write>) {
    into.push(Write::Clear(name(key, PART, b""), name(key, END, b"")));
    head(key, value, deadline, into);
    match value {
        Value::Text(_) => {}
        Value::Hash(hash) => parts_of(key, hash, hash.names(), into),
        Value::Sorted(sorted) => parts_of(key, sorted, sorted.names(), into),
        Value::Stream(stream) => parts_of(key, stream, stream.names(), into),
    }
}

/// Writes a key's head.
pub(super) fn head(key: &[u8], value: &Value, deadline: Option<u64>, into: &mut Vec<Write>) {
    let kind = match value {
        Value::Text(_) => TEXT,
        Value::Hash(_) => HASH,
        Value::Sorted(_) => SORTED,
        Value::Stream(_) => STREAM,
    };
    let mut out = vec![kind];
    match deadline {
        None => out.push(0),
        Some(deadline) => {
            out.push(1);
            out.extend_from_slice(&deadline.to_be_bytes());
        }
    }
    let count = |out: &mut Vec<u8>, count: usize| put_length(out, count);
    match value {
        Value::Text(text) => out.extend_from_slice(text),
        Value::Hash(hash) => count(&mut out, hash.count()),
        Value::Sorted(sorted) => count(&mut out, sorted.count()),
        Value::Stream(stream) => {
            count(&mut out, stream.count());
            out.extend_from_slice(&stream.last_part());
        }
    }
    into.push(Write::Put(name(key, HEAD, b""), out));
}

/// Writes these parts of a key as they are now, gone ones too.
pub(super) fn parts(
    key: &[u8],
    value: &Value,
    names: impl IntoIterator<Item = Vec<u8>>,
    into: &mut Vec<Write>,
) {
    match value {
        Value::Text(_) => {}
        Value::Hash(hash) => parts_of(key, hash, names, into),
        Value::Sorted(sorted) => parts_of(key, sorted, names, into),
        Value::Stream(stream) => parts_of(key, stream, names, into),
    }
}

/// Drops a stream's rows before the first that is left.
pub(super) fn front(key: &[u8], value: &Value, into: &mut Vec<Write>) {
    if let Value::Stream(stream) = value {
        let end = stream.names().next().map_or_else(|| name(key, END, b""), |first| name(key, PART, &first));
        into.push(Write::Clear(name(key, PART, b""), end));
    }
}

fn parts_of(
    key: &[u8],
    value: &impl Parted,
    names: impl IntoIterator<Item = Vec<u8>>,
    into: &mut Vec<Write>,
) {
    for part in names {
        let record = name(key, PART, &part);
        into.push(match value.part(&part) {
            Some(value) => Write::Put(record, value),
            None => Write::Drop(record),
        });
    }
}

/// Turns records, in the order of their names, into keys.
#[derive(Default)]
pub(in super::super) struct Loader {
    open: Option<Open>,
}

/// The key whose parts are being read.
struct Open {
    loaded: Loaded,
    /// Parts that its head counts and that were not seen yet.
    missing: u64,
}

impl Loader {
    /// Takes one record; answers the key before it when this one begins another.
    pub(in super::super) fn record(&mut self, record: &[u8], value: &[u8]) -> Result<Option<Loaded>, Damage> {
        let damage = |what: &str| Damage(format!("{what} at record {}", hex::encode(record)));
        let (key, tag, part) = split(record).ok_or_else(|| damage("a name that is none"))?;
        if tag == HEAD {
            let next = read_head(key, value).ok_or_else(|| damage("a head that is none"))?;
            let before = self.finish()?;
            self.open = Some(next);
            return Ok(before);
        }
        let Some(open) = self.open.as_mut().filter(|open| open.loaded.key == key) else {
            return Err(damage("a part without its head"));
        };
        open.missing = open.missing.checked_sub(1).ok_or_else(|| damage("a part too many"))?;
        let restored = match &mut open.loaded.value {
            Value::Text(_) => None,
            Value::Hash(hash) => hash.restore(part, value),
            Value::Sorted(sorted) => sorted.restore(part, value),
            Value::Stream(stream) => stream.restore(part, value),
        };
        restored.map(|()| None).ok_or_else(|| damage("a part that is none"))
    }

    /// Answers the last key, after the last record.
    pub(in super::super) fn finish(&mut self) -> Result<Option<Loaded>, Damage> {
        match self.open.take() {
            Some(Open { loaded, missing: 1.. }) => {
                Err(Damage(format!("parts are missing of key {}", String::from_utf8_lossy(&loaded.key))))
            }
            open => Ok(open.map(|open| open.loaded)),
        }
    }
}

fn read_head(key: &[u8], value: &[u8]) -> Option<Open> {
    let mut cursor = Cursor::new(value);
    let kind = cursor.byte()?;
    let deadline = match cursor.byte()? {
        0 => None,
        1 => Some(u64::from_be_bytes(*cursor.array::<8>()?)),
        _ => return None,
    };
    let (value, missing) = match kind {
        TEXT => (Value::Text(std::mem::take(&mut cursor.0).to_vec()), 0),
        HASH => (Value::Hash(Hash::default()), cursor.length()?),
        SORTED => (Value::Sorted(Sorted::default()), cursor.length()?),
        STREAM => {
            let count = cursor.length()?;
            (Value::Stream(Stream::after(cursor.array::<16>()?)?), count)
        }
        _ => return None,
    };
    cursor.is_done().then(|| Open { loaded: Loaded { key: key.to_vec(), value, deadline }, missing })
}

/// The name of a record of `key`.
fn name(key: &[u8], tag: u8, part: &[u8]) -> Vec<u8> {
    let length = u32::try_from(key.len()).unwrap_or(u32::MAX); // a key is at most as long as a request
    let mut out = Vec::with_capacity(5 + key.len() + part.len());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(key);
    out.push(tag);
    out.extend_from_slice(part);
    out
}

/// Key, tag and part of a record's name.
fn split(record: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let mut cursor = Cursor::new(record);
    let length = u32::from_be_bytes(*cursor.array::<4>()?);
    let key = cursor.take(u64::from(length))?;
    let tag = cursor.byte()?;
    let known = tag == PART || (tag == HEAD && cursor.is_done());
    known.then_some((key, tag, cursor.0))
}

/// Bytes that are read from their front; every read answers nothing where they end too early.
pub(super) struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes behind their length.
    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.length()?;
        self.take(length)
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (front, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(front)
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(front)
    }

    /// A number in groups of 7 bits, the lowest first.
    fn length(&mut self) -> Option<u64> {
        let mut sum = 0_u64;
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            sum |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(sum);
            }
        }
        None
    }
}

/// Puts bytes behind their length.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    let mut rest = length;
    while let Ok(group) = u8::try_from(rest & 0x7f) {
        rest >>= 7;
        if rest == 0 {
            out.push(group);
            return;
        }
        out.push(group | 0x80);
    }
}

const HEAD: u8 = 0;
const PART: u8 = 1;
const END: u8 = 2;

const TEXT: u8 = 1;
const HASH: u8 = 2;
const SORTED: u8 = 3;
const STREAM: u8 = 4;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{
        super::{Keyspace, verb},
        *,
    };

    fn call(space: &mut Keyspace, line: &str) {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        space.call(verb(words[0]).unwrap(), &words).unwrap();
    }

    fn apply(records: &mut BTreeMap<Vec<u8>, Vec<u8>>, writes: Vec<Write>) {
        for write in writes {
            match write {
                Write::Put(name, value) => _ = records.insert(name, value),
                Write::Drop(name) => _ = records.remove(&name),
                Write::Clear(from, to) => records.retain(|name, _| *name < from || *name >= to),
            }
        }
    }

    fn load(records: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Keyspace, Damage> {
        let (mut space, mut loader) = (Keyspace::default(), Loader::default());
        for (name, value) in records {
            loader.record(name, value)?.into_iter().for_each(|loaded| space.restore(loaded));
        }
        loader.finish()?.into_iter().for_each(|loaded| space.restore(loaded));
        Ok(space)
    }

    fn filled() -> (Keyspace, BTreeMap<Vec<u8>, Vec<u8>>) {
        let (mut space, mut records) = (Keyspace::default(), BTreeMap::new());
        space.keep_journal();
        for line in [
            "SET t hello PXAT 99999",
            "HSET h a 1 b 2",
            "ZADD z 1.5 m -7 n",
            "XADD x 5-1 f v g w",
            "XADD x 6-0 f v",
            "SET empty 5",
        ] {
            call(&mut space, line);
        }
        let mut writes = Vec::new();
        space.drain(&mut writes);
        apply(&mut records, writes);
        (space, records)
    }

    #[test]
    fn records_are_as_documented() {
        let (_, records) = filled();
        let name = |key: &str, tail: &[u8]| [&[0, 0, 0, 1], key.as_bytes(), tail].concat();

        assert_eq!(records[&name("t", &[0])], b"\x01\x01\0\0\0\0\0\x01\x86\x9fhello");
        assert_eq!(records[&name("h", &[0])], [2, 0, 2]);
        assert_eq!(records[&name("h", b"\x01b")], b"2");
        assert_eq!(records[&name("z", b"\x01m")], 1.5_f64.to_bits().to_be_bytes());
        assert_eq!(records[&name("x", &[0])], [&[4, 0, 2][..], &[0, 0, 0, 0, 0, 0, 0, 6], &[0; 8]].concat());
        assert_eq!(records.len(), 11);
    }

    #[test]
    fn only_what_changed_is_written() {
        let (mut space, _) = filled();
        for line in ["INCRBY empty 1", "INCRBY empty 1", "HSET h b 3", "XADD x 7-0 a b", "GET t"] {
            call(&mut space, line);
        }
        let mut writes = Vec::new();
        space.drain(&mut writes);

        assert_eq!(writes.len(), 5, "{writes:?}"); // head; head and field; head and row
    }

    #[test]
    fn records_follow_every_change() {
        let (mut space, mut records) = filled();
        for line in [
            "HDEL h a",
            "ZREM z m",
            "XTRIM x MAXLEN 1",
            "XADD x MAXLEN 1 8-0 k l",
            "XDEL x 8-0",
            "DEL t",
            "HSET t now a",
            "SET h text",
            "ZREM z n",
            "PEXPIREAT x 7777",
        ] {
            call(&mut space, line);
            let mut writes = Vec::new();
            space.drain(&mut writes);
            apply(&mut records, writes);
            let mut again = load(&records).unwrap();
            assert_eq!(again.len(), space.len(), "after {line}");
            let mut fresh = BTreeMap::new();
            again.keep_journal();
            again.entries.keys().cloned().collect::<Vec<_>>().iter().for_each(|key| {
                let entry = &again.entries[key];
                let mut writes = Vec::new();
                whole(key, &entry.value, entry.deadline, &mut writes);
                apply(&mut fresh, writes);
            });
            assert_eq!(fresh, records, "after {line}");
        }
    }

    /// Random bytes, and good records with random damage: an error or a keyspace, never a panic.
    #[test]
    fn random_bytes_never_panic() {
        let (_, good) = filled();
        let good: Vec<_> = good.into_iter().collect();
        let mut refused = 0;
        for seed in 0..20_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut records = good.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(0..records.len());
                let (name, value) = &mut records[at];
                let bytes = if random.bool() { name } else { value };
                match random.u8(0..4) {
                    0 => bytes.truncate(random.usize(0..=bytes.len())),
                    1 => bytes.push(random.u8(..)),
                    2 => *bytes = (0..random.usize(0..40)).map(|_| random.u8(..)).collect(),
                    _ => bytes.iter_mut().for_each(|byte| *byte ^= 1 << random.u8(0..8)),
                }
            }
            let mut loader = Loader::default();
            let all = records.iter().try_for_each(|(name, value)| loader.record(name, value).map(drop));
            refused += u32::from(all.and_then(|()| loader.finish().map(drop)).is_err());
        }
        assert!(refused > 10_000, "{refused}");
    }

    #[test]
    fn lost_record_is_noticed() {
        let (_, records) = filled();
        for gone in records.keys() {
            let mut left = records.clone();
            left.remove(gone);
            let plain = matches!(split(gone), Some((b"t" | b"empty", _, _)));
            assert_eq!(load(&left).is_ok(), plain, "{gone:?}");
        }
    }
}
