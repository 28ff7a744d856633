//! Streams: rows under rising ids, appended, read by range and trimmed; no groups, no blocking reads.
//!
//! `~` trims exactly here: Redis may keep a few rows more, never fewer, and neither may a caller rely on them.

use std::collections::BTreeMap;

use super::{
    Answer, Fault, Keyspace, Kind, Reply, SYNTAX, Value,
    codec::{Cursor, Parted, put_bytes},
    int,
    number::int_arg,
};

/// Rows, and the highest id ever given.
#[derive(Default)]
pub(super) struct Stream {
    rows: BTreeMap<Id, Vec<Vec<u8>>>,
    last: Id,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    ms: u64,
    seq: u64,
}

impl Kind for Stream {
    fn of(value: &mut Value) -> Option<&mut Self> {
        match value {
            Value::Stream(stream) => Some(stream),
            Value::Text(_) | Value::Hash(_) | Value::Sorted(_) => None,
        }
    }

    fn wrap(self) -> Value {
        Value::Stream(self)
    }

    /// An empty stream stays: it remembers its last id.
    fn is_spent(&self) -> bool {
        false
    }
}

/// A part is a row: its id, 16 bytes big-endian, and its words.
impl Parted for Stream {
    fn count(&self) -> usize {
        self.rows.len()
    }

    fn part(&self, name: &[u8]) -> Option<Vec<u8>> {
        let words = self.rows.get(&Id::from_part(name)?)?;
        let mut out = Vec::new();
        words.iter().for_each(|word| put_bytes(&mut out, word));
        Some(out)
    }

    fn names(&self) -> impl Iterator<Item = Vec<u8>> {
        self.rows.keys().map(|id| id.part().to_vec())
    }

    fn restore(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        let id = Id::from_part(name)?;
        let mut cursor = Cursor::new(value);
        let mut words = Vec::new();
        while !cursor.is_done() {
            words.push(cursor.bytes()?.to_vec());
        }
        let fits = id <= self.last && words.len().is_multiple_of(2);
        (fits && self.rows.insert(id, words).is_none()).then_some(())
    }
}

impl Stream {
    /// An empty stream that goes on after `last`, given as a part's name.
    pub(super) fn after(last: &[u8]) -> Option<Self> {
        Some(Self { rows: BTreeMap::new(), last: Id::from_part(last)? })
    }

    /// The highest id ever given, as a part's name.
    pub(super) fn last_part(&self) -> [u8; 16] {
        self.last.part()
    }

    /// The part's name of an id as commands spell it.
    pub(super) fn part_name(text: &[u8]) -> Option<[u8; 16]> {
        Id::read(text, 0).ok().map(Id::part)
    }
}

impl Id {
    fn part(self) -> [u8; 16] {
        (u128::from(self.ms) << 64 | u128::from(self.seq)).to_be_bytes()
    }

    fn from_part(name: &[u8]) -> Option<Self> {
        let (ms, seq) = name.split_first_chunk::<8>()?;
        Some(Self { ms: u64::from_be_bytes(*ms), seq: u64::from_be_bytes(seq.try_into().ok()?) })
    }

    const LEAST: Self = Self { ms: 0, seq: 0 };
    const MOST: Self = Self { ms: u64::MAX, seq: u64::MAX };

    /// Reads `ms-seq`, or `ms` with the given sequence.
    fn read(text: &[u8], seq: u64) -> Result<Self, Fault> {
        let mut parts = text.splitn(2, |byte| *byte == b'-');
        let ms = parts.next().and_then(digits);
        let seq = parts.next().map_or(Some(seq), digits);
        ms.zip(seq).map(|(ms, seq)| Self { ms, seq }).ok_or(BAD_ID)
    }

    fn next(self) -> Option<Self> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => self.ms.checked_add(1).map(|ms| Self { ms, seq: 0 }),
        }
    }

    fn before(self) -> Option<Self> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => self.ms.checked_sub(1).map(|ms| Self { ms, seq: u64::MAX }),
        }
    }

    fn reply(self) -> Reply {
        Reply::Bulk(format!("{}-{}", self.ms, self.seq).into_bytes())
    }
}

