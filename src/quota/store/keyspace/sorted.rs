//! Sorted sets: members by score, then by bytes.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
};

use super::{
    Answer, Fault, Keyspace, Kind, Reply, SYNTAX, Value,
    codec::Parted,
    int,
    number::{double, int_arg, parse_score},
};

/// Members with their scores, findable by either.
#[derive(Default)]
pub(super) struct Sorted {
    scores: HashMap<Arc<[u8]>, f64>,
    ranks: BTreeSet<Rank>,
}

#[derive(Clone)]
struct Rank {
    score: f64,
    member: Arc<[u8]>,
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = self.score.partial_cmp(&other.score).unwrap_or(Ordering::Equal); // a score is never NaN
        by_score.then_with(|| self.member.cmp(&other.member))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rank {}

impl Sorted {
    fn put(&mut self, member: &[u8], score: f64) {
        let name = match self.scores.get_key_value(member) {
            Some((name, before)) => {
                let name = Arc::clone(name);
                self.ranks.remove(&Rank { score: *before, member: Arc::clone(&name) });
                name
            }
            None => member.into(),
        };
        self.scores.insert(Arc::clone(&name), score);
        self.ranks.insert(Rank { score, member: name });
    }

    fn take(&mut self, member: &[u8]) -> bool {
        let Some((member, score)) = self.scores.remove_entry(member) else { return false };
        self.ranks.remove(&Rank { score, member })
    }

    fn within(&self, span: Span) -> impl Iterator<Item = &Rank> {
        let first = Rank { score: span.min, member: Arc::from(&[][..]) };
        self.ranks
            .range((Bound::Included(first), Bound::Unbounded))
            .skip_while(move |rank| !span.above(rank.score))
            .take_while(move |rank| span.below(rank.score))
    }
}

impl Kind for Sorted {
    fn of(value: &mut Value) -> Option<&mut Self> {
        match value {
            Value::Sorted(sorted) => Some(sorted),
            Value::Text(_) | Value::Hash(_) | Value::Stream(_) => None,
        }
    }

    fn wrap(self) -> Value {
        Value::Sorted(self)
    }

    fn is_spent(&self) -> bool {
        self.scores.is_empty()
    }
}

/// A part is a member with the bits of its score.
impl Parted for Sorted {
    fn count(&self) -> usize {
        self.scores.len()
    }

    fn part(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.scores.get(name).map(|score| score.to_bits().to_be_bytes().to_vec())
    }

    fn names(&self) -> impl Iterator<Item = Vec<u8>> {
        self.ranks.iter().map(|rank| rank.member.to_vec())
    }

    fn restore(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        let score = f64::from_bits(u64::from_be_bytes(value.try_into().ok()?));
        if score.is_nan() || self.scores.contains_key(name) {
            return None;
        }
        self.put(name, score);
        Some(())
    }
}

/// A range of scores.
#[derive(Clone, Copy)]
struct Span {
    min: f64,
    max: f64,
    past_min: bool,
    before_max: bool,
}

impl Span {
    fn read(min: &[u8], max: &[u8]) -> Result<Self, Fault> {
        let (past_min, min) = Self::edge(min)?;
        let (before_max, max) = Self::edge(max)?;
        Ok(Self { min, max, past_min, before_max })
    }

    fn edge(text: &[u8]) -> Result<(bool, f64), Fault> {
        let (open, number) = match text {
            [b'(', rest @ ..] => (true, rest),
            _ => (false, text),
        };
        let score = if number.is_empty() { Some(0.0) } else { parse_score(number) };
        score.map(|score| (open, score)).ok_or(Fault::Borrowed("ERR min or max is not a float"))
    }

    fn above(&self, score: f64) -> bool {
        if self.past_min { score > self.min } else { score >= self.min }
    }

    fn below(&self, score: f64) -> bool {
        if self.before_max { score < self.max } else { score <= self.max }
    }
}

/// The words between ZADD's key and its first score.
#[derive(Default)]
struct Terms {
    only_new: bool,
    only_old: bool,
    greater: bool,
    less: bool,
    changed: bool,
}

impl Terms {
    fn read<'a, 'b>(mut words: &'a [&'b [u8]]) -> Result<(Self, &'a [&'b [u8]]), Fault> {
        let mut terms = Self::default();
        while let [word, rest @ ..] = words {
            match word.to_ascii_uppercase().as_slice() {
                b"NX" => terms.only_new = true,
                b"XX" => terms.only_old = true,
                b"GT" => terms.greater = true,
                b"LT" => terms.less = true,
                b"CH" => terms.changed = true,
                _ => break,
            }
            words = rest;
        }
        Ok((terms, words))
    }

    fn check(&self) -> Result<(), Fault> {
        if self.only_new && self.only_old {
            return Err("ERR XX and NX options at the same time are not compatible".into());
        }
        if (self.greater && self.less) || (self.only_new && (self.greater || self.less)) {
            return Err("ERR GT, LT, and/or NX options at the same time are not compatible".into());
        }
        Ok(())
    }

    fn takes(&self, new: f64, old: Option<f64>) -> bool {
        match old {
            None => !self.only_old,
            Some(old) => {
                !(self.only_new || self.greater && new <= old || self.less && new >= old) && new != old
            }
        }
    }
}

