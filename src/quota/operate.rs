//! What an operator or a backend does to accounts, keys, sessions and leases. Units move only through the scripts.
//!
//! # When it takes hold
//! | done | new streams | live streams |
//! |---|---|---|
//! | freeze | refused at once | end within one heartbeat |
//! | end a session | refused at once | lapse at their next chunk |
//! | cap a session | at once | at their next envelope |
//! | revoke a key | refused once the gateway's memory of it ends | end within one heartbeat |
//! | delete an account | refused at once | lapse at their next chunk |
//!
//! # Deleting
//! Freeze, force every open lease closed, then forget keys, sessions and top-ups, the account itself last: cut short,
//! it can be repeated. The ledger stays to the end of its retention, and so do budgets: an account made later under
//! the same name has no key, session or flag of the old one, but what was taken in the running period stays taken.

use std::time::Duration;

use tokio::time::Instant;

use super::answer::{Raised, Reaped, Words};
use super::audit::{QUARANTINE_MS, Queued};
use super::keys::{Member, Name};
use super::period::Window;
use super::store::{Reply, Script, StoreError};
use super::{Account, Pause, Quota, accounts, ms, pauses, script};
use crate::units::Units;

/// One open lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenLease {
    /// What names it: session as stored, number, period, units granted.
    pub member: Member,
    /// Session's public name.
    pub session: String,
    /// Fingerprint of the key.
    pub key: String,
    /// Units it holds out of the budget.
    pub held: Units,
    /// Unix milliseconds when it falls to the reaper, unless renewed; `None` in quarantine.
    pub deadline_ms: Option<u64>,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// As stored: fingerprint, dot, public name. What the other calls want.
    pub sid: String,
    /// Its public name.
    pub session: String,
    /// Fingerprint of the key that it belongs to.
    pub key: String,
    /// Its cap; `None`: no cap of its own.
    pub cap: Option<Units>,
    /// Charged.
    pub used: Units,
    /// In open leases.
    pub held: Units,
    /// Open leases.
    pub open: u64,
    /// No new leases.
    pub ended: bool,
    /// Model, units per second and tags; `None` before its first stream.
    pub terms: Option<String>,
}

/// What became of a session that was to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// It is there now.
    Made,
    /// It was there already, with the same cap.
    Again,
    /// There is one of that name with another cap.
    Exists,
}

/// What forcing leases closed came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operated {
    /// Leases closed.
    pub closed: u64,
    /// Units charged for them.
    pub charged: Units,
    /// Leases that could not be closed: a key of theirs is corrupt, their units stay held.
    pub stuck: u64,
}

/// A top-up that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topup {
    /// Which period it raises.
    pub period: String,
    /// Sum of all top-ups of that period after this one.
    pub sum: Units,
    /// The same id had been used before, and counted then.
    pub replay: bool,
}

