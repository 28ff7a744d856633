//! Plain values: GET, SET, INCRBY, DECRBY; the hot path of `admit`.

use super::{
    Answer, Entry, Fault, Keyspace, Kind, OVERFLOW, Reply, SYNTAX, Value,
    number::{int_arg, put_int},
    ok,
};

impl Kind for Vec<u8> {
    fn of(value: &mut Value) -> Option<&mut Self> {
        match value {
            Value::Text(text) => Some(text),
            Value::Hash(_) | Value::Sorted(_) | Value::Stream(_) => None,
        }
    }

    fn wrap(self) -> Value {
        Value::Text(self)
    }

    fn is_spent(&self) -> bool {
        false
    }
}

pub(super) fn get(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key] = words else { return Err(SYNTAX) };
    Ok(space.typed::<Vec<u8>>(key)?.map_or(Reply::Nil, |text| Reply::Bulk(text.clone())))
}

pub(super) fn incrby(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, amount] = words else { return Err(SYNTAX) };
    add(space, key, int_arg(amount)?)
}

pub(super) fn decrby(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, amount] = words else { return Err(SYNTAX) };
    let amount = int_arg(amount)?;
    add(space, key, amount.checked_neg().ok_or(Fault::Borrowed("ERR decrement would overflow"))?)
}

fn add(space: &mut Keyspace, key: &[u8], amount: i64) -> Answer {
    if let Some(text) = space.typed::<Vec<u8>>(key)? {
        let sum = int_arg(text)?.checked_add(amount).ok_or(OVERFLOW)?;
        put_int(text, sum);
        return Ok(Reply::Int(sum));
    }
    put_int(space.typed_or_new(key)?, amount);
    Ok(Reply::Int(amount))
}

/// The words after SET's value.
#[derive(Default)]
struct Terms<'a> {
    only_new: bool,
    only_old: bool,
    keep: bool,
    read: bool,
    /// Unit in milliseconds, whether absolute, the number as sent.
    expiry: Option<(i64, bool, &'a [u8])>,
}

pub(super) fn set(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, value, terms @ ..] = words else { return Err(SYNTAX) };
    let terms = Terms::read(terms)?;
    let deadline = terms.expiry.map(|expiry| deadline(space, expiry)).transpose()?;
    let before = if terms.read { get(space, &[b"GET", key])? } else { Reply::Nil };
    let there = space.has(key);
    if (terms.only_new && there) || (terms.only_old && !there) {
        return Ok(before);
    }
    write(space, key, value);
    if !terms.keep {
        space.set_deadline(key, deadline);
    }
    Ok(if terms.read { before } else { ok() })
}

fn write(space: &mut Keyspace, key: &[u8], value: &[u8]) {
    let value = Value::Text(value.to_vec());
    match space.entries.get_mut(key) {
        Some(entry) => entry.value = value,
        None => {
            space.entries.insert(key.into(), Entry { value, deadline: None });
        }
    }
}

fn deadline(space: &Keyspace, (unit, absolute, text): (i64, bool, &[u8])) -> Result<u64, Fault> {
    let number = int_arg(text)?;
    let base = if absolute { 0 } else { i64::try_from(space.now_ms()).unwrap_or(i64::MAX) };
    let when = (number > 0).then(|| number.checked_mul(unit)?.checked_add(base)).flatten();
    when.and_then(|when| u64::try_from(when).ok())
        .ok_or(Fault::Borrowed("ERR invalid expire time in 'set' command"))
}

impl<'a> Terms<'a> {
    fn read(words: &[&'a [u8]]) -> Result<Self, Fault> {
        let mut terms = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.to_ascii_uppercase().as_slice() {
                b"NX" => terms.only_new = true,
                b"XX" => terms.only_old = true,
                b"KEEPTTL" => terms.keep = true,
                b"GET" => terms.read = true,
                unit => {
                    let (unit, absolute) = match unit {
                        b"EX" => (1000, false),
                        b"PX" => (1, false),
                        b"EXAT" => (1000, true),
                        b"PXAT" => (1, true),
                        _ => return Err(SYNTAX),
                    };
                    let number = words.next().ok_or(SYNTAX)?;
                    if terms.expiry.replace((unit, absolute, number)).is_some() {
                        return Err(SYNTAX);
                    }
                }
            }
            if (terms.only_new && terms.only_old) || (terms.keep && terms.expiry.is_some()) {
                return Err(SYNTAX);
            }
        }
        Ok(terms)
    }
}
