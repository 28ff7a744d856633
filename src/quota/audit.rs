//! Whether the books agree: per period, per account, over all active accounts. Reads only; corrects nothing.
//!
//! # Three depths
//! 1. [`Quota::audit`]: one script call per period: drift = taken - held - settled, and the open leases.
//! 2. [`Quota::audit_round`]: the same for every active account's running periods, published as metrics.
//! 3. [`Quota::audit_deep`]: adds up every ledger row and open lease and compares each sum with the budget.
//!
//! # Under live traffic
//! A deep audit reads the budget, then the rows (from where it left off), then the leases, then the budget again, and
//! looks for new rows. Whatever opens or closes a lease changes the budget or adds a row, so if neither changed,
//! everything was read at one instant as good as any. If one did, only the new rows are read again, so each try is
//! shorter than the last; after [`STEADY_TRIES_MAX`] the account is too busy ([`AuditError::Unsteady`]): freeze it,
//! or ask later.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::answer::Books;
use super::keys::{ACTIVE_SHARDS, Member, Name};
use super::ledger::{BEGINNING, Totals, period_order};
use super::store::{Reply, StoreError};
use super::{Quota, accounts, ms};
use crate::limits::{DRIFT_TOLERANCE, LEDGER_PAGE_MAX, STEADY_TRIES_MAX};
use crate::units::Units;

/// An account's books.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Whose.
    pub account: Name,
    /// Oldest first: every period that has a budget, a ledger or open leases, and the last one opened.
    pub periods: Vec<PeriodBooks>,
    /// Its open leases.
    pub outstanding: Outstanding,
    /// Sum of the periods' drift, signed.
    pub drift: i64,
    /// Store's clock, unix milliseconds.
    pub now_ms: u64,
}

/// One period's books.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeriodBooks {
    /// Period id.
    pub period: String,
    /// What the budget says; `None`: there is none.
    pub books: Option<Books>,
    /// Open leases of the period.
    pub open: u64,
    /// Units that they were granted: what `held` must say.
    pub open_units: Units,
    /// The budget must be there and is not: `rebuild` brings it back.
    pub lost: bool,
}

/// Open leases: units that are reserved and not yet charged or returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// Open leases, those in quarantine included.
    pub leases: u64,
    /// Units granted to them.
    pub units: Units,
    /// Milliseconds since the one that was silent for longest was opened or renewed; quarantine left out. Above the
    /// lease's lifetime and a reaper's round, no reaper is at work.
    pub oldest_ms: u64,
    /// Leases in quarantine: a key of theirs is corrupt, their units stay held until `force_settle`.
    pub quarantined: u64,
    /// Units granted to those.
    pub quarantined_units: Units,
}

/// An open lease as the account's queue shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Queued {
    pub member: Member,
    pub deadline_ms: u64,
}

/// Where a budget differs from what was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// There is no budget, though the period has open leases or is the running one.
    Lost,
    /// A sum of the budget.
    Sum {
        /// `taken`, `held`, `settled` or `rows`.
        field: &'static str,
        /// What the budget says; `None` when that is no amount.
        says: Option<Units>,
        /// What rows and leases come to.
        counted: Units,
    },
    /// Units taken through one key.
    Key {
        /// The key's fingerprint.
        fingerprint: String,
        /// What the budget says; `None` when that is no amount.
        says: Option<Units>,
        /// What rows and leases come to.
        counted: Units,
    },
}

/// One period, counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeepPeriod {
    /// Period id.
    pub period: String,
    /// Sums over its ledger.
    pub totals: Totals,
    /// Open leases.
    pub open: u64,
    /// Units granted to them.
    pub open_units: Units,
    /// Empty when all agrees.
    pub mismatches: Vec<Mismatch>,
}

/// Why there is no deep audit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// Leases of this period open and close faster than they can be counted.
    #[error("period {0} changes too fast to be counted: freeze the account, or try again later")]
    Unsteady(String),
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a round over all active accounts came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditRound {
    /// Accounts looked at.
    pub accounts: u64,
    /// Sum of all drifts, signed.
    pub drift: i64,
    /// Periods whose budget is lost.
    pub lost: u64,
    /// All open leases.
    pub outstanding: Outstanding,
}

/// Rows, leases and budget of one period as they stood at one instant.
pub(super) struct Counted {
    pub budget: HashMap<String, String>,
    pub totals: Totals,
    pub last_id: String,
    pub by_key: BTreeMap<String, Units>,
    pub open: u64,
    pub open_units: Units,
    /// Open leases of the account, of any period.
    pub queue: u64,
}

