//! Whether our user may run every command that is needed. Asked before the first stream: a script that is denied half way
//! leaves behind what it has done so far, and the books torn.

use std::sync::LazyLock;

use super::Quota;
use super::store::slot::slot;
use super::store::{Reply, Script, Shard, StoreError};

/// What scripts and plain commands run, as `deploy/voxgate.acl` allows it. What only some arrangements need (`ASKING`,
/// `CLUSTER`, `WAIT`), what must have run to get here (`ROLE`, `EVALSHA`, `SCRIPT LOAD`), and what only tells how the
/// server is (`INFO`, `SLOWLOG`) is not asked for.
pub const NEEDED: [&str; 26] = [
    "scan",
    "time",
    "get",
    "set",
    "del",
    "decrby",
    "hget",
    "hmget",
    "hgetall",
    "hset",
    "hdel",
    "hincrby",
    "pexpire",
    "pexpireat",
    "pttl",
    "zadd",
    "zcard",
    "zcount",
    "zrange",
    "zrangebyscore",
    "zrem",
    "zremrangebyscore",
    "zscore",
    "xadd",
    "xlen",
    "xrange",
];

/// Gives those of the commands in ARGV that may not run on KEYS[1]; runs none of them, so that any arguments will do, as
/// long as those that name a key name one of ours.
const TEXT: &str = "#!lua flags=no-writes
local missing = {}
for i = 1, #ARGV do -- at most as many as are needed
  if not redis.acl_check_cmd(ARGV[i], KEYS[1], KEYS[1], KEYS[1]) then missing[#missing + 1] = ARGV[i] end
end
return missing";

static PERMISSIONS: LazyLock<Script> = LazyLock::new(|| Script::new("permissions", TEXT.to_owned()));

impl Quota {
    /// The commands that our user may not run on one or the other primary, each once; of use with Redis and Valkey only.
    ///
    /// # Errors
    /// `Denied`: not even this may be asked, the text says why.
    pub async fn missing_permissions(&self) -> Result<Vec<String>, StoreError> {
        let mut missing = Vec::new();
        for shard in self.shards().await? {
            let (key, store) = (self.key_on(&shard), &self.0.store);
            let keys = [key.as_str()];
            let answer = self.patiently(|| store.run(&PERMISSIONS, &keys, &NEEDED)).await?;
            let Reply::List(words) = answer else {
                return Err(StoreError::Odd("no list of commands".into()));
            };
            for word in words {
                if let Reply::Bulk(word) = word {
                    missing.push(String::from_utf8_lossy(&word).into_owned());
                }
            }
        }
        missing.sort();
        missing.dedup();
        Ok(missing)
    }

    /// A key of ours that this primary serves; nothing is ever stored there.
    fn key_on(&self, shard: &Shard) -> String {
        let spell = |number| self.spell().permissions(number);
        // One number in 16,384 hits the slot; with so many none misses it.
        (0..1_000_000).map(spell).find(|key| slot(key.as_bytes()) == shard.slot).unwrap_or_else(|| spell(0))
    }
}
