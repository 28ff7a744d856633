//! What a stream sends off for: an ask, a heartbeat, and the calls that they and admission make.
//!
//! An ask runs in the foreground when a stream opens or its envelope is empty, in the background when the envelope
//! runs low. It is repeated until the store has answered; see `ask.rs` for its states. A heartbeat is tried once.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::answer::{Admitted, Reserved};
use super::ask::{Ask, Deed, Next, Place, Size};
use super::breaker::Lane;
use super::store::{Charge, Script, StoreError, code};
use super::{Pause, Quota, Refusal, pauses, script};
use crate::ending::Ending;
use crate::units::Units;

/// What background work found.
pub(super) enum Work {
    Asked(Asked),
    Beat { moved: Option<u64>, over: Option<Ending>, free: Option<Units>, cap: Option<Units> },
}

/// The end of one ask, and the attachments that it may have left behind.
pub(super) struct Asked {
    pub ask: Ask,
    pub strays: Vec<(u64, u32, String)>,
    pub end: Result<(Place, Option<Units>, Units), AskError>,
}

impl Asked {
    /// Every place that the ask got or may have got.
    pub(super) fn places(&self, deed: &Deed) -> Vec<Place> {
        let strays =
            self.strays.iter().map(|(n, attachment, period)| Place::stray(deed, *n, *attachment, period));
        strays.chain(self.end.iter().map(|(place, ..)| place.clone())).collect()
    }
}

pub(super) enum AskError {
    Refused(Refusal),
    Store(StoreError),
}

impl From<AskError> for StoreError {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Store(error) => error,
            AskError::Refused(refusal) => Self::Odd(format!("{refusal:?}")),
        }
    }
}

/// Asks until there is a place, a refusal, or no more time.
pub(super) async fn run_ask(quota: Quota, deed: Arc<Deed>, mut ask: Ask, until: Instant) -> Asked {
    let (mut pause, mut strays, mut in_doubt) = (Pause::new(), Vec::new(), false);
    let end = loop {
        match quota.reserve(&deed, &ask).await {
            Ok(reserved) => {
                let before = (ask.n, ask.attachment, ask.window.id.clone());
                match ask.answer(&deed, reserved) {
                    Next::In(place, free, cap) => break Ok((place, free, cap)),
                    Next::Again if ask.n == before.0 => {}
                    Next::Reread(now) => match quota.account(deed.account()).await {
                        Ok(Some(account)) => ask.reread(account, now),
                        Ok(None) => {
                            strays.extend(in_doubt.then_some(before));
                            break Err(AskError::Refused(Refusal::Revoked));
                        }
                        Err(error) => {
                            strays.extend(in_doubt.then_some(before));
                            break Err(AskError::Store(error));
                        }
                    },
                    Next::Again => {
                        strays.extend(in_doubt.then_some(before));
                        in_doubt = false;
                    }
                    Next::Refused(why) => {
                        strays.extend(in_doubt.then_some(before));
                        break Err(AskError::Refused(why));
                    }
                    Next::Corrupt(key) => break Err(AskError::Store(StoreError::Corrupt(key))),
                    Next::Restless => {
                        break Err(AskError::Store(StoreError::Away("the session moves too fast".into())));
                    }
                }
            }
            Err(error) => {
                // A script that is denied a command half way has done what stands before it.
                in_doubt |= error.charge() == Charge::Unknown || code::stopped_half_way(&error);
                if Instant::now() >= until || !(pauses(&error) || error.charge() == Charge::Unknown) {
                    strays.extend(in_doubt.then_some((ask.n, ask.attachment, ask.window.id.clone())));
                    break Err(AskError::Store(error));
                }
                pause.after(&error).await;
            }
        }
    };
    Asked { ask, strays, end }
}