/// Why a top-up does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopupError {
    /// The id was used with another amount.
    #[error("this id was used with another amount")]
    Conflict,
    /// Zero, or cap and top-ups would pass 2^53-1.
    #[error("the amount is zero, or cap and top-ups would pass 2^53-1")]
    Amount,
    /// No such account.
    #[error("no such account")]
    Unknown,
    /// Only the running period and the next one can be raised.
    #[error("the period {0} is neither the running one nor the next")]
    Period(String),
    /// The store gave no answer; repeat it with the same id.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Quota {
    /// Raises the cap of one period (`None`: the running one) by `amount`, once per `id`.
    ///
    /// With `None`, an id that counted in a period of the last day is repeated there, so that a caller who lost the
    /// answer at the edge of a period may ask again behind it.
    pub async fn topup(
        &self,
        account: &Name,
        id: &Name,
        amount: Units,
        period: Option<&str>,
    ) -> Result<Topup, TopupError> {
        let known = self.account(account).await?.ok_or(TopupError::Unknown)?;
        let running = known.window(self.store_seconds().await?);
        let period = match period {
            None => self.period_of_topup(&known, id, running).await?,
            Some(period) if period == running.id || period == known.window(running.end).id => {
                period.to_owned()
            }
            Some(period) => return Err(TopupError::Period(period.to_owned())),
        };
        let keys = [self.spell().account(account), self.spell().credits(account, &period)];
        let keep = ms(self.0.settings.retention).saturating_add(CREDITS_MORE_MS).to_string();
        let args = [id.as_str(), &amount.to_string(), &period, &keep];
        if amount.is_zero() {
            return Err(TopupError::Amount);
        }
        let reply = self.call_patiently(&script::TOPUP, &keys.each_ref().map(String::as_str), &args).await?;
        match Raised::read(&reply)? {
            Raised::Raised { sum, replay } => Ok(Topup { period, sum, replay }),
            Raised::Conflict => Err(TopupError::Conflict),
            Raised::TooMuch => Err(TopupError::Amount),
            Raised::Unknown => Err(TopupError::Unknown),
            Raised::Corrupt(key) => Err(StoreError::Corrupt(key).into()),
        }
    }

    /// The running period, unless `id` counted in one of the periods before it, within the last day.
    async fn period_of_topup(
        &self,
        account: &Account,
        id: &Name,
        running: Window,
    ) -> Result<String, StoreError> {
        let mut window = account.window(running.start - 1);
        for _ in 0..TOPUP_PERIODS_MAX {
            let credits = self.spell().credits(&account.id, &window.id);
            if accounts::text(&self.command(&["HGET", &credits, id.as_str()]).await?).is_some() {
                return Ok(window.id);
            }
            if running.start - window.start >= 24 * 3600 {
                break;
            }
            window = account.window(window.start - 1);
        }
        Ok(running.id)
    }

    /// Freezes or thaws an account; `false`: no such account.
    pub async fn set_frozen(&self, account: &Name, frozen: bool) -> Result<bool, StoreError> {
        self.write_account(account, &["*", "0", "frozen", if frozen { "1" } else { "0" }]).await
    }

    /// Revokes a key for good; `false`: the account has no such key.
    pub async fn revoke_key(&self, account: &Name, fingerprint: &Name) -> Result<bool, StoreError> {
        let field = format!("key:{fingerprint}");
        let digest = self.command(&["HGET", &self.spell().account(account), &field]).await?;
        let Some(digest) = accounts::text(&digest) else { return Ok(false) };
        self.command(&["HSET", &self.spell().key(&digest), "revoked", "1"]).await?;
        Ok(true)
    }

    /// Open leases of an account, the one due first in front.
    pub async fn open_leases(&self, account: &Name) -> Result<Vec<OpenLease>, StoreError> {
        Ok(self.queue(account).await?.into_iter().map(OpenLease::from).collect())
    }

    /// Closes one lease now, by what it is known to have used; for quarantine once the corrupt key is gone.
    pub async fn force_settle(&self, account: &Name, member: &Member) -> Result<Reaped, StoreError> {
        self.reap(account, member, true).await
    }

    /// Makes a session before its first stream, so that it has a cap of its own (`None`: none).
    pub async fn create_session(
        &self,
        account: &Name,
        key: &Name,
        session: &Name,
        cap: Option<Units>,
    ) -> Result<Made, StoreError> {
        let sid = format!("{key}.{session}");
        let cap = cap.map_or_else(|| "-".to_owned(), |cap| cap.to_string());
        let keep = ms(self.0.settings.session_keep).to_string();
        let reply = self.session_call(account, &sid, &["make", key.as_str(), &cap, &keep]).await?;
        let mut words = Words::of(&reply);
        match words.text()? {
            "made" => Ok(if words.int()? == 1 { Made::Again } else { Made::Made }),
            "exists" => Ok(Made::Exists),
            "corrupt" => Err(StoreError::Corrupt(words.text()?.into())),
            _ => Err(words.odd()),
        }
    }

    /// Gives a session another cap (`None`: none); `false`: no such session. What is reserved stays.
    pub async fn raise_session_cap(
        &self,
        account: &Name,
        sid: &str,
        cap: Option<Units>,
    ) -> Result<bool, StoreError> {
        let cap = cap.map_or_else(|| "-".to_owned(), |cap| cap.to_string());
        let reply = self.session_call(account, sid, &["cap", "", &cap, "0"]).await?;
        found(&reply, "capped")
    }

    /// Ends a session: no new leases, and those that are open are closed; `None`: no such session.
    pub async fn end_session(&self, account: &Name, sid: &str) -> Result<Option<Operated>, StoreError> {
        let reply = self.session_call(account, sid, &["end", "", "-", "0"]).await?;
        if !found(&reply, "ended")? {
            return Ok(None);
        }
        self.close_all(account, |member| member.sid == sid).await.map(Some)
    }

    /// One session; `None`: no such session.
    pub async fn session(&self, account: &Name, sid: &str) -> Result<Option<Session>, StoreError> {
        if !sid
            .split_once('.')
            .is_some_and(|(key, session)| Name::parse(key).is_some() && Name::parse(session).is_some())
        {
            return Ok(None);
        }
        let key = self.spell().session(account, sid);
        let fields = self.fields(&key).await?;
        if fields.is_empty() {
            return Ok(None);
        }
        Session::read(sid, &fields).map(Some).ok_or(StoreError::Corrupt(key))
    }

    /// Sessions that the store remembers, by name. Walks the store's key names: for people.
    pub async fn sessions(&self, account: &Name) -> Result<Vec<Session>, StoreError> {
        let mut sessions = Vec::new();
        for name in self.scan(&self.spell().sessions_pattern(account)).await? {
            if let Some((_, sid)) = name.rsplit_once("}:") {
                sessions.extend(self.session(account, sid).await?);
            }
        }
        Ok(sessions)
    }

    /// Deletes an account; `None`: no such account. With `stuck` leases the account stays, frozen: repair, then repeat.
    pub async fn delete_account(&self, account: &Name) -> Result<Option<Operated>, StoreError> {
        if !self.set_frozen(account, true).await? {
            return Ok(None);
        }
        let operated = self.close_all(account, |_| true).await?;
        if operated.stuck > 0 {
            return Ok(Some(operated));
        }
        let key = self.spell().account(account);
        let fields = self.fields(&key).await?;
        for (_, digest) in fields.iter().filter(|(field, _)| field.starts_with("key:")) {
            self.command(&["DEL", &self.spell().key(digest)]).await?;
        }
        for pattern in self.spell().remains_patterns(account) {
            for name in self.scan(&pattern).await? {
                self.command(&["DEL", &name]).await?;
            }
        }
        self.command(&["DEL", &key]).await?;
        Ok(Some(operated))
    }

    /// Forces leases closed until none is left that `wanted` names. Ends: nothing opens behind a flag set before.
    async fn close_all(
        &self,
        account: &Name,
        wanted: impl Fn(&Member) -> bool,
    ) -> Result<Operated, StoreError> {
        let mut operated = Operated::default();
        loop {
            let queue = self.queue(account).await?;
            let mut closed = false;
            operated.stuck = 0;
            for Queued { member, .. } in queue.iter().filter(|queued| wanted(&queued.member)) {
                match self.force_settle(account, member).await? {
                    Reaped::Closed { bill, .. } => {
                        closed = true;
                        operated.closed += 1;
                        operated.charged = operated.charged.saturating_add(bill.charged);
                    }
                    Reaped::Corrupt(_) => operated.stuck += 1,
                    Reaped::NotDue | Reaped::Unknown => {}
                }
            }
            if !closed {
                return Ok(operated);
            }
        }
    }

    async fn session_call(&self, account: &Name, sid: &str, args: &[&str]) -> Result<Reply, StoreError> {
        let key = self.spell().session(account, sid);
        self.call_patiently(&script::SESSION, &[&key], args).await
    }

    /// One call of a script that may be repeated at will, tried until it is answered or `hold` is over.
    pub(super) async fn call_patiently(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&str],
    ) -> Result<Reply, StoreError> {
        let until = Instant::now() + self.0.settings.hold;
        let mut pause = Pause::new();
        loop {
            match self.call(script, keys, args).await {
                // These scripts repeat their answer.
                Err(error @ StoreError::Thin { .. }) if Instant::now() < until => pause.after(&error).await,
                Err(error) if pauses(&error) && Instant::now() < until => pause.wait().await,
                answer => return answer,
            }
        }
    }
}

