//! Accounts and API keys as the store keeps them: who pays, and who may open streams.
//!
//! An account is the hash `account:{a}`; scripts read its `cap`, `frozen`, `last` and `credit:<period>`, the rest
//! is for gateways. A key is the hash `key:<sha256 of the secret>`; the secret itself is shown once and never
//! stored. Nothing here moves units.

use std::collections::HashMap;

use super::Quota;
use super::keys::{Name, secret_digest};
use super::period::PeriodRule;
use super::store::{Reply, StoreError};
use crate::units::Units;

/// One account: who pays, and what it may use in a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub id: Name,
    /// Units per period.
    pub cap: Units,
    /// How time is cut.
    pub period: PeriodRule,
    /// IANA zone name of calendar periods.
    pub zone: String,
    /// One session may reserve at most 1/share of what is free (1 = all of it).
    pub share: u32,
    /// No new leases.
    pub frozen: bool,
}

/// One API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// First 16 hex digits of the secret's SHA-256: how people and logs name the key.
    pub fingerprint: String,
    /// Whose key.
    pub account: Name,
    /// A word for people, at most 64 bytes.
    pub label: String,
    /// Units per period through this key; `None`: only the account's cap.
    pub cap: Option<Units>,
    /// Units per session; `None`: no session cap.
    pub session_cap: Option<Units>,
    /// Live streams at once.
    pub streams_max: u32,
    /// Models this key may use; empty: all.
    pub models: Vec<String>,
    /// No new streams, and live ones end within one heartbeat.
    pub revoked: bool,
}

/// Digits of a digest that name a key.
const FINGERPRINT_DIGITS: usize = 16;

type Fields = HashMap<String, String>;

impl Account {
    /// An account with the usual terms: a day in UTC, an eighth of what is free per session.
    pub fn new(id: Name, cap: Units) -> Self {
        Self { id, cap, period: PeriodRule::Day, zone: "UTC".into(), share: 8, frozen: false }
    }

    fn read(id: Name, fields: &Fields) -> Option<Self> {
        Some(Self {
            id,
            cap: Units::parse(fields.get("cap")?)?,
            period: fields.get("period").and_then(|text| PeriodRule::parse(text))?,
            zone: fields.get("zone").cloned().unwrap_or_else(|| "UTC".into()),
            share: fields.get("share").and_then(|text| text.parse().ok()).filter(|share| *share > 0)?,
            frozen: fields.get("frozen").is_some_and(|flag| flag == "1"),
        })
    }
}

impl Key {
    fn read(digest: &str, fields: &Fields) -> Option<Self> {
        let optional = |name: &str| match fields.get(name).map(String::as_str) {
            None | Some("-") => Some(None),
            Some(text) => Units::parse(text).map(Some),
        };
        Some(Self {
            fingerprint: digest.get(..FINGERPRINT_DIGITS)?.to_owned(),
            account: fields.get("account").and_then(|text| Name::parse(text))?,
            label: fields.get("label").cloned().unwrap_or_default(),
            cap: optional("cap")?,
            session_cap: optional("session_cap")?,
            streams_max: fields.get("streams_max").and_then(|text| text.parse().ok())?,
            models: fields.get("models").map(|text| words(text)).unwrap_or_default(),
            revoked: fields.get("revoked").is_some_and(|flag| flag == "1"),
        })
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn flag(set: bool) -> &'static str {
    if set { "1" } else { "0" }
}

impl Quota {
    /// Reads an account; `Corrupt` when what is stored is none.
    pub async fn account(&self, id: &Name) -> Result<Option<Account>, StoreError> {
        let key = self.spell().account(id);
        let fields = self.fields(&key).await?;
        if !fields.contains_key("cap") {
            return Ok(None);
        }
        Account::read(id.clone(), &fields).map(Some).ok_or(StoreError::Corrupt(key))
    }

    /// Creates or changes an account; its period and top-ups go on.
    pub async fn put_account(&self, account: &Account) -> Result<(), StoreError> {
        let key = self.spell().account(&account.id);
        let (cap, share, period) =
            (account.cap.to_string(), account.share.to_string(), account.period.word());
        let words = [
            "HSET",
            &key,
            "cap",
            &cap,
            "period",
            &period,
            "zone",
            &account.zone,
            "share",
            &share,
            "frozen",
            flag(account.frozen),
        ];
        self.command(&words).await.map(drop)
    }