pub(super) fn zadd(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, rest @ ..] = words else { return Err(SYNTAX) };
    let (terms, pairs) = Terms::read(rest)?;
    let (pairs @ [_, ..], []) = pairs.as_chunks::<2>() else { return Err(SYNTAX) };
    terms.check()?;
    let read = |[score, member]: &[&'_ [u8]; 2]| Some((parse_score(score)?, member.to_vec()));
    let pairs: Option<Vec<_>> = pairs.iter().map(read).collect();
    let pairs = pairs.ok_or(Fault::Borrowed("ERR value is not a valid float"))?;
    if space.typed::<Sorted>(key)?.is_none() && terms.only_old {
        return Ok(int(0));
    }
    let sorted = space.typed_or_new::<Sorted>(key)?;
    let (mut added, mut moved) = (0, 0);
    for (score, member) in pairs {
        let old = sorted.scores.get(&*member).copied();
        if terms.takes(score, old) {
            sorted.put(&member, score);
            added += usize::from(old.is_none());
            moved += usize::from(old.is_some());
        }
    }
    Ok(int(if terms.changed { added + moved } else { added }))
}

pub(super) fn zrem(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, members @ ..] = words else { return Err(SYNTAX) };
    let Some(sorted) = space.typed::<Sorted>(key)? else { return Ok(int(0)) };
    let gone = members.iter().filter(|member| sorted.take(member)).count();
    space.prune::<Sorted>(key);
    Ok(int(gone))
}

pub(super) fn zscore(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, member] = words else { return Err(SYNTAX) };
    let score = space.typed::<Sorted>(key)?.and_then(|sorted| sorted.scores.get(*member));
    Ok(score.map_or(Reply::Nil, |score| Reply::Bulk(double(*score))))
}

pub(super) fn zcard(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key] = words else { return Err(SYNTAX) };
    Ok(int(space.typed::<Sorted>(key)?.map_or(0, |sorted| sorted.scores.len())))
}

pub(super) fn zcount(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, min, max] = words else { return Err(SYNTAX) };
    let span = Span::read(min, max)?;
    Ok(int(space.typed::<Sorted>(key)?.map_or(0, |sorted| sorted.within(span).count())))
}

pub(super) fn zrange(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, first, last, terms @ ..] = words else { return Err(SYNTAX) };
    let (mut scores, mut reverse) = (false, false);
    for word in terms {
        match word.to_ascii_uppercase().as_slice() {
            b"WITHSCORES" => scores = true,
            b"REV" => reverse = true,
            _ => return Err(SYNTAX),
        }
    }
    let (first, last) = (int_arg(first)?, int_arg(last)?);
    let Some(sorted) = space.typed::<Sorted>(key)? else { return Ok(Reply::List(Vec::new())) };
    let count = i64::try_from(sorted.scores.len()).unwrap_or(i64::MAX);
    let from_end = |at: i64| if at < 0 { at.saturating_add(count) } else { at };
    let (first, last) = (from_end(first).max(0), from_end(last).min(count - 1));
    let skip = usize::try_from(first).unwrap_or(usize::MAX);
    let take = usize::try_from(last.saturating_sub(first).saturating_add(1)).unwrap_or_default();
    Ok(if reverse {
        list(sorted.ranks.iter().rev().skip(skip).take(take), scores)
    } else {
        list(sorted.ranks.iter().skip(skip).take(take), scores)
    })
}

pub(super) fn zrangebyscore(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, min, max, terms @ ..] = words else { return Err(SYNTAX) };
    let (mut scores, mut skip, mut take) = (false, 0, -1);
    let mut terms = terms.iter();
    while let Some(word) = terms.next() {
        match word.to_ascii_uppercase().as_slice() {
            b"WITHSCORES" => scores = true,
            b"LIMIT" => {
                let (Some(from), Some(count)) = (terms.next(), terms.next()) else { return Err(SYNTAX) };
                (skip, take) = (int_arg(from)?, int_arg(count)?);
            }
            _ => return Err(SYNTAX),
        }
    }
    let span = Span::read(min, max)?;
    let Some(sorted) = space.typed::<Sorted>(key)? else { return Ok(Reply::List(Vec::new())) };
    let Ok(skip) = usize::try_from(skip) else { return Ok(Reply::List(Vec::new())) };
    let take = usize::try_from(take).unwrap_or(usize::MAX); // a negative count means all
    Ok(list(sorted.within(span).skip(skip).take(take), scores))
}

pub(super) fn zremrangebyscore(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, min, max] = words else { return Err(SYNTAX) };
    let span = Span::read(min, max)?;
    let Some(sorted) = space.typed::<Sorted>(key)? else { return Ok(int(0)) };
    let members: Vec<_> = sorted.within(span).map(|rank| Arc::clone(&rank.member)).collect();
    let gone = members.iter().filter(|member| sorted.take(member)).count();
    space.prune::<Sorted>(key);
    Ok(int(gone))
}

fn list<'a>(ranks: impl Iterator<Item = &'a Rank>, scores: bool) -> Reply {
    let mut out = Vec::new();
    for rank in ranks {
        out.push(Reply::Bulk(rank.member.to_vec()));
        if scores {
            out.push(Reply::Bulk(double(rank.score)));
        }
    }
    Reply::List(out)
}