fn digits(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The id that XADD asks for.
#[derive(Clone, Copy)]
enum Wish {
    Any,
    Sequence(u64),
    Exact(Id),
}

impl Wish {
    fn read(text: &[u8]) -> Result<Self, Fault> {
        if text == b"*" {
            return Ok(Self::Any);
        }
        if let Some(ms) = text.strip_suffix(b"-*") {
            return digits(ms).map(Self::Sequence).ok_or(BAD_ID);
        }
        Id::read(text, 0).map(Self::Exact)
    }

    fn grant(self, last: Id, now: u64) -> Result<Id, Fault> {
        let id = match self {
            Self::Any if now > last.ms => Some(Id { ms: now, seq: 0 }),
            Self::Any => last.next(),
            Self::Sequence(ms) if ms == last.ms => last.seq.checked_add(1).map(|seq| Id { ms, seq }),
            Self::Sequence(ms) => Some(Id { ms, seq: 0 }),
            Self::Exact(id) => Some(id),
        };
        id.filter(|id| *id > last).ok_or(Fault::Borrowed(
            "ERR The ID specified in XADD is equal or smaller than the target stream top item",
        ))
    }
}

/// What is trimmed.
#[derive(Clone, Copy)]
enum Trim {
    Rows(usize),
    Below(Id),
}

impl Stream {
    fn trim(&mut self, trim: Trim) -> usize {
        let before = self.rows.len();
        match trim {
            Trim::Rows(most) => {
                while self.rows.len() > most {
                    self.rows.pop_first();
                }
            }
            Trim::Below(id) => self.rows = self.rows.split_off(&id),
        }
        before - self.rows.len()
    }
}

/// The words of XADD and XTRIM before the id.
#[derive(Default)]
struct Terms {
    trim: Option<Trim>,
    no_make: bool,
}

impl Terms {
    /// Reads options; answers what follows them.
    fn read<'a, 'b>(words: &'a [&'b [u8]], adding: bool) -> Result<(Self, &'a [&'b [u8]]), Fault> {
        let mut terms = Self::default();
        let mut about = false;
        let mut limit = false;
        let mut rest = words;
        while let [word, after @ ..] = rest {
            match word.to_ascii_uppercase().as_slice() {
                b"NOMKSTREAM" if adding => terms.no_make = true,
                b"LIMIT" if !after.is_empty() => {
                    let [count, after @ ..] = after else { return Err(SYNTAX) };
                    if int_arg(count)? < 0 {
                        return Err("ERR The LIMIT argument must be >= 0.".into());
                    }
                    limit = true;
                    rest = after;
                    continue;
                }
                name @ (b"MAXLEN" | b"MINID") if !after.is_empty() => {
                    if terms.trim.is_some() {
                        return Err(
                            "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
                                .into(),
                        );
                    }
                    let (mark, after) = match after {
                        [b"~", after @ ..] => (true, after),
                        [b"=", after @ ..] => (false, after),
                        _ => (false, after),
                    };
                    let [edge, after @ ..] = after else { return Err(SYNTAX) };
                    about = mark;
                    terms.trim = Some(Self::edge(name, edge)?);
                    rest = after;
                    continue;
                }
                _ if adding => break,
                _ => return Err(SYNTAX),
            }
            rest = after;
        }
        if limit && terms.trim.is_none() {
            return Err(
                "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy".into()
            );
        }
        if limit && !about {
            return Err("ERR syntax error, LIMIT cannot be used without the special ~ option".into());
        }
        Ok((terms, rest))
    }

    fn edge(name: &[u8], edge: &[u8]) -> Result<Trim, Fault> {
        if name == b"MINID" {
            return Id::read(edge, 0).map(Trim::Below);
        }
        let rows = usize::try_from(int_arg(edge)?);
        rows.map(Trim::Rows).map_err(|_| Fault::Borrowed("ERR The MAXLEN argument must be >= 0."))
    }
}

pub(super) fn xadd(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, rest @ ..] = words else { return Err(SYNTAX) };
    let (terms, rest) = Terms::read(rest, true)?;
    let wrong_number = Fault::Borrowed("ERR wrong number of arguments for 'xadd' command");
    let [id, fields @ ..] = rest else { return Err(wrong_number) };
    let wish = Wish::read(id)?;
    if fields.len() < 2 || !fields.len().is_multiple_of(2) {
        return Err(wrong_number);
    }
    if matches!(wish, Wish::Exact(Id::LEAST)) {
        return Err("ERR The ID specified in XADD must be greater than 0-0".into());
    }
    if space.typed::<Stream>(key)?.is_none() && terms.no_make {
        return Ok(Reply::Nil);
    }
    let now = space.now_ms();
    let stream = space.typed_or_new::<Stream>(key)?;
    if stream.last == Id::MOST {
        return Err("ERR The stream has exhausted the last possible ID, unable to add more items".into());
    }
    let id = wish.grant(stream.last, now)?;
    stream.rows.insert(id, fields.iter().map(|word| word.to_vec()).collect());
    stream.last = id;
    if let Some(trim) = terms.trim {
        stream.trim(trim);
    }
    Ok(id.reply())
}

