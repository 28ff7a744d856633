//! Accounts made and changed field by field. What is not named is never written, so a freeze and a new cap that meet
//! both take hold. Moves no units.

use super::keys::Name;
use super::period::{PeriodRule, Plan};
use super::store::StoreError;
use super::{Account, Quota};
use crate::units::Units;

/// What is to change; `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountChange {
    /// Units per period.
    pub cap: Option<Units>,
    /// How time is cut; counts from the end of the running period.
    pub period: Option<PeriodRule>,
    /// Zone of calendar periods; counts from the end of the running period.
    pub zone: Option<String>,
    /// One session may reserve at most 1/share of what is free.
    pub share: Option<u32>,
    /// Whether new leases are refused.
    pub frozen: Option<bool>,
}

/// Tries to change an account whose plan others change too.
const CHANGE_TRIES_MAX: u32 = 20;

type Pairs = Vec<(&'static str, String)>;

impl Quota {
    /// Makes an account; `false`: there is one of that name, and nothing was written.
    pub async fn create_account(&self, account: &Account) -> Result<bool, StoreError> {
        self.put_over(None, account).await
    }

    /// Changes the named fields of an account, all at once; gives the account as it then is, `None`: no such account.
    ///
    /// Cap, period and zone as in [`Quota::put_account`]. Errors: the store's; `Away` when its plan changes too fast.
    pub async fn change_account(
        &self,
        id: &Name,
        change: &AccountChange,
    ) -> Result<Option<Account>, StoreError> {
        for _ in 0..CHANGE_TRIES_MAX {
            let Some(old) = self.account(id).await? else { return Ok(None) };
            let (from, pairs) = self.pairs(&old, change).await?;
            let (plan, from) = (old.past.plan.to_string(), from.to_string());
            let mut args = vec![plan.as_str(), from.as_str()];
            args.extend(pairs.iter().flat_map(|(field, value)| [*field, value.as_str()]));
            if !pairs.is_empty() && !self.write_account(id, &args).await? {
                continue;
            }
            if from != "0" && change.cap.is_none() {
                self.follow_cap(&old).await?;
            }
            return self.account(id).await;
        }
        Err(StoreError::Away("the account changes too fast".into()))
    }

    /// A cap that came alone while a new plan was on its way counts for the running period too.
    async fn follow_cap(&self, old: &Account) -> Result<(), StoreError> {
        for _ in 0..CHANGE_TRIES_MAX {
            let Some(now) = self.account(&old.id).await? else { return Ok(()) };
            if now.cap == old.cap || now.past.cap.is_none_or(|cap| cap == now.cap) {
                return Ok(());
            }
            let (plan, cap) = (now.past.plan.to_string(), now.cap.to_string());
            self.write_account(&old.id, &[&plan, "0", "cap_before", &cap]).await?;
        }
        Err(StoreError::Away("the account changes too fast".into()))
    }

    /// The fields to write over `old`, and the second from which a new plan counts (0: the plan stays).
    async fn pairs(&self, old: &Account, change: &AccountChange) -> Result<(i64, Pairs), StoreError> {
        let mut pairs = Pairs::new();
        if let Some(share) = change.share {
            pairs.push(("share", share.to_string()));
        }
        if let Some(frozen) = change.frozen {
            pairs.push(("frozen", if frozen { "1" } else { "0" }.to_owned()));
        }
        if let Some(cap) = change.cap {
            pairs.push(("cap", cap.to_string()));
        }
        let rule = change.period.unwrap_or(old.period);
        let zone = change.zone.as_ref().unwrap_or(&old.zone);
        if (rule, zone) == (old.period, &old.zone) {
            // Alone, a cap counts at once, also for a running period that still has a cap of its own.
            if let Some(cap) = change.cap.filter(|_| old.past.cap.is_some()) {
                pairs.push(("cap_before", cap.to_string()));
            }
            return Ok((0, pairs));
        }
        let now = self.store_seconds().await?;
        let (running, plan) = (old.window(now), old.plan().change(rule, zone, now));
        let since = Plan { rule, zone: String::new(), earlier: plan.earlier.clone() }.since();
        pairs.extend([
            ("period", rule.word()),
            ("zone", zone.clone()),
            ("plan", fastrand::u64(1..Units::MAX.get()).to_string()),
            ("earlier", plan.earlier.text()),
            ("since", since.unwrap_or(0).to_string()),
            ("cap_before", old.cap_of(&running).to_string()),
        ]);
        Ok((running.end, pairs))
    }

    /// Every account by name, with `None` for one whose record is damaged. Walks the store's key names: for people.
    pub async fn accounts_and_damaged(&self) -> Result<Vec<(Name, Option<Account>)>, StoreError> {
        let mut found = Vec::new();
        for key in self.scan(&self.spell().account_pattern()).await? {
            let inner = key.rsplit_once('{').and_then(|(_, rest)| rest.strip_suffix('}'));
            let Some(id) = inner.and_then(Name::parse) else { continue };
            match self.account(&id).await {
                Ok(Some(account)) => found.push((id, Some(account))),
                // Nothing under a name that was just found: deleted meanwhile, or a record without a cap.
                Ok(None) if self.fields(&key).await?.is_empty() => {}
                Ok(None) | Err(StoreError::Corrupt(_)) => found.push((id, None)),
                Err(error) => return Err(error),
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }
}
