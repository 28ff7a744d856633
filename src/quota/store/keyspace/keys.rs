//! Commands over keys of any type: deletion, types, times to live; and the glob of SCAN and KEYS.

use super::{Answer, Entry, Fault, Keyspace, Reply, SYNTAX, Value, flag, int, number::int_arg};

pub(super) fn del(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let gone = words.iter().skip(1).filter(|key| space.has(key) && space.remove(key)).count();
    Ok(int(gone))
}

pub(super) fn exists(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    Ok(int(words.iter().skip(1).filter(|key| space.has(key)).count()))
}

pub(super) fn kind(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key] = words else { return Err(SYNTAX) };
    let name = match space.entry(key).map(|entry| &entry.value) {
        None => "none",
        Some(Value::Text(_)) => "string",
        Some(Value::Hash(_)) => "hash",
        Some(Value::Sorted(_)) => "zset",
        Some(Value::Stream(_)) => "stream",
    };
    Ok(Reply::Status(name.to_owned()))
}

pub(super) fn ping(_: &mut Keyspace, words: &[&[u8]]) -> Answer {
    match words {
        [_] => Ok(Reply::Status("PONG".to_owned())),
        [_, word] => Ok(Reply::Bulk(word.to_vec())),
        _ => Err("ERR wrong number of arguments for 'ping' command".into()),
    }
}

pub(super) fn time(space: &mut Keyspace, _: &[&[u8]]) -> Answer {
    let parts = [space.now / 1_000_000, space.now % 1_000_000];
    Ok(Reply::List(parts.map(|part| Reply::Bulk(part.to_string().into_bytes())).into()))
}

pub(super) fn expire(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    set_expiry(space, words, Scale { unit: 1000, absolute: false, name: "expire" })
}

pub(super) fn pexpire(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    set_expiry(space, words, Scale { unit: 1, absolute: false, name: "pexpire" })
}

pub(super) fn expireat(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    set_expiry(space, words, Scale { unit: 1000, absolute: true, name: "expireat" })
}

pub(super) fn pexpireat(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    set_expiry(space, words, Scale { unit: 1, absolute: true, name: "pexpireat" })
}

/// How one of the four commands counts time.
struct Scale {
    /// Milliseconds.
    unit: i64,
    absolute: bool,
    name: &'static str,
}

/// When a new deadline is taken.
#[derive(Default)]
struct Rule {
    only_new: bool,
    only_old: bool,
    only_later: bool,
    only_sooner: bool,
}

fn set_expiry(space: &mut Keyspace, words: &[&[u8]], scale: Scale) -> Answer {
    let [_, key, number, rule @ ..] = words else { return Err(SYNTAX) };
    let rule = Rule::read(rule)?;
    let base = if scale.absolute { 0 } else { i64::try_from(space.now_ms()).unwrap_or(i64::MAX) };
    let when = int_arg(number)?
        .checked_mul(scale.unit)
        .and_then(|when| when.checked_add(base))
        .ok_or_else(|| Fault::Owned(format!("ERR invalid expire time in '{}' command", scale.name)))?;
    let when = u64::try_from(when).unwrap_or_default();
    let Some(entry) = space.entry(key) else { return Ok(flag(false)) };
    if !rule.takes(when, entry.deadline) {
        return Ok(flag(false));
    }
    space.set_deadline(key, Some(when));
    Ok(flag(true))
}

impl Rule {
    fn read(words: &[&[u8]]) -> Result<Self, Fault> {
        let mut rule = Self::default();
        for word in words {
            match word.to_ascii_uppercase().as_slice() {
                b"NX" => rule.only_new = true,
                b"XX" => rule.only_old = true,
                b"GT" => rule.only_later = true,
                b"LT" => rule.only_sooner = true,
                _ => return Err(format!("ERR Unsupported option {}", String::from_utf8_lossy(word)).into()),
            }
        }
        if rule.only_new && (rule.only_old || rule.only_later || rule.only_sooner) {
            return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into());
        }
        if rule.only_later && rule.only_sooner {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(rule)
    }

    /// No deadline counts as one that never comes.
    fn takes(&self, new: u64, old: Option<u64>) -> bool {
        !(self.only_new && old.is_some()
            || self.only_old && old.is_none()
            || self.only_later && old.is_none_or(|old| new <= old)
            || self.only_sooner && old.is_some_and(|old| new >= old))
    }
}

pub(super) fn persist(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let [_, key] = words else { return Err(SYNTAX) };
    let dated = space.entry(key).is_some_and(|entry| entry.deadline.is_some());
    space.set_deadline(key, None);
    Ok(flag(dated))
}

pub(super) fn ttl(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let now = space.now_ms();
    left(space, words, |deadline| (deadline.saturating_sub(now) + 500) / 1000)
}

pub(super) fn pttl(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    let now = space.now_ms();
    left(space, words, |deadline| deadline.saturating_sub(now))
}

pub(super) fn pexpiretime(space: &mut Keyspace, words: &[&[u8]]) -> Answer {
    left(space, words, |deadline| deadline)
}

fn left(space: &mut Keyspace, words: &[&[u8]], show: impl Fn(u64) -> u64) -> Answer {
    let [_, key] = words else { return Err(SYNTAX) };
    Ok(Reply::Int(match space.entry(key) {
        None => -2,
        Some(Entry { deadline: None, .. }) => -1,
        Some(Entry { deadline: Some(deadline), .. }) => i64::try_from(show(*deadline)).unwrap_or(i64::MAX),
    }))
}

/// Whether `name` matches a glob of `*`, `?`, `[a-z]`, `[^a]` and `\`; at most name × pattern steps.
pub(in super::super) fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut pattern, mut name) = (pattern, name);
    let mut retry: Option<(&[u8], &[u8])> = None; // pattern after the last star, name where it stands
    loop {
        if let [b'*', rest @ ..] = pattern {
            retry = Some((rest, name));
            pattern = rest;
            continue;
        }
        if pattern.is_empty() && name.is_empty() {
            return true;
        }
        if let (Some(after), [_, rest @ ..]) = (one(pattern, name.first()), name) {
            (pattern, name) = (after, rest);
            continue;
        }
        match retry {
            Some((after, [_, rest @ ..])) => {
                retry = Some((after, rest));
                (pattern, name) = (after, rest);
            }
            _ => return false,
        }
    }
}

/// Matches one byte; answers the rest of the pattern.
fn one<'a>(pattern: &'a [u8], byte: Option<&u8>) -> Option<&'a [u8]> {
    let byte = *byte?;
    match pattern {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'[', set @ ..] => class(set, byte),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal == byte).then_some(rest),
    }
}

fn class(set: &[u8], byte: u8) -> Option<&[u8]> {
    let (inverted, mut set) = match set {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, set),
    };
    let mut hit = false;
    loop {
        match set {
            [] => break,
            [b']', rest @ ..] => {
                set = rest;
                break;
            }
            [b'\\', literal, rest @ ..] => {
                hit |= *literal == byte;
                set = rest;
            }
            [from, b'-', to, rest @ ..] => {
                hit |= (*from.min(to)..=*from.max(to)).contains(&byte);
                set = rest;
            }
            [literal, rest @ ..] => {
                hit |= *literal == byte;
                set = rest;
            }
        }
    }
    (hit != inverted).then_some(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_redis() {
        for (pattern, name, matches) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("*a*b*", "xxaxxbxx", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("quota:{a}:*", "quota:{a}:s:1", true),
            ("", "a", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), name.as_bytes()), matches, "{pattern} {name}");
        }
    }
}
