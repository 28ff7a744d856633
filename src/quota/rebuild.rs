//! Brings a budget back that was lost, or corrects one that differs: from its ledger and open leases.
//!
//! Everything is counted in this process, page by page; `lua/rebuild.lua` writes the sums if, at that instant, ledger,
//! leases and budget are still what was counted. If they are not, the count goes on from where it was. Nothing is
//! given away meanwhile: without its budget a period opens no lease, and those that are open close into the ledger.
//!
//! What it can't bring back: rows that the store lost together with the budget. An old snapshot of the whole store
//! agrees with itself, so there is nothing to see from inside; hold the exported ledger against it.

use super::answer::Words;
use super::audit::{AuditError, Counted, Mismatch};
use super::keys::Name;
use super::store::StoreError;
use super::{Quota, ms, script};
use crate::limits::{REBUILD_KEYS_MAX, STEADY_TRIES_MAX};
use crate::units::Units;

/// What a rebuild did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rebuilt {
    /// The budget was there and agreed: nothing was written.
    Agreed,
    /// The budget was written anew.
    Written {
        /// What it says now.
        taken: Units,
        /// Units in open leases.
        held: Units,
        /// Units in ledger rows.
        settled: Units,
        /// Ledger rows.
        rows: u64,
        /// What was wrong before.
        was: Vec<Mismatch>,
    },
}

/// Why nothing was rebuilt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RebuildError {
    /// There is a budget, and it says something else. Corrected only by force.
    #[error("the budget differs from its ledger and leases: {0:?}")]
    Differs(Vec<Mismatch>),
    /// Neither rows nor leases nor budget: a budget of nothing would give the whole cap away. Written only by force.
    #[error("the period has neither ledger rows nor open leases")]
    Nothing,
    /// Leases of this period open and close faster than they can be counted.
    #[error("period {0} changes too fast to be counted: freeze the account, or try again later")]
    Unsteady(String),
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<AuditError> for RebuildError {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Unsteady(period) => Self::Unsteady(period),
            AuditError::Store(error) => Self::Store(error),
        }
    }
}

impl Quota {
    /// Writes the budget of one period anew from its ledger and open leases, and checks that it then agrees.
    ///
    /// Without `force` only a budget that is not there is written. May be repeated at will, also after it was cut
    /// short. Bounded: [`STEADY_TRIES_MAX`] counts, each continuing the last.
    pub async fn rebuild(&self, account: &Name, period: &str, force: bool) -> Result<Rebuilt, RebuildError> {
        let mut done = None;
        for _ in 0..STEADY_TRIES_MAX {
            let counted = self.count(account, period).await?;
            let wrong = counted.mismatches(true);
            if wrong.is_empty() {
                return Ok(done.unwrap_or(Rebuilt::Agreed));
            }
            if done.is_none() && !force {
                if counted.has_budget() {
                    return Err(RebuildError::Differs(wrong));
                }
                if counted.totals.rows + counted.open == 0 {
                    return Err(RebuildError::Nothing);
                }
            }
            let was = match done {
                Some(Rebuilt::Written { was, .. }) => was,
                Some(Rebuilt::Agreed) | None => wrong,
            };
            done = Some(written(&counted, was));
            self.write_sums(account, period, &counted).await?;
        }
        Err(RebuildError::Unsteady(period.to_owned()))
    }

    /// Writes what was counted; whether it is still so shows in the next count.
    async fn write_sums(&self, account: &Name, period: &str, counted: &Counted) -> Result<(), StoreError> {
        let keys: Vec<(String, Units)> = counted.keys().into_iter().collect();
        let mut batches: Vec<&[(String, Units)]> = keys.chunks(REBUILD_KEYS_MAX).collect();
        let last = batches.pop().unwrap_or_default();
        for batch in batches {
            if !self.write_batch(account, period, counted, ("keys", batch)).await? {
                return Ok(());
            }
        }
        self.write_batch(account, period, counted, ("sums", last)).await.map(drop)
    }

    async fn write_batch(
        &self,
        account: &Name,
        period: &str,
        counted: &Counted,
        (step, batch): (&str, &[(String, Units)]),
    ) -> Result<bool, StoreError> {
        let spell = self.spell();
        let keys = [spell.budget(account, period), spell.ledger(account, period), spell.leases(account)];
        let field = |name: &str| counted.budget.get(name).cloned().unwrap_or_default();
        let was = match counted.has_budget() {
            true => ["taken", "held", "settled", "rows"].map(field).join(":"),
            false => "-".to_owned(),
        };
        let keep = ms(self.0.settings.retention).saturating_add(PERIOD_MS_MAX);
        let mut args = vec![
            counted.totals.rows.to_string(),
            counted.last_id.clone(),
            counted.queue.to_string(),
            was,
            step.to_owned(),
        ];
        args.extend(counted.sums().iter().map(|(_, units)| units.to_string()));
        args.push(keep.to_string());
        args.extend(batch.iter().flat_map(|(key, units)| [key.clone(), units.to_string()]));
        let (keys, args) = (keys.each_ref().map(String::as_str), args.iter().map(String::as_str));
        let reply = self.call_patiently(&script::REBUILD, &keys, &args.collect::<Vec<_>>()).await?;
        let mut words = Words::of(&reply);
        match words.text()? {
            "written" => Ok(true),
            "moved" => Ok(false),
            "corrupt" => Err(StoreError::Corrupt(words.text()?.into())),
            _ => Err(words.odd()),
        }
    }
}

/// No period is longer: a budget whose end is not known is kept at least as long as one whose end is.
const PERIOD_MS_MAX: u64 = 31 * 24 * 3600 * 1000;

fn written(counted: &Counted, was: Vec<Mismatch>) -> Rebuilt {
    let [(_, taken), (_, held), (_, settled), _] = counted.sums();
    Rebuilt::Written { taken, held, settled, rows: counted.totals.rows, was }
}