/// One heartbeat: is the key still good, and where is the session?
pub(super) async fn beat(quota: &Quota, deed: &Deed, places: &[Place]) -> Work {
    let (mut moved, mut over, mut free, mut cap) = (None, None, None, None);
    if places.is_empty() {
        quota.keep_stream(deed).await;
    }
    for place in places {
        match quota.renew(deed, place).await {
            Ok(Reserved::In { free: f, cap: c, .. }) => (free, cap) = (f.or(free), Some(c)),
            Ok(Reserved::Moved { n, .. }) => moved = Some(n),
            Ok(Reserved::Ended | Reserved::NotYours | Reserved::Conflict) => over = Some(Ending::Revoked),
            Ok(Reserved::Lost | Reserved::Corrupt(_)) => over = Some(Ending::StoreCorrupt),
            // A closed or refused lease shows at the next admit, as a lapse.
            Ok(
                Reserved::Closed { .. }
                | Reserved::StalePeriod { .. }
                | Reserved::StalePlan { .. }
                | Reserved::Refuse { .. },
            ) => {}
            Err(error) => tracing::debug!(%error, "heartbeat got no answer"),
        }
    }
    // These keys may lie on another primary, whose death is no matter of this stream: no refill waits for it long.
    let revoked = tokio::time::timeout(ELSEWHERE, quota.key_revoked(deed));
    // A failover may have forgotten the entry by which a reaper would find what this gateway leaves behind.
    let (revoked, entered) = tokio::join!(revoked, quota.remember(deed.account()));
    match revoked {
        Ok(Ok(true)) => over = Some(Ending::Revoked),
        Ok(Ok(false)) => {}
        Ok(Err(error)) => tracing::debug!(%error, "heartbeat could not read its key"),
        Err(_) => tracing::debug!("heartbeat could not read its key in time"),
    }
    if let Err(error) = entered {
        tracing::debug!(%error, "heartbeat could not enter its account among the active ones");
    }
    Work::Beat { moved, over, free, cap }
}

/// How long a heartbeat waits for keys that may lie on another primary than its leases.
const ELSEWHERE: Duration = Duration::from_secs(1);

impl Quota {
    /// One admission, given up at `until`.
    pub(super) async fn admit(
        &self,
        deed: &Deed,
        n: u64,
        cost: Units,
        until: Instant,
    ) -> Result<Admitted, StoreError> {
        let (key, cost) = (self.quota_key(deed, n), cost.to_string());
        let (start, keys, args) = (Instant::now(), [key.as_str()], [cost.as_str()]);
        let reply = tokio::time::timeout_at(until, self.call(&script::ADMIT, &keys, &args)).await;
        let reply = reply.unwrap_or_else(|_| Err(self.overdue(start.elapsed())));
        self.0.meters.admit.record(start.elapsed());
        Admitted::read(&reply?)
    }

    /// An admit that was given up without an answer: it may have run. Counted as any call is that got none.
    fn overdue(&self, waited: Duration) -> StoreError {
        let late = StoreError::Late(self.0.settings.hold);
        self.0.breaker.begin(Lane::Admit).done::<()>(&Err(late.clone()));
        self.0.meters.script(&script::ADMIT).record(waited);
        self.failed(&script::ADMIT, &late);
        late
    }

    pub(super) fn quota_key(&self, deed: &Deed, n: u64) -> String {
        self.spell().quota(deed.account(), &deed.sid, n)
    }

    async fn reserve(&self, deed: &Deed, ask: &Ask) -> Result<Reserved, StoreError> {
        self.reserve_by(&script::RESERVE, deed, ask).await
    }

    async fn reserve_by(&self, script: &Script, deed: &Deed, ask: &Ask) -> Result<Reserved, StoreError> {
        let (keys, call) = self.reserve_call(deed, ask);
        let (keys, args) = (keys.each_ref().map(String::as_str), call.args());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let reserved = Reserved::read(&self.call(script, &keys, &args).await?)?;
        metrics::counter!("voxgate_reserves_total", "answer" => reserved.word()).increment(1);
        if let Some(now_ms) = reserved.now_ms() {
            self.heard(now_ms);
        }
        Ok(reserved)
    }

    pub(super) async fn renew(&self, deed: &Deed, place: &Place) -> Result<Reserved, StoreError> {
        let attachment =
            place.attachment.rsplit_once('.').and_then(|(_, minted)| minted.parse().ok()).unwrap_or(0);
        let size = Size::new(place.want, Units::from(1), Units::from(1));
        let start = super::ledger::period_order(&place.period).0;
        let mut ask = Ask::new(place.n, attachment, size, deed.terms.account.clone(), start);
        // The lease's own period, whatever has changed since; over, so that nothing is ever created.
        ask.window.id.clone_from(&place.period);
        ask.window.end = ask.window.start;
        self.reserve_by(&script::RENEW, deed, &ask).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{BREAKER_AFTER, BREAKER_FAILURES};
    use crate::quota::Settings;
    use crate::quota::store::Store;

    /// A store that answers no admit at all must not look well to new streams.
    #[tokio::test(start_paused = true)]
    async fn overdue_admits_open_the_breaker() {
        let quota = Quota::new(Store::open("embedded").unwrap(), Settings::default());
        for _ in 0..BREAKER_FAILURES {
            assert!(quota.gate().pass(std::future::ready(())).await.is_ok());
            assert_eq!(quota.overdue(Duration::ZERO).word(), "late");
            tokio::time::advance(BREAKER_AFTER / (BREAKER_FAILURES - 1)).await;
        }
        assert!(quota.gate().pass(std::future::ready(())).await.is_err());
    }
}