impl Quota {
    /// The books of every period of an account. Walks the store's key names: for people, not for the path of a chunk.
    pub async fn audit(&self, account: &Name) -> Result<Audit, StoreError> {
        let periods = self.periods(account).await?;
        self.audit_of(account, periods).await
    }

    /// The books of `periods`, and of those that are running or have open leases.
    async fn audit_of(&self, account: &Name, mut periods: Vec<String>) -> Result<Audit, StoreError> {
        let queue = self.queue(account).await?;
        let (last, running) = self.running(account).await?;
        periods.extend(last.clone());
        periods.extend(queue.iter().map(|queued| queued.member.period.clone()));
        periods.sort_by(|a, b| period_order(a).cmp(&period_order(b)));
        periods.dedup();
        let (mut books, mut drift) = (Vec::new(), 0);
        for period in periods {
            let one = self.period_books(account, period, &queue, running.as_deref()).await?;
            drift += one.books.map_or(0, |books| books.drift);
            books.push(one);
        }
        let now_ms = u64::try_from(self.now_ms()).unwrap_or(0);
        let outstanding = outstanding(&queue, now_ms, ms(self.0.settings.lifetime));
        Ok(Audit { account: account.clone(), periods: books, outstanding, drift, now_ms })
    }

    async fn period_books(
        &self,
        account: &Name,
        period: String,
        queue: &[Queued],
        running: Option<&str>,
    ) -> Result<PeriodBooks, StoreError> {
        let books = self.books(account, &period).await?;
        let mine = || queue.iter().filter(|queued| queued.member.period == period);
        let open_units = mine().fold(Units::ZERO, |sum, queued| sum.saturating_add(granted(&queued.member)));
        let open = mine().count() as u64;
        let lost = books.is_none() && (open > 0 || running == Some(&period));
        Ok(PeriodBooks { period, books, open, open_units, lost })
    }

    /// The last period that was opened; and the same if it is the running one, so that its budget must be there.
    async fn running(&self, account: &Name) -> Result<(Option<String>, Option<String>), StoreError> {
        let key = self.spell().account(account);
        let Some(last) = accounts::text(&self.command(&["HGET", &key, "last"]).await?) else {
            return Ok((None, None));
        };
        let now = self.store_seconds().await?;
        let running = self.account(account).await?.is_some_and(|account| account.window(now).id == last);
        Ok((Some(last.clone()), running.then_some(last)))
    }

    /// One audit of the running periods of every active account, published as metrics. A corrupt account is logged and
    /// passed over. Errors: the store gave no answer; then nothing is published.
    pub async fn audit_round(&self) -> Result<AuditRound, StoreError> {
        let mut round = AuditRound::default();
        for shard in 0..ACTIVE_SHARDS {
            for name in self.members(&["ZRANGE", &self.spell().active(shard), "0", "-1"]).await? {
                let Some(account) = Name::parse(&name) else { continue };
                match self.audit_of(&account, Vec::new()).await {
                    Ok(audit) => round.add(&audit),
                    Err(StoreError::Corrupt(key)) => tracing::error!(%account, key, "books can't be read"),
                    Err(error) => return Err(error),
                }
            }
        }
        round.publish();
        Ok(round)
    }

    /// Counts every row and open lease of every period of an account, and compares with its budgets. Bounded memory;
    /// as many reads as there are pages of rows.
    pub async fn audit_deep(&self, account: &Name) -> Result<Vec<DeepPeriod>, AuditError> {
        let mut periods = self.audit(account).await?.periods;
        let mut deep = Vec::new();
        for PeriodBooks { period, lost, .. } in periods.drain(..) {
            let counted = self.count(account, &period).await?;
            let mismatches = counted.mismatches(lost);
            let Counted { totals, open, open_units, .. } = counted;
            deep.push(DeepPeriod { period, totals, open, open_units, mismatches });
        }
        Ok(deep)
    }

