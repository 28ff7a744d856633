//! Settles what a dead gateway left behind: leases whose deadline has passed.
//!
//! # States of a round
//! list active accounts (64 shards) → due leases of each, at most [`REAP_BATCH`] → `reap` one by one; the
//! script decides whether it is due and closes it once, so any number of gateways may run this at the same time →
//! accounts without a stream for long leave the active set.
//!
//! # Failures
//! | seen | done |
//! |---|---|
//! | the store, or one primary of several, gives no answer | the round goes on with what others have, and counts as failed; the next one starts after a heartbeat |
//! | the store was away | one heartbeat of grace first: living streams renew before anything is reaped |
//! | the store's clock jumped ahead | the same grace: everybody looks dead for a moment |
//! | an account whose keys are damaged | counted, logged, passed over; the round goes on |
//! | a corrupt lease | the script moves it to quarantine, its budget stays held; counted, logged; the batch goes on |

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::answer::Reaped;
use super::keys::{ACTIVE_SHARDS, Member, Name};
use super::store::{Reply, StoreError};
use super::{Quota, TOMBSTONE_MS, accounts, ms, script};
use crate::limits::{ACTIVE_KEEP, AUDIT_EVERY, CLOCK_JUMP, HEARTBEAT, REAP_BATCH, REAP_EVERY};

/// What one round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Leases closed.
    pub closed: u64,
    /// Leases moved to quarantine.
    pub quarantined: u64,
    /// Accounts looked at.
    pub accounts: u64,
}

impl Quota {
    /// Reaps until `stop`, a round every [`REAP_EVERY`].
    pub async fn reap_until(&self, stop: CancellationToken) {
        // Cut short anywhere, a round leaves nothing half done: each reap is one script.
        stop.run_until_cancelled(self.reap_for_ever()).await;
    }

    async fn reap_for_ever(&self) {
        let mut grace = Instant::now() + HEARTBEAT;
        let (mut audit, mut told) = (Instant::now(), None);
        loop {
            tokio::time::sleep(REAP_EVERY).await;
            // Without an answer, or with one from the future, the grace starts anew.
            if !self.clock_is_steady(&mut told).await {
                grace = Instant::now() + HEARTBEAT;
            }
            if Instant::now() < grace {
                continue;
            }
            match self.reap_round().await {
                Ok(round) if round.closed + round.quarantined > 0 => {
                    tracing::info!(closed = round.closed, quarantined = round.quarantined, "reaped");
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "reaper's round ended early");
                    grace = Instant::now() + HEARTBEAT;
                }
            }
            if Instant::now() >= audit {
                audit = Instant::now() + AUDIT_EVERY;
                if let Err(error) = self.audit_round().await {
                    tracing::debug!(%error, "audit ended early");
                }
            }
        }
    }

    /// Whether the store answers, and its clock has not jumped ahead of ours since `told`.
    async fn clock_is_steady(&self, told: &mut Option<(Instant, i64)>) -> bool {
        let Ok(Ok(now)) = self.store_now().await.map(i64::try_from) else { return false };
        let before = told.replace((Instant::now(), now));
        before.is_none_or(|(at, was)| {
            let passed = i64::try_from(ms(at.elapsed() + CLOCK_JUMP)).unwrap_or(i64::MAX);
            now.saturating_sub(was) <= passed
        })
    }

    /// One round over every active account.
    pub async fn reap_round(&self) -> Result<Round, StoreError> {
        let (mut round, mut seen, mut failed) = (Round::default(), HashSet::new(), None);
        for shard in 0..ACTIVE_SHARDS {
            let key = self.spell().active(shard);
            let names = match self.command_once(&["ZRANGE", &key, "0", "-1"]).await.and_then(|all| list(&all))
            {
                Ok(names) => names,
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            for account in names.iter().filter_map(|name| Name::parse(name)) {
                if seen.insert(account.clone()) {
                    round.accounts += 1;
                    failed = self.reap_or_pass(&account, &mut round).await.err().or(failed);
                }
            }
            let oldest = (self.now_ms() - i64::try_from(ms(ACTIVE_KEEP)).unwrap_or(0)).to_string();
            let swept = self.command_once(&["ZREMRANGEBYSCORE", &key, "-inf", &oldest]).await;
            failed = swept.err().or(failed);
        }
        // A failover may have forgotten accounts that this gateway served lately.
        for account in self.0.active.known().into_iter().filter(|account| !seen.contains(account)) {
            round.accounts += 1;
            failed = self.enter(&account).await.err().or(failed);
            failed = self.reap_or_pass(&account, &mut round).await.err().or(failed);
        }
        failed.map_or(Ok(round), Err)
    }

    /// Reaps one account; a damaged one is told about and passed over, so that it does not hold up the others.
    async fn reap_or_pass(&self, account: &Name, round: &mut Round) -> Result<(), StoreError> {
        match self.reap_account(account, round).await {
            Err(error @ (StoreError::Corrupt(_) | StoreError::Odd(_))) => {
                tracing::error!(%account, %error, "an account can't be reaped: its budget stays held");
                metrics::counter!("voxgate_reaped_total", "answer" => "passed_over").increment(1);
                Ok(())
            }
            done => done,
        }
    }

    async fn reap_account(&self, account: &Name, round: &mut Round) -> Result<(), StoreError> {
        // The store's own clock, not our idea of it: a wrong guess would only cost calls, but why make them.
        let (leases, batch) = (self.spell().leases(account), REAP_BATCH.to_string());
        let now = self.store_now().await?.to_string();
        let due = ["ZRANGEBYSCORE", &leases, "-inf", &now, "LIMIT", "0", &batch];
        let due = self.command_once(&due).await.and_then(|all| list(&all))?;
        for member in due.iter().filter_map(|text| Member::parse(text)) {
            match self.reap(account, &member, false).await? {
                Reaped::Closed { .. } => round.closed += 1,
                Reaped::Corrupt(_) => round.quarantined += 1,
                Reaped::NotDue | Reaped::Unknown => {}
            }
        }
        Ok(())
    }

    /// Closes one lease, before its deadline only with `force`.
    pub async fn reap(&self, account: &Name, member: &Member, force: bool) -> Result<Reaped, StoreError> {
        let keys = self.spell();
        let keys = [
            keys.session(account, &member.sid),
            keys.lease(account, &member.sid, member.n),
            keys.quota(account, &member.sid, member.n),
            keys.budget(account, &member.period),
            keys.leases(account),
            keys.ledger(account, &member.period),
        ];
        let keys = keys.each_ref().map(String::as_str);
        let (n, keep, retention) =
            (member.n.to_string(), TOMBSTONE_MS.to_string(), ms(self.0.settings.retention).to_string());
        let force = if force { "1" } else { "0" };
        let args = [&member.sid, &n, &member.period, &member.granted, force, &keep, &retention, META_REAPED];
        let reply = match self.call(&script::REAP, &keys, &args).await {
            // It is closed; a failover may forget that, and then it is closed once more.
            Err(StoreError::Thin { reply, .. }) => *reply,
            answer => answer?,
        };
        let reaped = Reaped::read(&reply)?;
        self.note_reaped(account, member, &reaped);
        Ok(reaped)
    }

    fn note_reaped(&self, account: &Name, member: &Member, reaped: &Reaped) {
        let answer = match reaped {
            Reaped::Closed { how, bill } => {
                // Of a blind or lost lease nobody knows what became of the units that went back: all may be owed.
                let (reason, lost) = match how.as_str() {
                    "lost" => ("lost", bill.returned),
                    "blind" => ("blind", bill.returned),
                    _ => ("rollback", bill.excess),
                };
                if !lost.is_zero() {
                    metrics::counter!("voxgate_unrecoverable_units_total", "reason" => reason)
                        .increment(lost.get());
                }
                match how.as_str() {
                    "blind" => "blind",
                    "lost" => "lost",
                    "forced" => "forced",
                    _ => "reaped",
                }
            }
            Reaped::NotDue => "not_due",
            Reaped::Unknown => "unknown",
            Reaped::Corrupt(key) => {
                tracing::error!(%account, sid = member.sid, n = member.n, key, "lease quarantined: its budget stays held");
                "corrupt"
            }
        };
        metrics::counter!("voxgate_reaped_total", "answer" => answer).increment(1);
    }

    pub(super) async fn members(&self, words: &[&str]) -> Result<Vec<String>, StoreError> {
        list(&self.command(words).await?)
    }

    /// The store's clock, unix milliseconds.
    pub(super) async fn store_now(&self) -> Result<u64, StoreError> {
        let parts = self.members(&["TIME"]).await?;
        let part = |i: usize| parts.get(i).and_then(|text| text.parse::<u64>().ok());
        let now =
            part(0).zip(part(1)).map(|(s, us)| s * 1000 + us / 1000).ok_or(StoreError::Odd("TIME".into()))?;
        self.heard(now);
        Ok(now)
    }
}

