//! Hashes. A small one keeps the order in which its fields came, as Redis' listpack does; a large one any order.

use std::collections::HashMap;

use super::{
    Answer, Fault, Keyspace, Kind, OVERFLOW, Reply, SYNTAX, Value,
    codec::Parted,
    flag, int,
    number::{int_arg, parse_int, put_int},
};

/// Fields and their values.
#[derive(Default)]
pub(super) struct Hash {
    fields: Vec<(Box<[u8]>, Vec<u8>)>,
    /// Where each field stands; kept only above [`SMALL`] fields, where a search would be slow.
    places: HashMap<Box<[u8]>, usize>,
}

/// Most fields of a hash that is searched from its start.
const SMALL: usize = 32;

impl Hash {
    fn place(&self, field: &[u8]) -> Option<usize> {
        if self.places.is_empty() {
            return self.fields.iter().position(|(name, _)| **name == *field);
        }
        self.places.get(field).copied()
    }

    fn value(&self, field: &[u8]) -> Option<&Vec<u8>> {
        self.fields.get(self.place(field)?).map(|(_, value)| value)
    }

    fn value_mut(&mut self, field: &[u8]) -> Option<&mut Vec<u8>> {
        let place = self.place(field)?;
        self.fields.get_mut(place).map(|(_, value)| value)
    }

    /// Sets a field; whether it is new.
    fn put(&mut self, field: &[u8], value: &[u8]) -> bool {
        if let Some(old) = self.value_mut(field) {
            old.clear();
            old.extend_from_slice(value);
            return false;
        }
        self.fields.push((field.into(), value.to_vec()));
        if self.places.is_empty() {
            if self.fields.len() > SMALL {
                self.places =
                    self.fields.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect();
            }
        } else {
            self.places.insert(field.into(), self.fields.len() - 1);
        }
        true
    }

    fn take(&mut self, field: &[u8]) -> bool {
        let Some(place) = self.place(field) else { return false };
        if self.places.is_empty() {
            self.fields.remove(place);
            return true;
        }
        self.fields.swap_remove(place);
        self.places.remove(field);
        if let Some((moved, _)) = self.fields.get(place) {
            self.places.insert(moved.clone(), place);
        }
        true
    }
}

impl Kind for Hash {
    fn of(value: &mut Value) -> Option<&mut Self> {
        match value {
            Value::Hash(hash) => Some(hash),
            Value::Text(_) | Value::Sorted(_) | Value::Stream(_) => None,
        }
    }

    fn wrap(self) -> Value {
        Value::Hash(self)
    }

    fn is_spent(&self) -> bool {
        self.fields.is_empty()
    }
}

/// A part is a field.
impl Parted for Hash {
    fn count(&self) -> usize {
        self.fields.len()
    }

    fn part(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.value(name).cloned()
    }

    fn names(&self) -> impl Iterator<Item = Vec<u8>> {
        self.fields.iter().map(|(name, _)| name.to_vec())
    }

    fn restore(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        self.put(name, value).then_some(())
    }
}

fn bulk(value: Option<&Vec<u8>>) -> Reply {
    value.map_or(Reply::Nil, |value| Reply::Bulk(value.clone()))
}

pub(super) fn hget(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, field] = words else { return Err(SYNTAX) };
    Ok(space.typed::<Hash>(key)?.map_or(Reply::Nil, |hash| bulk(hash.value(field))))
}

pub(super) fn hmget(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, fields @ ..] = words else { return Err(SYNTAX) };
    let hash = space.typed::<Hash>(key)?;
    let value = |field: &&[u8]| bulk(hash.as_ref().and_then(|hash| hash.value(field)));
    Ok(Reply::List(fields.iter().map(value).collect()))
}

pub(super) fn hset(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, pairs @ ..] = words else { return Err(SYNTAX) };
    let (pairs, []) = pairs.as_chunks::<2>() else {
        return Err("ERR wrong number of arguments for 'hset' command".into());
    };
    let hash = space.typed_or_new::<Hash>(key)?;
    let fresh = pairs.iter().filter(|[field, value]| hash.put(field, value)).count();
    Ok(int(fresh))
}

pub(super) fn hsetnx(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, field, value] = words else { return Err(SYNTAX) };
    let hash = space.typed_or_new::<Hash>(key)?;
    Ok(flag(hash.place(field).is_none() && hash.put(field, value)))
}

pub(super) fn hincrby(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, field, amount] = words else { return Err(SYNTAX) };
    let amount = int_arg(amount)?;
    if let Some(old) = space.typed::<Hash>(key)?.and_then(|hash| hash.value_mut(field)) {
        let before = parse_int(old).ok_or(Fault::Borrowed("ERR hash value is not an integer"))?;
        let sum = before.checked_add(amount).ok_or(OVERFLOW)?;
        put_int(old, sum);
        return Ok(Reply::Int(sum));
    }
    let mut text = Vec::new();
    put_int(&mut text, amount);
    space.typed_or_new::<Hash>(key)?.put(field, &text);
    Ok(Reply::Int(amount))
}

pub(super) fn hdel(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, fields @ ..] = words else { return Err(SYNTAX) };
    let Some(hash) = space.typed::<Hash>(key)? else { return Ok(int(0)) };
    let gone = fields.iter().filter(|field| hash.take(field)).count();
    space.prune::<Hash>(key);
    Ok(int(gone))
}

pub(super) fn hexists(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key, field] = words else { return Err(SYNTAX) };
    Ok(flag(space.typed::<Hash>(key)?.is_some_and(|hash| hash.place(field).is_some())))
}

pub(super) fn hgetall(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key] = words else { return Err(SYNTAX) };
    let Some(hash) = space.typed::<Hash>(key)? else { return Ok(Reply::List(Vec::new())) };
    let pairs = hash.fields.iter().flat_map(|(name, value)| [name.to_vec(), value.clone()]);
    Ok(Reply::List(pairs.map(Reply::Bulk).collect()))
}

pub(super) fn hlen(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key] = words else { return Err(SYNTAX) };
    Ok(int(space.typed::<Hash>(key)?.map_or(0, |hash| hash.fields.len())))
}

pub(super) fn hkeys(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key] = words else { return Err(SYNTAX) };
    let Some(hash) = space.typed::<Hash>(key)? else { return Ok(Reply::List(Vec::new())) };
    Ok(Reply::List(hash.fields.iter().map(|(name, _)| Reply::Bulk(name.to_vec())).collect()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn large_hash_equals_a_map() {
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut hash, mut model) = (Hash::default(), BTreeMap::new());
            for _ in 0..2_000 {
                let field = random.u8(0..120).to_string().into_bytes();
                if random.u8(0..5) < 3 {
                    let value = random.u32(..).to_string().into_bytes();
                    assert_eq!(hash.put(&field, &value), model.insert(field, value).is_none(), "seed {seed}");
                } else {
                    assert_eq!(hash.take(&field), model.remove(&field).is_some(), "seed {seed}");
                }
            }
            let found: BTreeMap<_, _> =
                hash.fields.iter().map(|(name, value)| (name.to_vec(), value.clone())).collect();
            assert_eq!(found, model, "seed {seed}");
            assert!(model.iter().all(|(field, value)| hash.value(field) == Some(value)), "seed {seed}");
        }
    }
}