    /// All accounts, by name. Pages through the store's keys: for people, not for the path of a chunk.
    pub async fn accounts(&self) -> Result<Vec<Account>, StoreError> {
        let (pattern, mut cursor, mut found) = (self.spell().account_pattern(), "0".to_owned(), Vec::new());
        loop {
            let page = self.command(&["SCAN", &cursor, "MATCH", &pattern, "COUNT", "500"]).await?;
            let Reply::List(parts) = &page else { return Err(StoreError::Odd("SCAN".into())) };
            let [next, Reply::List(names)] = parts.as_slice() else {
                return Err(StoreError::Odd("SCAN".into()));
            };
            for name in names.iter().filter_map(text) {
                let inner = name.rsplit_once('{').and_then(|(_, rest)| rest.strip_suffix('}'));
                if let Some(id) = inner.and_then(Name::parse) {
                    found.extend(self.account(&id).await?);
                }
            }
            cursor = text(next).unwrap_or_else(|| "0".into());
            if cursor == "0" {
                break;
            }
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        found.dedup_by(|a, b| a.id == b.id);
        Ok(found)
    }

    /// The key behind a secret. `None`: unknown. A revoked key is found, and says so.
    pub async fn key(&self, secret: &str) -> Result<Option<Key>, StoreError> {
        self.key_of(&secret_digest(secret)).await
    }

    /// The key of an account by its fingerprint, for those who do not hold its secret. `None`: the account has none
    /// of that name. A revoked key is found, and says so.
    pub async fn key_named(&self, account: &Name, fingerprint: &str) -> Result<Option<Key>, StoreError> {
        let field = format!("key:{fingerprint}");
        let stored = self.command(&["HGET", &self.spell().account(account), &field]).await?;
        let Some(digest) = text(&stored) else { return Ok(None) };
        let key = self.key_of(&digest).await?;
        Ok(key.filter(|key| key.account == *account && key.fingerprint == fingerprint))
    }

    async fn key_of(&self, digest: &str) -> Result<Option<Key>, StoreError> {
        let key = self.spell().key(digest);
        let fields = self.fields(&key).await?;
        if fields.is_empty() {
            return Ok(None);
        }
        Key::read(digest, &fields).map(Some).ok_or(StoreError::Corrupt(key))
    }

    /// Makes a key and gives its secret, the only time that it is seen. The argument's fingerprint is ignored.
    pub async fn add_key(&self, key: Key) -> Result<(String, Key), StoreError> {
        let secret = format!("vox_{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        let made = self.add_key_as(&secret, key).await?;
        Ok((secret, made))
    }

    /// Makes a key with a secret of the caller's own, for moving keys over from elsewhere.
    pub async fn add_key_as(&self, secret: &str, key: Key) -> Result<Key, StoreError> {
        let digest = secret_digest(secret);
        let fingerprint = digest.get(..FINGERPRINT_DIGITS).unwrap_or(&digest).to_owned();
        let stored = self.spell().key(&digest);
        let optional = |cap: Option<Units>| cap.map_or_else(|| "-".into(), |cap| cap.to_string());
        let (cap, session_cap) = (optional(key.cap), optional(key.session_cap));
        let (streams, models) = (key.streams_max.to_string(), key.models.join(","));
        let words = [
            "HSET",
            &stored,
            "account",
            key.account.as_str(),
            "label",
            &key.label,
            "cap",
            &cap,
            "session_cap",
            &session_cap,
            "streams_max",
            &streams,
            "models",
            &models,
            "revoked",
            flag(key.revoked),
        ];
        self.command(&words).await?;
        let field = format!("key:{fingerprint}");
        self.command(&["HSET", &self.spell().account(&key.account), &field, &digest]).await?;
        Ok(Key { fingerprint, ..key })
    }

    /// Keys of an account, by label.
    pub async fn keys(&self, account: &Name) -> Result<Vec<Key>, StoreError> {
        let fields = self.fields(&self.spell().account(account)).await?;
        let mut found = Vec::new();
        for (_, digest) in fields.iter().filter(|(name, _)| name.starts_with("key:")) {
            found.extend(self.key_of(digest).await?);
        }
        found.sort_by(|a, b| (&a.label, &a.fingerprint).cmp(&(&b.label, &b.fingerprint)));
        Ok(found)
    }

    /// A whole hash; empty when there is none.
    pub(super) async fn fields(&self, key: &str) -> Result<Fields, StoreError> {
        let Reply::List(all) = self.command(&["HGETALL", key]).await? else {
            return Err(StoreError::Odd("HGETALL".into()));
        };
        Ok(all.chunks_exact(2).filter_map(|pair| Some((text(pair.first()?)?, text(pair.last()?)?))).collect())
    }
}

/// A bulk reply as text.
pub(super) fn text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8(bytes.clone()).ok(),
        Reply::Nil | Reply::Int(_) | Reply::Status(_) | Reply::List(_) => None,
    }
}