impl Quota {
    /// The store's clock, unix seconds.
    pub(super) async fn store_seconds(&self) -> Result<i64, StoreError> {
        let ms = self.store_now().await?;
        i64::try_from(ms / 1000).map_err(|_| StoreError::Odd("TIME".into()))
    }
}

/// The texts of a list.
fn list(reply: &Reply) -> Result<Vec<String>, StoreError> {
    match reply {
        Reply::List(all) => Ok(all.iter().filter_map(accounts::text).collect()),
        Reply::Nil | Reply::Int(_) | Reply::Bulk(_) | Reply::Status(_) => {
            Err(StoreError::Odd("no list".into()))
        }
    }
}

const META_REAPED: &str = r#"{"ending":"","worker":""}"#;

/// Which accounts were entered among the active ones lately, by this process.
#[derive(Default)]
pub(super) struct Active(std::sync::Mutex<std::collections::HashMap<Name, Instant>>);

impl Active {
    /// Whether the account must be entered (again).
    pub(super) fn due(&self, account: &Name) -> bool {
        let entered = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        entered.get(account).is_none_or(|at| at.elapsed() > crate::limits::ACTIVE_REFRESH)
    }

    /// Accounts entered by this process not longer ago than the store keeps them.
    fn known(&self) -> Vec<Name> {
        let entered = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let fresh = entered.iter().filter(|(_, at)| at.elapsed() < crate::limits::ACTIVE_REFRESH);
        fresh.map(|(account, _)| account.clone()).collect()
    }

    /// The account has been entered. Old entries go when there are many.
    pub(super) fn done(&self, account: &Name) {
        let mut entered = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if entered.len() >= ENTERED_MAX {
            entered.retain(|_, at| at.elapsed() < Duration::from_secs(60));
        }
        if entered.len() >= ENTERED_MAX {
            entered.clear();
        }
        entered.insert(account.clone(), Instant::now());
    }
}

/// Accounts remembered by one process, so that the map stays bounded; forgetting one costs a call.
const ENTERED_MAX: usize = 100_000;