/// Periods in which an id is looked for: a day of hours. Shorter periods are for tests.
const TOPUP_PERIODS_MAX: u32 = 25;

/// Top-ups of the next period are kept that much longer, so that they outlive its budget.
const CREDITS_MORE_MS: u64 = Duration::from_secs(2 * 31 * 24 * 3600).as_millis() as u64;

/// Whether a session script found its session.
fn found(reply: &Reply, done: &str) -> Result<bool, StoreError> {
    let mut words = Words::of(reply);
    match words.text()? {
        word if word == done => Ok(true),
        "unknown" => Ok(false),
        "corrupt" => Err(StoreError::Corrupt(words.text()?.into())),
        _ => Err(words.odd()),
    }
}

impl From<Queued> for OpenLease {
    fn from(Queued { member, deadline_ms }: Queued) -> Self {
        let (key, session) = member.owner();
        Self {
            session: session.to_owned(),
            key: key.to_owned(),
            held: Units::parse(&member.granted).unwrap_or(Units::ZERO),
            deadline_ms: (deadline_ms < QUARANTINE_MS).then_some(deadline_ms),
            member,
        }
    }
}

impl Session {
    fn read(sid: &str, fields: &std::collections::HashMap<String, String>) -> Option<Self> {
        let units = |name: &str| fields.get(name).and_then(|text| Units::parse(text));
        let (key, session) = sid.split_once('.')?;
        Some(Self {
            sid: sid.to_owned(),
            session: session.to_owned(),
            key: key.to_owned(),
            cap: match fields.get("cap").map(String::as_str) {
                None | Some("-") => None,
                Some(text) => Some(Units::parse(text)?),
            },
            used: units("used")?,
            held: units("held")?,
            open: units("open")?.get(),
            ended: fields.get("ended").is_some_and(|flag| flag == "1"),
            terms: fields.get("terms").cloned(),
        })
    }
}

impl Account {
    /// Whether another period or zone is decided on and not yet in force at unix second `now`.
    pub fn changes_at(&self, now: i64) -> Option<i64> {
        self.plan().since().filter(|since| *since > now)
    }
}
