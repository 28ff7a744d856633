//! What outlives its stream: settles in flight, and a stream's last traces. Bounded by the streams there were.
//!
//! # States of a settle
//! sent → answered → done; or no answer → the same call again after a growing pause (the script repeats its first
//! answer) → … → the lease's deadline passes: left to the reaper, and counted. `unknown`, though audio was handed
//! over → joined again and settled once more, if the lease is there; else counted as unrecoverable.
//!
//! Written, but on fewer replicas than asked for → the same as no answer; at the deadline it stands as it is.
//!
//! Every answer is final. `overrun`, `conflict` and `corrupt` are bugs or damage: logged as errors, counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::answer::{Bill, Reserved, Settled};
use super::ask::{Deed, Place};
use super::script::{self, Settle};
use super::store::StoreError;
use super::work::Work;
use super::{Pause, Quota, TOMBSTONE_MS, ms};
use crate::ending::Ending;
use crate::limits::ACTIVE_WAIT;
use crate::units::Units;

impl Quota {
    /// Settles one attachment in the background; the handle resolves when that is over, one way or the other.
    pub(super) fn settle_later(
        &self,
        deed: Arc<Deed>,
        place: Place,
        last: bool,
        meta: String,
    ) -> JoinHandle<()> {
        let quota = self.clone();
        self.0.unsettled.fetch_add(1, Ordering::Relaxed);
        metrics::gauge!("voxgate_settles_pending").increment(1.0);
        self.0.tracker.spawn(async move {
            quota.settle_until_due(&deed, &place, last, meta).await;
            quota.0.unsettled.fetch_sub(1, Ordering::Relaxed);
            metrics::gauge!("voxgate_settles_pending").decrement(1.0);
        })
    }

    /// Background work that did not end with its stream: whatever it reserves is settled unused.
    pub(super) fn settle_stray_work(&self, deed: Arc<Deed>, work: JoinHandle<Work>) {
        let quota = self.clone();
        self.0.tracker.spawn(async move {
            if let Ok(Work::Asked(asked)) = work.await {
                for place in asked.places(&deed) {
                    quota.settle_until_due(&deed, &place, false, META_MOVED_ON.to_owned()).await;
                }
            }
            quota.forget_stream(&deed);
        });
    }

    async fn settle_until_due(&self, deed: &Deed, place: &Place, last: bool, meta: String) {
        let due = Instant::now() + self.0.settings.lifetime;
        let mut call = self.settle_call(deed, place, last, meta);
        let (mut pause, mut rejoined) = (Pause::new(), false);
        loop {
            match self.settle_once(deed, place.n, &call).await {
                Ok(Settled::WrongPeriod(period)) if !period.is_empty() && period != call.period => {
                    call.period = period
                }
                Ok(Settled::Unknown) if place.tally > Units::ZERO && !rejoined => {
                    // A failover may have forgotten the attachment, not the lease: joined again, its audio is charged.
                    match self.renew(deed, place).await {
                        Ok(Reserved::In { .. }) => rejoined = true,
                        Err(_) if Instant::now() < due => pause.wait().await,
                        Ok(_) | Err(_) => return self.note(deed, place, &Settled::Unknown),
                    }
                }
                Ok(settled) => return self.note(deed, place, &settled),
                Err(error @ StoreError::Thin { .. }) if Instant::now() >= due => {
                    tracing::warn!(%error, sid = deed.sid, n = place.n, "settled, but a failover may forget it");
                    metrics::counter!("voxgate_settles_total", "answer" => "thin").increment(1);
                    return;
                }
                Err(error) if Instant::now() >= due => {
                    tracing::warn!(%error, sid = deed.sid, n = place.n, "settle left to the reaper");
                    metrics::counter!("voxgate_settles_total", "answer" => "left_to_reaper").increment(1);
                    return;
                }
                Err(error) => pause.after(&error).await,
            }
        }
    }

    fn settle_call(&self, deed: &Deed, place: &Place, last: bool, meta: String) -> Settle {
        let settings = &self.0.settings;
        Settle {
            sid: deed.sid.clone(),
            n: place.n,
            period: place.period.clone(),
            owner: deed.owner().to_owned(),
            attachment: place.attachment.clone(),
            stream: last.then(|| deed.stream.clone()),
            tally: place.tally,
            waste: place.waste,
            epsilon: settings.epsilon,
            tombstone_ms: TOMBSTONE_MS,
            ledger_keep_ms: ms(settings.retention),
            meta,
        }
    }

    async fn settle_once(&self, deed: &Deed, n: u64, call: &Settle) -> Result<Settled, StoreError> {
        let (keys, account) = (self.spell(), deed.account());
        let keys = [
            keys.session(account, &deed.sid),
            keys.lease(account, &deed.sid, n),
            keys.quota(account, &deed.sid, n),
            keys.budget(account, &call.period),
            keys.leases(account),
            keys.ledger(account, &call.period),
            keys.streams(account, deed.owner()),
        ];
        let (keys, args) = (keys.each_ref().map(String::as_str), call.args());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (settled, _replay) = Settled::read(&self.call(&script::SETTLE, &keys, &args).await?)?;
        Ok(settled)
    }

