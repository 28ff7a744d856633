//! The table of commands: name to function, number of words, keys, and what it may change; never their meaning.

use super::{Answer, Keyspace, hash, journal::Change, keys, sorted, stream, strings};

/// One command.
pub(in super::super) struct Verb {
    /// Lower-case name, as error texts spell it.
    pub(in super::super) name: &'static str,
    /// Fewest words, the name included.
    pub(in super::super) least: usize,
    /// Most words, the name included.
    pub(in super::super) most: usize,
    /// Which words are keys.
    pub(in super::super) reach: Reach,
    /// What it may have changed, for a journal.
    pub(super) change: Change,
    pub(super) run: fn(&mut Keyspace, &[&[u8]]) -> Answer,
}

impl Verb {
    /// Whether it may change anything.
    pub(in super::super) fn writes(&self) -> bool {
        self.change != Change::Nothing
    }
}

/// Which keys a command touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Reach {
    /// None.
    Nothing,
    /// The first word after the name.
    First,
    /// Every word after the name.
    Each,
}

/// Finds a command by its name in any case; nothing for one that this store does not know.
pub(in super::super) fn verb(name: &[u8]) -> Option<&'static Verb> {
    let mut upper = [0_u8; 16];
    let upper = upper.get_mut(..name.len())?;
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    find(upper)
}

const ANY: usize = usize::MAX;

/// Builds one row: name, words, what it changes, keys, function.
macro_rules! row {
    ($name:literal, $least:expr, $most:expr, $change:ident, $reach:ident, $run:path) => {
        Some(&Verb {
            name: $name,
            least: $least,
            most: $most,
            change: Change::$change,
            reach: Reach::$reach,
            run: $run,
        })
    };
}

#[rustfmt::skip]
fn find(name: &[u8]) -> Option<&'static Verb> {
    match name {
        b"GET" => row!("get", 2, 2, Nothing, First, strings::get),
        b"SET" => row!("set", 3, ANY, Whole, First, strings::set),
        b"DECRBY" => row!("decrby", 3, 3, Key, First, strings::decrby),
        b"INCRBY" => row!("incrby", 3, 3, Key, First, strings::incrby),
        b"HGET" => row!("hget", 3, 3, Nothing, First, hash::hget),
        b"HMGET" => row!("hmget", 3, ANY, Nothing, First, hash::hmget),
        b"HSET" => row!("hset", 4, ANY, Pairs, First, hash::hset),
        b"HSETNX" => row!("hsetnx", 4, 4, Field, First, hash::hsetnx),
        b"HINCRBY" => row!("hincrby", 4, 4, Field, First, hash::hincrby),
        b"HDEL" => row!("hdel", 3, ANY, Rest, First, hash::hdel),
        b"HEXISTS" => row!("hexists", 3, 3, Nothing, First, hash::hexists),
        b"HGETALL" => row!("hgetall", 2, 2, Nothing, First, hash::hgetall),
        b"HLEN" => row!("hlen", 2, 2, Nothing, First, hash::hlen),
        b"HKEYS" => row!("hkeys", 2, 2, Nothing, First, hash::hkeys),
        b"ZADD" => row!("zadd", 4, ANY, Rest, First, sorted::zadd),
        b"ZREM" => row!("zrem", 3, ANY, Rest, First, sorted::zrem),
        b"ZSCORE" => row!("zscore", 3, 3, Nothing, First, sorted::zscore),
        b"ZCARD" => row!("zcard", 2, 2, Nothing, First, sorted::zcard),
        b"ZCOUNT" => row!("zcount", 4, 4, Nothing, First, sorted::zcount),
        b"ZRANGE" => row!("zrange", 4, ANY, Nothing, First, sorted::zrange),
        b"ZRANGEBYSCORE" => row!("zrangebyscore", 4, ANY, Nothing, First, sorted::zrangebyscore),
        b"ZREMRANGEBYSCORE" => row!("zremrangebyscore", 4, 4, Whole, First, sorted::zremrangebyscore),
        b"XADD" => row!("xadd", 5, ANY, Row, First, stream::xadd),
        b"XLEN" => row!("xlen", 2, 2, Nothing, First, stream::xlen),
        b"XRANGE" => row!("xrange", 4, ANY, Nothing, First, stream::xrange),
        b"XTRIM" => row!("xtrim", 4, ANY, Front, First, stream::xtrim),
        b"XDEL" => row!("xdel", 3, ANY, Rows, First, stream::xdel),
        b"DEL" => row!("del", 2, ANY, Key, Each, keys::del),
        b"UNLINK" => row!("unlink", 2, ANY, Key, Each, keys::del),
        b"EXISTS" => row!("exists", 2, ANY, Nothing, Each, keys::exists),
        b"TYPE" => row!("type", 2, 2, Nothing, First, keys::kind),
        b"EXPIRE" => row!("expire", 3, ANY, Key, First, keys::expire),
        b"PEXPIRE" => row!("pexpire", 3, ANY, Key, First, keys::pexpire),
        b"EXPIREAT" => row!("expireat", 3, ANY, Key, First, keys::expireat),
        b"PEXPIREAT" => row!("pexpireat", 3, ANY, Key, First, keys::pexpireat),
        b"PERSIST" => row!("persist", 2, 2, Key, First, keys::persist),
        b"TTL" => row!("ttl", 2, 2, Nothing, First, keys::ttl),
        b"PTTL" => row!("pttl", 2, 2, Nothing, First, keys::pttl),
        b"PEXPIRETIME" => row!("pexpiretime", 2, 2, Nothing, First, keys::pexpiretime),
        b"PING" => row!("ping", 1, ANY, Nothing, Nothing, keys::ping),
        b"TIME" => row!("time", 1, 1, Nothing, Nothing, keys::time),
        _ => None,
    }
}
