//! Whether our user may run every command that is needed. Asked before the first stream: a script that is denied half way
//! leaves behind what it has done so far, and the books torn.

use super::probe::account_in;
use super::store::{Reply, StoreError};
use super::{Quota, script};

/// What scripts and plain commands run, as `deploy/voxgate.acl` allows it. What only some arrangements need (`ASKING`,
/// `CLUSTER SLOTS`, `WAIT`), what only measures (`INFO`, `SLOWLOG`, `CLUSTER INFO`), and what must have run to get here (`ROLE`,
/// `EVALSHA`, `SCRIPT LOAD`) is not asked for.
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

impl Quota {
    /// The commands that our user may not run on one or the other primary, each once; of use with Redis and Valkey only.
    ///
    /// # Errors
    /// `Denied`: not even this may be asked, the text says why.
    pub async fn missing_permissions(&self) -> Result<Vec<String>, StoreError> {
        let mut missing = Vec::new();
        for shard in self.shards().await? {
            let account =
                account_in(shard.slot, "").ok_or_else(|| StoreError::Odd("no name in a slot".into()))?;
            let (key, store) = (self.spell().permissions(&account), &self.0.store);
            let keys = [key.as_str()];
            let answer = self.patiently(|| store.run(&script::PERMISSIONS, &keys, &NEEDED)).await?;
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
}