    fn note(&self, deed: &Deed, place: &Place, settled: &Settled) {
        metrics::counter!("voxgate_settles_total", "answer" => settled.word()).increment(1);
        let booked = matches!(settled, Settled::Left | Settled::Closed(_) | Settled::Reaped(_));
        if booked {
            metrics::counter!("voxgate_units_total", "fate" => "tallied").increment(place.tally.get());
        } else if !place.tally.is_zero() {
            metrics::counter!("voxgate_unrecoverable_units_total", "reason" => "unsettled")
                .increment(place.tally.get());
        }
        match settled {
            Settled::Closed(Bill { excess, .. }) if !excess.is_zero() => {
                metrics::counter!("voxgate_unrecoverable_units_total", "reason" => "rollback")
                    .increment(excess.get());
                tracing::error!(
                    sid = deed.sid,
                    n = place.n,
                    excess = excess.get(),
                    "store lost writes: audio beyond the grant"
                );
            }
            Settled::Reaped(bill) if place.tally > Units::ZERO => {
                tracing::warn!(
                    sid = deed.sid,
                    n = place.n,
                    charged = bill.charged.get(),
                    "lease was reaped under its stream"
                );
            }
            Settled::Overrun => {
                // A bug, or a failover: the quota key that it drew on is older than what it was granted.
                metrics::counter!("voxgate_unrecoverable_units_total", "reason" => "rollback")
                    .increment(place.tally.saturating_sub(place.granted).get());
                tracing::error!(
                    sid = deed.sid,
                    n = place.n,
                    tally = place.tally.get(),
                    granted = place.granted.get(),
                    "settle of more than was granted: left to the reaper"
                );
            }
            Settled::Conflict | Settled::NotYours | Settled::WrongPeriod(_) | Settled::Corrupt(_) => {
                tracing::error!(
                    sid = deed.sid,
                    n = place.n,
                    answer = settled.word(),
                    "settle was not accepted"
                );
            }
            Settled::Unknown if !place.tally.is_zero() => {
                tracing::error!(
                    sid = deed.sid,
                    n = place.n,
                    tally = place.tally.get(),
                    "store no longer knows the lease: its audio is charged to nobody, unless it was reaped long ago"
                );
            }
            Settled::Left | Settled::Closed(_) | Settled::Reaped(_) | Settled::Unknown => {}
        }
    }

    /// Takes a stream that holds no lease out of its key's live ones.
    pub(super) fn forget_stream(&self, deed: &Deed) {
        let (quota, key) = (self.clone(), self.spell().streams(deed.account(), deed.owner()));
        let stream = deed.stream.clone();
        self.0.tracker.spawn(async move {
            if let Err(error) = quota.command(&["ZREM", &key, &stream]).await {
                tracing::debug!(%error, "a stream's place ends with its deadline instead");
            }
        });
    }

    /// Keeps a stream that holds no lease among its key's live ones.
    pub(super) async fn keep_stream(&self, deed: &Deed) {
        let key = self.spell().streams(deed.account(), deed.owner());
        let deadline = (self.now_ms() + i64::try_from(ms(self.0.settings.lifetime)).unwrap_or(0)).to_string();
        if let Err(error) = self.command(&["ZADD", &key, "XX", "GT", &deadline, &deed.stream]).await {
            tracing::debug!(%error, "heartbeat of a resting stream got no answer");
        }
    }

    /// Whether the key was taken away, or its account frozen, since the stream began.
    pub(super) async fn key_revoked(&self, deed: &Deed) -> Result<bool, StoreError> {
        let (account, field) = (self.spell().account(deed.account()), format!("key:{}", deed.owner()));
        let frozen = self.command(&["HGET", &account, "frozen"]).await?;
        if super::accounts::text(&frozen).is_some_and(|flag| flag == "1") {
            return Ok(true);
        }
        let digest = self.command(&["HGET", &account, &field]).await?;
        let Some(digest) = super::accounts::text(&digest) else { return Ok(true) };
        let flag = self.command(&["HGET", &self.spell().key(&digest), "revoked"]).await?;
        Ok(super::accounts::text(&flag).is_none_or(|flag| flag == "1"))
    }

    /// Enters an account among the active ones, so that a reaper finds what a crash would leave. Where its own place can't
    /// be had, as on a dead primary, another one does: reapers read them all.
    pub(super) async fn remember(&self, account: &super::Name) -> Result<(), StoreError> {
        if self.0.active.due(account) { self.enter(account).await } else { Ok(()) }
    }

    /// The same, whether it was done lately or not.
    pub(super) async fn enter(&self, account: &super::Name) -> Result<(), StoreError> {
        let now = self.now_ms().to_string();
        let mut failed = None;
        for key in self.spell().active_places(account) {
            let zadd = ["ZADD", &key, "GT", &now, account.as_str()];
            match tokio::time::timeout(ACTIVE_WAIT, self.command_once(&zadd)).await {
                Ok(Ok(_)) => {
                    self.0.active.done(account);
                    return Ok(());
                }
                Ok(Err(error)) => failed = Some(error),
                Err(_) => failed = Some(StoreError::Late(ACTIVE_WAIT)),
            }
        }
        Err(failed.unwrap_or_else(|| StoreError::Odd("no place among the active ones".into())))
    }
}

/// What a ledger row says beside its numbers, at most 256 bytes.
pub(super) fn meta(ending: Ending, note: &str) -> String {
    let note: String =
        note.chars().filter(|c| c.is_ascii_graphic() && *c != '"' && *c != '\\').take(64).collect();
    format!(r#"{{"ending":"{}","worker":"{note}"}}"#, ending.word())
}

/// Of a row whose stream went on to another lease, or rests.
pub(super) const META_MOVED_ON: &str = r#"{"ending":"moved_on","worker":""}"#;
