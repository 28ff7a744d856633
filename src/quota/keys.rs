//! The one place that spells a key. Pure: names in, key text out.
//!
//! Every key of an account carries the hash tag `{account}`, so that each script runs in one slot. Names are
//! checked against a strict alphabet before they get here, so no name can leave its tag or its place.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::limits::NAME_BYTES_MAX;

/// A name that may become part of a key: `A-Z a-z 0-9 - _ .`, 1 to 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The name, or `None` outside the alphabet or the length.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        (1..=NAME_BYTES_MAX).contains(&text.len()).then_some(())?;
        text.bytes().all(plain).then(|| Self(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Shards of the `active` index: few enough to poll, enough to spread over a cluster.
pub const ACTIVE_SHARDS: u8 = 64;

/// Spells keys under one prefix.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: Arc<str>,
}

impl Keys {
    /// Keys that begin with `prefix` (`vox:` unless configured).
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// The same keys for probes, where no list, reaper or audit looks.
    #[must_use]
    pub fn of_probes(&self) -> Self {
        Self::new(&format!("{}probe:", self.prefix))
    }

    /// Hash: caps, plan, flags, last period opened. Permanent.
    pub fn account(&self, account: &Name) -> String {
        format!("{}account:{{{account}}}", self.prefix)
    }

    /// What every account key begins with; for listing only.
    pub fn account_pattern(&self) -> String {
        format!("{}account:{{*}}", self.prefix)
    }

    /// Hash of one API key, by the SHA-256 of its secret. Permanent.
    pub fn key(&self, digest: &str) -> String {
        format!("{}key:{digest}", self.prefix)
    }

    /// Hash: taken, held, settled, rows of one period.
    pub fn budget(&self, account: &Name, period: &str) -> String {
        format!("{}budget:{{{account}}}:{period}", self.prefix)
    }

    /// Hash: owner, terms, cap, used, held, current lease.
    pub fn session(&self, account: &Name, sid: &str) -> String {
        format!("{}session:{{{account}}}:{sid}", self.prefix)
    }

    /// Hash: one lease of a session, its tombstone once closed.
    pub fn lease(&self, account: &Name, sid: &str, n: u64) -> String {
        format!("{}lease:{{{account}}}:{sid}:{n}", self.prefix)
    }

    /// Plain integer: units of lease `n` not yet admitted. The only key that `admit` touches.
    pub fn quota(&self, account: &Name, sid: &str, n: u64) -> String {
        format!("{}quota:{{{account}}}:{sid}:{n}", self.prefix)
    }

    /// Sorted set of open leases by deadline. Permanent.
    pub fn leases(&self, account: &Name) -> String {
        format!("{}leases:{{{account}}}", self.prefix)
    }

    /// Sorted set of live streams of one key by deadline. Permanent.
    pub fn streams(&self, account: &Name, fingerprint: &str) -> String {
        format!("{}streams:{{{account}}}:{fingerprint}", self.prefix)
    }

    /// Stream of closed leases of one period.
    pub fn ledger(&self, account: &Name, period: &str) -> String {
        format!("{}ledger:{{{account}}}:{period}", self.prefix)
    }

    /// Hash of top-ups of one period.
    pub fn credits(&self, account: &Name, period: &str) -> String {
        format!("{}credits:{{{account}}}:{period}", self.prefix)
    }

    /// Sorted set: accounts that have open leases, by latest deadline, so that a reaper needs no SCAN.
    pub fn active(&self, shard: u8) -> String {
        format!("{}active:{}", self.prefix, shard % ACTIVE_SHARDS)
    }

    /// The key of `active` that names an account, and two more far from it, for when that one can't be reached.
    pub fn active_places(&self, account: &Name) -> [String; 3] {
        let digest = Sha256::digest(account.as_str().as_bytes());
        let own = digest.first().copied().unwrap_or(0) % ACTIVE_SHARDS;
        [0, ACTIVE_SHARDS / 3, 2 * ACTIVE_SHARDS / 3].map(|far| self.active(own + far))
    }

    /// Matches every budget and ledger of an account; for listing only.
    pub fn periods_pattern(&self, account: &Name) -> String {
        format!("{}[bl][ue]dge[tr]:{{{account}}}:*", self.prefix)
    }

    /// Matches every session of an account; for listing only.
    pub fn sessions_pattern(&self, account: &Name) -> String {
        format!("{}session:{{{account}}}:*", self.prefix)
    }

    /// Matches what a deleted account leaves behind besides its books: leases, quotas, streams, credits.
    pub fn remains_patterns(&self, account: &Name) -> [String; 5] {
        ["session", "lease", "quota", "streams", "credits"]
            .map(|room| format!("{}{room}:{{{account}}}:*", self.prefix))
    }

    /// The gateways' common secret for tokens, where none is configured. Permanent.
    pub fn token_secret(&self) -> String {
        format!("{}token_secret", self.prefix)
    }

    /// Nothing is ever stored here: a name that our user must be allowed to reach, in the slot of some account.
    pub fn permissions(&self, account: &Name) -> String {
        format!("{}permissions:{{{account}}}", self.prefix)
    }

    /// Version of this layout. Permanent.
    pub fn schema(&self) -> String {
        format!("{}schema", self.prefix)
    }
}

/// Full lower-case hex SHA-256 of an API key's secret: how it is stored.
pub fn secret_digest(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

/// Member of the `leases` set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Session as stored.
    pub sid: String,
    /// Lease number.
    pub n: u64,
    /// Period that the lease was taken in.
    pub period: String,
    /// Units granted, as text: the script compares the very string.
    pub granted: String,
}

impl Member {
    /// Reads `<sid>:<n>:<period>:<granted>`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (sid, n, period, granted) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then_some(())?;
        Some(Self { sid: sid.into(), n: n.parse().ok()?, period: period.into(), granted: granted.into() })
    }

    /// Fingerprint of the key and public name of the session.
    pub fn owner(&self) -> (&str, &str) {
        self.sid.split_once('.').unwrap_or((&self.sid, ""))
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.sid, self.n, self.period, self.granted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_names_are_refused() {
        for text in ["", "a{b}c", "{}", "}{", "a:b", "a b", "a\n", "ä", "a*", &"x".repeat(65)] {
            assert_eq!(Name::parse(text), None, "{text:?}");
        }
        assert!(Name::parse("a-Z_0.9").is_some());
    }

    #[test]
    fn account_keys_share_one_tag() {
        let (keys, a) = (Keys::new("vox:"), Name::parse("acme").unwrap());
        for key in [
            keys.account(&a),
            keys.budget(&a, "d1"),
            keys.session(&a, "k.s"),
            keys.lease(&a, "k.s", 7),
            keys.quota(&a, "k.s", 7),
            keys.leases(&a),
            keys.streams(&a, "f"),
            keys.ledger(&a, "d1"),
            keys.credits(&a, "d1"),
        ] {
            assert!(key.starts_with("vox:") && key.contains(":{acme}"), "{key}");
        }
    }

    #[test]
    fn member_reads_back() {
        let member = Member::parse("k.s:7:d1:500").unwrap();
        assert_eq!((member.sid.as_str(), member.n, member.granted.as_str()), ("k.s", 7, "500"));
        assert_eq!(member.owner(), ("k", "s"));
        assert_eq!(member.to_string(), "k.s:7:d1:500");
        assert_eq!(Member::parse("k.s:7:d1"), None);
        assert_eq!(Member::parse("k.s:7:d1:5:6"), None);
    }
}