    /// Reads one period's budget, rows and leases until they are all of one instant.
    pub(super) async fn count(&self, account: &Name, period: &str) -> Result<Counted, AuditError> {
        let (budget, ledger) = (self.spell().budget(account, period), self.spell().ledger(account, period));
        let (mut totals, mut by_key, mut last_id) =
            (Totals::default(), BTreeMap::new(), BEGINNING.to_owned());
        for _ in 0..STEADY_TRIES_MAX {
            let before = self.fields(&budget).await?;
            loop {
                let rows = self.rows(account, period, &last_id, LEDGER_PAGE_MAX).await?;
                for row in &rows {
                    totals.add(row);
                    add(&mut by_key, &row.key, row.charged);
                }
                let Some(row) = rows.last() else { break };
                last_id.clone_from(&row.id);
            }
            let queue = self.queue(account).await?;
            let after = self.fields(&budget).await?;
            let Reply::Int(length) = self.command(&["XLEN", &ledger]).await? else {
                return Err(StoreError::Odd("XLEN".into()).into());
            };
            let all = u64::try_from(length).is_ok_and(|length| length == totals.rows);
            if all && before == after {
                return Ok(Counted::new(after, totals, (last_id, by_key), period, &queue));
            }
            if u64::try_from(length).is_ok_and(|length| length < totals.rows) {
                // Rows went away: count from the start.
                (totals, by_key, last_id) = (Totals::default(), BTreeMap::new(), BEGINNING.to_owned());
            }
        }
        Err(AuditError::Unsteady(period.to_owned()))
    }

    /// The account's open leases by deadline. Goes up by score, so that a lease that is renewed meanwhile is met
    /// again rather than missed.
    pub(super) async fn queue(&self, account: &Name) -> Result<Vec<Queued>, StoreError> {
        let (key, count) = (self.spell().leases(account), LEDGER_PAGE_MAX.to_string());
        let (mut from, mut skip, mut found) = ("-inf".to_owned(), 0, BTreeMap::new());
        loop {
            let offset = skip.to_string();
            let page = self
                .members(&["ZRANGEBYSCORE", &key, &from, "+inf", "WITHSCORES", "LIMIT", &offset, &count])
                .await?;
            let pairs = page.chunks_exact(2).filter_map(|pair| Some((pair.first()?, pair.last()?)));
            for (member, score) in pairs.clone() {
                let deadline_ms = score_ms(score).ok_or_else(|| StoreError::Corrupt(key.clone()))?;
                let parsed = Member::parse(member).filter(|member| Units::parse(&member.granted).is_some());
                let queued = Queued {
                    member: parsed.ok_or_else(|| StoreError::Corrupt(format!("{key} {member}")))?,
                    deadline_ms,
                };
                found.insert(member.clone(), queued);
            }
            let Some((_, last)) = pairs.clone().next_back().filter(|_| page.len() == 2 * LEDGER_PAGE_MAX)
            else {
                break;
            };
            let ties = pairs.filter(|(_, score)| *score == last).count();
            skip = if *last == from { skip + ties } else { ties };
            from.clone_from(last);
        }
        let mut queue: Vec<Queued> = found.into_values().collect();
        queue.sort_by(|a, b| (a.deadline_ms, &a.member.sid).cmp(&(b.deadline_ms, &b.member.sid)));
        Ok(queue)
    }
}

/// A score as whole milliseconds: servers print large ones as 9007199254740991 or 9.007199254740991e+15.
fn score_ms(score: &str) -> Option<u64> {
    let value: f64 = score.parse().ok()?;
    // Whole and below 2^53, so that the cast is exact.
    (value >= 0.0 && value <= QUARANTINE_MS as f64 && value.fract() == 0.0).then_some(value as u64)
}

/// The deadline of a lease in quarantine: never.
pub(super) const QUARANTINE_MS: u64 = Units::MAX.get();

fn granted(member: &Member) -> Units {
    Units::parse(&member.granted).unwrap_or(Units::ZERO)
}

fn add(sums: &mut BTreeMap<String, Units>, key: &str, units: Units) {
    let sum = sums.entry(key.to_owned()).or_insert(Units::ZERO);
    *sum = sum.saturating_add(units);
}

fn outstanding(queue: &[Queued], now_ms: u64, lifetime_ms: u64) -> Outstanding {
    let mut all = Outstanding::default();
    for queued in queue {
        let units = granted(&queued.member);
        all.leases += 1;
        all.units = all.units.saturating_add(units);
        if queued.deadline_ms >= QUARANTINE_MS {
            all.quarantined += 1;
            all.quarantined_units = all.quarantined_units.saturating_add(units);
        } else {
            all.oldest_ms = all.oldest_ms.max((now_ms + lifetime_ms).saturating_sub(queued.deadline_ms));
        }
    }
    all
}

impl AuditRound {
    fn add(&mut self, audit: &Audit) {
        let (all, one) = (&mut self.outstanding, &audit.outstanding);
        self.accounts += 1;
        self.drift = self.drift.saturating_add(audit.drift);
        self.lost += audit.periods.iter().filter(|period| period.lost).count() as u64;
        all.leases += one.leases;
        all.units = all.units.saturating_add(one.units);
        all.oldest_ms = all.oldest_ms.max(one.oldest_ms);
        all.quarantined += one.quarantined;
        all.quarantined_units = all.quarantined_units.saturating_add(one.quarantined_units);
    }