pub(super) fn xtrim(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, rest @ ..] = words else { return Err(SYNTAX) };
    let (terms, _) = Terms::read(rest, false)?;
    let trim = terms.trim.ok_or(SYNTAX)?;
    Ok(int(space.typed::<Stream>(key)?.map_or(0, |stream| stream.trim(trim))))
}

pub(super) fn xlen(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key] = words else { return Err(SYNTAX) };
    Ok(int(space.typed::<Stream>(key)?.map_or(0, |stream| stream.rows.len())))
}

pub(super) fn xdel(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, ids @ ..] = words else { return Err(SYNTAX) };
    let Some(stream) = space.typed::<Stream>(key)? else { return Ok(int(0)) };
    let ids: Vec<Id> = ids.iter().map(|id| Id::read(id, 0)).collect::<Result<_, _>>()?;
    Ok(int(ids.iter().filter(|id| stream.rows.remove(id).is_some()).count()))
}

pub(super) fn xrange(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, first, last, terms @ ..] = words else { return Err(SYNTAX) };
    let first = edge(first, 0, Id::next, "ERR invalid start ID for the interval")?;
    let last = edge(last, u64::MAX, Id::before, "ERR invalid end ID for the interval")?;
    let mut most = usize::MAX;
    let mut terms = terms.iter();
    while let Some(word) = terms.next() {
        let (true, Some(count)) = (word.eq_ignore_ascii_case(b"COUNT"), terms.next()) else {
            return Err(SYNTAX);
        };
        most = usize::try_from(int_arg(count)?).unwrap_or_default();
    }
    let Some(stream) = space.typed::<Stream>(key)? else { return Ok(Reply::List(Vec::new())) };
    if most == 0 {
        return Ok(Reply::Nil);
    }
    if first > last {
        return Ok(Reply::List(Vec::new()));
    }
    let row = |(id, fields): (&Id, &Vec<Vec<u8>>)| {
        let fields = fields.iter().cloned().map(Reply::Bulk).collect();
        Reply::List(vec![id.reply(), Reply::List(fields)])
    };
    Ok(Reply::List(stream.rows.range(first..=last).take(most).map(row).collect()))
}

/// One end of a range; `inward` moves an open end past its id.
fn edge(text: &[u8], seq: u64, inward: fn(Id) -> Option<Id>, fault: &'static str) -> Result<Id, Fault> {
    match text {
        b"-" => Ok(Id::LEAST),
        b"+" => Ok(Id::MOST),
        [b'(', text @ ..] => inward(Id::read(text, seq)?).ok_or(Fault::Borrowed(fault)),
        text => Id::read(text, seq),
    }
}

const BAD_ID: Fault = Fault::Borrowed("ERR Invalid stream ID specified as stream command argument");

#[cfg(test)]
mod tests {
    use super::*;

    fn call(space: &mut Keyspace, line: &str) -> Answer {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        space.call(super::super::verb(words[0]).unwrap(), &words)
    }

    #[test]
    fn star_follows_the_clock() {
        let mut space = Keyspace::default();
        space.advance(5_000_000);
        let ids: Vec<_> = (0..2).map(|_| call(&mut space, "XADD x * a 1").unwrap()).collect();
        space.advance(4_000_000); // a clock that goes back never repeats an id
        let after = call(&mut space, "XADD x * a 1").unwrap();

        assert_eq!(ids, ["5000-0", "5000-1"].map(|id| Reply::Bulk(id.into())));
        assert_eq!(after, Reply::Bulk("5000-2".into()));
    }

    #[test]
    fn emptied_stream_remembers_its_end() {
        let mut space = Keyspace::default();
        call(&mut space, "XADD x 7-1 a 1").unwrap();
        call(&mut space, "XTRIM x MAXLEN ~ 0").unwrap();

        assert_eq!(call(&mut space, "TYPE x"), Ok(Reply::Status("stream".into())));
        assert!(call(&mut space, "XADD x 7-1 a 1").is_err());
    }
}
