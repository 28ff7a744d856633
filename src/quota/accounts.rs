//! Accounts and API keys as the store keeps them: who pays, and who may open streams.
//!
//! An account is the hash `account:{a}`; scripts read its `cap`, `frozen`, `last` and `credit:<period>`, the rest
//! is for gateways. A key is the hash `key:<sha256 of the secret>`; the secret itself is shown once and never
//! stored. Nothing here moves units.

use std::collections::HashMap;

use super::Quota;
use super::answer::Words;
use super::keys::{Name, secret_digest};
use super::period::{History, PeriodRule, Plan, Window};
use super::script;
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
    /// What was before the present period and zone. The store's is what counts: [`Quota::put_account`] keeps it.
    pub past: Past,
}

/// How an account's time was cut before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// Names the present way of cutting time; 0 until it changes. Drawn anew with each change, not counted up: a
    /// store that fails over may forget a change, and its number must not come again for another one.
    pub plan: u64,
    /// The ways before.
    pub earlier: History,
    /// Cap of the period that still runs by the way before.
    pub cap: Option<Units>,
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

/// Tries to write an account that others write too.
const PUT_TRIES_MAX: u32 = 20;

/// Digits of a digest that name a key.
const FINGERPRINT_DIGITS: usize = 16;

type Fields = HashMap<String, String>;

impl Account {
    /// An account with the usual terms: a day in UTC, an eighth of what is free per session.
    pub fn new(id: Name, cap: Units) -> Self {
        Self {
            id,
            cap,
            period: PeriodRule::Day,
            zone: "UTC".into(),
            share: 8,
            frozen: false,
            past: Past::default(),
        }
    }

    /// How this account's time is cut.
    pub fn plan(&self) -> Plan {
        Plan { rule: self.period, zone: self.zone.clone(), earlier: self.past.earlier.clone() }
    }

    /// The period that a second of the store's clock lies in.
    pub fn window(&self, now: i64) -> Window {
        self.plan().window(now)
    }

    /// Units per period, without top-ups: a period that began before the latest plan keeps its own cap.
    pub fn cap_of(&self, window: &Window) -> Units {
        let before = self.plan().since().is_some_and(|since| window.start < since);
        self.past.cap.filter(|_| before).unwrap_or(self.cap)
    }

    fn read(id: Name, fields: &Fields) -> Option<Self> {
        let past = Past {
            plan: fields.get("plan").map_or(Some(0), |text| text.parse().ok())?,
            earlier: fields.get("earlier").map_or(Some(History::default()), |text| History::parse(text))?,
            cap: match fields.get("cap_before") {
                Some(text) => Some(Units::parse(text)?),
                None => None,
            },
        };
        Some(Self {
            past,
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

    /// Creates or changes an account; its running period and its top-ups go on, and `past` is the store's.
    ///
    /// Another period or zone counts from the end of the running period, and so does the cap that comes with it. A cap
    /// that comes alone counts at once, also for the running period of an account whose plan is about to change.
    /// Errors: the store's; `Away` when others change the same account all the time.
    pub async fn put_account(&self, account: &Account) -> Result<(), StoreError> {
        for _ in 0..PUT_TRIES_MAX {
            let stored = self.account(&account.id).await?;
            if self.put_over(stored.as_ref(), account).await? {
                return Ok(());
            }
        }
        Err(StoreError::Away("the account changes too fast".into()))
    }

    /// Writes an account over the one that was read, unless that changed meanwhile.
    pub(super) async fn put_over(
        &self,
        stored: Option<&Account>,
        account: &Account,
    ) -> Result<bool, StoreError> {
        let expected = stored.map_or_else(|| "-".to_owned(), |old| old.past.plan.to_string());
        let recut = stored.filter(|old| (old.period, &old.zone) != (account.period, &account.zone));
        let (mut past, mut from) = (stored.map(|old| old.past.clone()).unwrap_or_default(), None);
        if let Some(old) = recut {
            let now = self.store_seconds().await?;
            let running = old.window(now);
            let plan = old.plan().change(account.period, &account.zone, now);
            from = Some(running.end);
            past = Past {
                plan: fastrand::u64(1..Units::MAX.get()),
                cap: Some(old.cap_of(&running)),
                earlier: plan.earlier,
            };
        } else if past.cap.is_some() && stored.is_some_and(|old| old.cap != account.cap) {
            past.cap = Some(account.cap);
        }
        let since = Plan { rule: account.period, zone: String::new(), earlier: past.earlier.clone() }.since();
        let (cap, share, plan) = (account.cap.to_string(), account.share.to_string(), past.plan.to_string());
        let (period, earlier, from) =
            (account.period.word(), past.earlier.text(), from.unwrap_or(0).to_string());
        let (since, before) = (since.unwrap_or(0).to_string(), past.cap.unwrap_or(account.cap).to_string());
        let args = [
            &*expected,
            &from,
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
            "plan",
            &plan,
            "earlier",
            &earlier,
            "since",
            &since,
            "cap_before",
            &before,
        ];
        self.write_account(&account.id, &args).await
    }

    /// Runs `lua/account.lua`; whether it wrote.
    pub(super) async fn write_account(&self, id: &Name, args: &[&str]) -> Result<bool, StoreError> {
        let reply = self.call(&script::ACCOUNT, &[&self.spell().account(id)], args).await?;
        let mut words = Words::of(&reply);
        match words.text()? {
            "written" => Ok(true),
            "moved" | "late" => Ok(false),
            "corrupt" => Err(StoreError::Corrupt(words.text()?.into())),
            _ => Err(words.odd()),
        }
    }

    /// All accounts, by name. Pages through the store's keys: for people, not for the path of a chunk.
    pub async fn accounts(&self) -> Result<Vec<Account>, StoreError> {
        let mut found = Vec::new();
        for name in self.scan(&self.spell().account_pattern()).await? {
            let inner = name.rsplit_once('{').and_then(|(_, rest)| rest.strip_suffix('}'));
            if let Some(id) = inner.and_then(Name::parse) {
                found.extend(self.account(&id).await?);
            }
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
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