    fn publish(&self) {
        let all = &self.outstanding;
        metrics::gauge!("voxgate_drift_units").set(self.drift as f64);
        metrics::gauge!("voxgate_drift_tolerance_units").set(DRIFT_TOLERANCE.get() as f64);
        metrics::gauge!("voxgate_budgets_lost").set(self.lost as f64);
        metrics::gauge!("voxgate_leases_outstanding").set(all.leases as f64);
        metrics::gauge!("voxgate_leases_outstanding_units").set(all.units.get() as f64);
        metrics::gauge!("voxgate_leases_oldest_seconds")
            .set(Duration::from_millis(all.oldest_ms).as_secs_f64());
        metrics::gauge!("voxgate_leases_quarantined").set(all.quarantined as f64);
    }
}

impl Counted {
    fn new(
        budget: HashMap<String, String>,
        totals: Totals,
        (last_id, mut by_key): (String, BTreeMap<String, Units>),
        period: &str,
        queue: &[Queued],
    ) -> Self {
        let (mut open, mut open_units) = (0, Units::ZERO);
        for queued in queue.iter().filter(|queued| queued.member.period == period) {
            let units = granted(&queued.member);
            open += 1;
            open_units = open_units.saturating_add(units);
            add(&mut by_key, queued.member.owner().0, units);
        }
        Self { budget, totals, last_id, by_key, open, open_units, queue: queue.len() as u64 }
    }

    /// Whether there is a budget; a hash with key sums alone is none.
    pub(super) fn has_budget(&self) -> bool {
        self.budget.contains_key("taken")
    }

    /// taken, held, settled and rows as they must be.
    pub(super) fn sums(&self) -> [(&'static str, Units); 4] {
        [
            ("taken", self.totals.charged.saturating_add(self.open_units)),
            ("held", self.open_units),
            ("settled", self.totals.charged),
            ("rows", Units::saturating(self.totals.rows)),
        ]
    }

    /// Units per key as they must be, zero for those that the budget names and nothing was counted for.
    pub(super) fn keys(&self) -> BTreeMap<String, Units> {
        let named = self.budget.keys().filter_map(|field| field.strip_prefix("key:"));
        let mut keys: BTreeMap<String, Units> = named.map(|key| (key.to_owned(), Units::ZERO)).collect();
        keys.extend(self.by_key.iter().map(|(key, units)| (key.clone(), *units)));
        keys
    }

    /// Where the budget differs. Without a budget nothing differs unless it `must_be` there.
    pub(super) fn mismatches(&self, must_be: bool) -> Vec<Mismatch> {
        if !self.has_budget() {
            return if must_be { vec![Mismatch::Lost] } else { Vec::new() };
        }
        let says = |field: &str| self.budget.get(field).and_then(|text| Units::parse(text));
        let sums = self.sums().into_iter().filter(|(field, counted)| says(field) != Some(*counted));
        let mut found: Vec<Mismatch> =
            sums.map(|(field, counted)| Mismatch::Sum { field, says: says(field), counted }).collect();
        for (fingerprint, counted) in self.keys() {
            let field = format!("key:{fingerprint}");
            let says = if self.budget.contains_key(&field) { says(&field) } else { Some(Units::ZERO) };
            if says != Some(counted) {
                found.push(Mismatch::Key { fingerprint, says, counted });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(granted: &str, deadline_ms: u64) -> Queued {
        let member = Member::parse(&format!("k.s:1:d1:{granted}")).unwrap();
        Queued { member, deadline_ms }
    }

    #[test]
    fn quarantine_is_counted_apart() {
        let all = outstanding(&[queued("100", 5_000), queued("30", QUARANTINE_MS)], 4_000, 2_000);
        assert_eq!((all.leases, all.units, all.oldest_ms), (2, Units::from(130), 1_000));
        assert_eq!((all.quarantined, all.quarantined_units), (1, Units::from(30)));
    }

    #[test]
    fn scores_are_whole_milliseconds() {
        for (score, value) in [
            ("1764460800123", Some(1_764_460_800_123)),
            ("9007199254740991", Some(QUARANTINE_MS)),
            ("9.007199254740991e+15", Some(QUARANTINE_MS)),
            ("inf", None),
            ("-1", None),
            ("1.5", None),
            ("nan", None),
        ] {
            assert_eq!(score_ms(score), value, "{score}");
        }
    }
}
