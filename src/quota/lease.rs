//! One stream's claim on its session's envelope: admit, refill, doubt, heartbeat, the end.
//!
//! # States
//! | state | `on` | `ahead` | left by |
//! |---|---|---|---|
//! | drawing | a place | – | low water: a refill starts in the background |
//! | drawing, refill ready | a place | a place | `admit` refused: the old place is left, the new one drawn on |
//! | resting | – | – | the next `admit` asks for a place |
//! | ended | – | – | `settle` took everything |
//!
//! # Failures of `admit`
//! | the store | done |
//! |---|---|
//! | certainly did not run it (busy, away, refuses) | the same call again after a short wait, until `hold` |
//! | may have run it (connection lost, stalled, no answer within `hold`) | the cost is waste; this lease is settled; the next one is asked for |
//! | has no quota key | `Lapse` |
//! | holds a corrupt value, denies access | the error, at once |
//!
//! Background work is one task at a time; its result is taken by the next `admit`, or by [`Lease::ended`]. Between a
//! grant and its [`Lease::tally`] or [`Lease::waste`] the place is never left: the units belong to that lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::answer::Admitted;
use super::ask::{Ask, Deed, Place, Size, audio};
use super::settler::meta;
use super::store::{Charge, StoreError};
use super::work::{AskError, Asked, Work, beat, run_ask};
use super::{Account, Admission, Name, OpenError, Pause, Quota, Refusal, Settlement, Terms, pauses};
use crate::ending::Ending;
use crate::limits::{CHUNK_ASKS_MAX, CHUNK_DOUBTS_MAX, REFUSED_PAUSE, SETTLE_WAIT, STORE_PATIENCE};
use crate::units::Units;

mod leave;

/// One stream's claim on its session's envelope. One admit at a time, by `&mut`.
pub struct Lease {
    quota: Quota,
    deed: Arc<Deed>,
    /// The account as last read.
    account: Arc<Account>,
    on: Option<Place>,
    ahead: Option<Place>,
    /// Highest lease number heard of.
    current: u64,
    /// Highest lease left in doubt: it is not joined again.
    barred: u64,
    minted: u32,
    /// The next envelope's size.
    want: Units,
    free: Units,
    cap: Units,
    work: Option<JoinHandle<Work>>,
    refused: Option<(Instant, Units, Refusal)>,
    settles: Vec<JoinHandle<()>>,
    over: Option<Ending>,
    /// A grant that nobody has said the fate of yet.
    granted: bool,
    /// The session has gone on to a later lease: leave `on` before the next admit.
    outdated: bool,
    total: Settlement,
}

/// Whether a place could be had.
enum Step {
    Moved,
    Refused(Refusal),
}

impl Lease {
    pub(super) async fn open(quota: Quota, terms: Terms) -> Result<Self, OpenError> {
        let minted = || uuid::Uuid::new_v4().simple().to_string();
        let session = terms
            .session
            .clone()
            .or_else(|| Name::parse(&minted()))
            .ok_or(OpenError::Refused(Refusal::NotYours))?;
        let stream = format!("g{}.{}", quota.0.id, quota.mint());
        let rate = terms.units_per_second;
        let deed = Arc::new(Deed::new(terms, session, stream));
        let settings = &quota.0.settings;
        let (want, floor) = (audio(settings.envelope_first, rate), audio(settings.floor, rate));
        let patience = settings.hold.min(STORE_PATIENCE);
        let until = Instant::now() + patience;
        let late = || StoreError::Away(format!("no answer within {patience:?}"));
        tokio::time::timeout_at(until, quota.remember(deed.account())).await.map_err(|_| late())??;
        let mut lease = Self {
            account: deed.terms.account.clone(),
            deed,
            on: None,
            ahead: None,
            current: 0,
            barred: 0,
            minted: 0,
            want,
            free: Units::ZERO,
            cap: Units::ZERO,
            work: None,
            refused: None,
            settles: Vec::new(),
            over: None,
            granted: false,
            outdated: false,
            total: Settlement::default(),
            quota,
        };
        metrics::gauge!("voxgate_leases_open").increment(1.0);
        let mut place = lease.ask(1, Size::new(want, floor, floor), until).await;
        if place.as_ref().is_ok_and(|place| place.left < floor) {
            // The session's lease has nothing left for a newcomer: it needs the next one, or a refusal.
            lease.on = place.ok();
            lease.leave_on(None);
            let n = lease.current + 1;
            place = lease.ask(n, Size::new(want, floor, floor), until).await;
        }
        match place {
            Ok(place) => {
                lease.on = Some(place);
                Ok(lease)
            }
            Err(error) => {
                match lease.work.take() {
                    Some(work) => lease.quota.settle_stray_work(lease.deed.clone(), work),
                    None => lease.quota.forget_stream(&lease.deed),
                }
                Err(match error {
                    AskError::Refused(refusal) => OpenError::Refused(refusal),
                    AskError::Store(error) => OpenError::Store(error),
                })
            }
        }
    }

    /// Asks as background work does, and waits until `until`: what is still on its way then is absorbed later.
    async fn ask(&mut self, n: u64, size: Size, until: Instant) -> Result<Place, AskError> {
        self.send_ask(n, size, until);
        let Some(work) = &mut self.work else { return Err(AskError::Store(on_its_way())) };
        let Ok(done) = tokio::time::timeout_at(until, work).await else {
            return Err(AskError::Store(on_its_way()));
        };
        self.work = None;
        match done {
            Ok(Work::Asked(asked)) => self.take_asked(asked),
            Ok(Work::Beat { .. }) | Err(_) => {
                Err(AskError::Store(StoreError::Away("asking panicked".into())))
            }
        }
    }

    fn send_ask(&mut self, n: u64, size: Size, until: Instant) {
        let ask = self.compose(n, size);
        let (quota, deed) = (self.quota.clone(), self.deed.clone());
        self.work = Some(tokio::spawn(async move { Work::Asked(run_ask(quota, deed, ask, until).await) }));
    }

    /// The session's public name: what the client may come back with.
    pub fn session(&self) -> &str {
        self.deed.session.as_str()
    }

    /// Units that this stream may still use as far as known: its envelope and what was free at the last reserve.
    pub fn left(&self) -> Units {
        let places = self.on.iter().chain(&self.ahead);
        places.fold(self.free, |sum, place| sum.saturating_add(place.left))
    }

    /// The account's cap in force, as last heard.
    pub fn cap(&self) -> Units {
        self.cap
    }

    /// Takes `cost` units (more than 0), or says why not.
    ///
    /// Refills, doubt and a slow store are dealt with inside, for at most [`super::Settings::hold`]; then the store's
    /// error is given and nothing counts as taken. Never drop this future half way: units would be taken unseen.
    pub async fn admit(&mut self, cost: Units) -> Result<Admission, StoreError> {
        let until = Instant::now() + self.quota.0.settings.hold;
        let (mut pause, mut asks, mut doubts) = (Pause::new(), 0, 0);
        debug_assert!(!self.granted, "a grant's fate is told before the next admit");
        loop {
            self.absorb_finished().await;
            if std::mem::take(&mut self.outdated) {
                self.leave_on(None);
            }
            let Some(place) = &self.on else {
                match Box::pin(self.step(cost, until)).await? {
                    Step::Moved => continue,
                    Step::Refused(why) => return Ok(Admission::Refuse { left: Units::ZERO, why }),
                }
            };
            match self.quota.admit(&self.deed, place.n, cost, until).await {
                Ok(Admitted::Grant(left)) => {
                    self.grant(left);
                    self.quota.0.meters.admitted.increment(cost.get());
                    return Ok(Admission::Grant);
                }
                Ok(Admitted::Refuse(left)) => {
                    self.set_left(left);
                    asks += 1;
                    if asks > CHUNK_ASKS_MAX {
                        let why = self.refused.clone().map_or(Refusal::Leases, |(_, _, why)| why);
                        return Ok(Admission::Refuse { left, why });
                    }
                    if let Step::Refused(why) = Box::pin(self.step(cost, until)).await? {
                        return Ok(Admission::Refuse { left, why });
                    }
                }
                Ok(Admitted::Lapse) => return Ok(Admission::Lapse),
                Ok(Admitted::Corrupt) => {
                    return Err(StoreError::Corrupt(self.quota.quota_key(&self.deed, place.n)));
                }
                Err(error) if error.charge() == Charge::Unknown => {
                    self.doubt(cost);
                    doubts += 1;
                    if doubts > CHUNK_DOUBTS_MAX || Instant::now() >= until {
                        return Err(error);
                    }
                    pause.wait().await;
                }
                Err(error) if pauses(&error) && Instant::now() < until => pause.wait().await,
                Err(error) => return Err(error),
            }
        }
    }

    /// The units of the last grant went to the worker.
    pub fn tally(&mut self, cost: Units) {
        if let Some(place) = self.spoken() {
            place.tally = place.tally.saturating_add(cost);
        }
        self.quota.0.meters.handed_over.increment(cost.get());
        self.total.tally = self.total.tally.saturating_add(cost);
    }

    /// The units of the last grant were not handed over.
    pub fn waste(&mut self, cost: Units) {
        if let Some(place) = self.spoken() {
            place.waste = place.waste.saturating_add(cost);
        }
        self.quota.0.meters.wasted.increment(cost.get());
        self.total.waste = self.total.waste.saturating_add(cost);
    }

    /// The place that the last grant came from. There is always one: it is not left before.
    fn spoken(&mut self) -> Option<&mut Place> {
        self.granted = false;
        if self.on.is_none() {
            tracing::error!(sid = self.deed.sid, "units without a lease: a bug");
            debug_assert!(false, "a lease was left under a grant");
        }
        self.on.as_mut()
    }

    /// Units of this stream, so far, that were taken or may have been taken, and are not owed.
    pub fn wasted(&self) -> Units {
        self.total.waste
    }

    /// Renews the lease and the stream's place among its key's live ones, in the background. Call it every
    /// [`crate::limits::HEARTBEAT`].
    pub fn beat(&mut self) {
        if self.work.is_none() {
            let places: Vec<Place> = self.on.iter().chain(&self.ahead).cloned().collect();
            let (quota, deed) = (self.quota.clone(), self.deed.clone());
            self.work = Some(tokio::spawn(async move { beat(&quota, &deed, &places).await }));
        }
    }

    /// Resolves when the background found that the stream must end. Cancel safe; pending while all is well.
    pub async fn ended(&mut self) -> Ending {
        loop {
            if let Some(ending) = self.over {
                return ending;
            }
            match &mut self.work {
                Some(work) => {
                    let done = work.await;
                    self.work = None;
                    self.absorb(done.ok());
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Nobody spoke for a while: gives the envelope back, and says whether it did. The next admit asks for a place again.
    /// Does nothing while a grant's fate is open.
    pub fn rest(&mut self) -> bool {
        if !self.granted {
            self.leave_all(None);
        }
        !self.granted
    }

    /// The end: settles what was handed over.
    ///
    /// Waits at most [`SETTLE_WAIT`] for the store, not at all when its silence is the ending; what is not answered by
    /// then goes on in the background until the lease's deadline, and at last falls to the reaper. `note` (the worker's
    /// name) goes into the ledger row.
    pub async fn settle(mut self, ending: Ending, note: &str) -> Settlement {
        let meta = meta(ending, note);
        let wait = if ending == Ending::StoreBusy { Duration::ZERO } else { SETTLE_WAIT };
        let until = Instant::now() + wait;
        let waiting = tokio::time::timeout_at(until, async {
            if let Some(work) = &mut self.work {
                let done = work.await;
                self.work = None;
                self.absorb(done.ok());
            }
        });
        let _ = waiting.await;
        if let Some(work) = self.work.take() {
            self.quota.settle_stray_work(self.deed.clone(), work);
        }
        self.leave_all(Some(&meta));
        let settles = std::mem::take(&mut self.settles);
        let all = async {
            for settle in settles {
                let _ = settle.await;
            }
        };
        self.total.done = tokio::time::timeout_at(until, all).await.is_ok();
        self.total
    }

    fn grant(&mut self, left: Units) {
        self.granted = true;
        self.set_left(left);
        let low = self.on.as_ref().is_some_and(|place| left.get() * 4 < place.granted.get());
        let refused = self.refused.as_ref().is_some_and(|(at, ..)| at.elapsed() < REFUSED_PAUSE);
        if low && !refused && self.ahead.is_none() && self.work.is_none() {
            let size = Size::new(self.grow(), self.floor(), Units::from(1));
            self.send_ask(self.current + 1, size, Instant::now() + self.quota.0.settings.hold);
        }
    }

    fn set_left(&mut self, left: Units) {
        if let Some(place) = &mut self.on {
            place.left = left;
        }
    }

    /// Doubles the next envelope, up to the longest.
    fn grow(&mut self) -> Units {
        let longest = audio(self.quota.0.settings.envelope_longest, self.deed.terms.units_per_second);
        self.want = self.want.saturating_add(self.want).min(longest);
        self.want
    }

    fn compose(&mut self, n: u64, size: Size) -> Ask {
        self.minted += 1;
        Ask::new(n, self.minted, size, self.account.clone(), self.quota.now_ms() / 1000)
    }

    /// Gets a place that `cost` can be taken from, and leaves the one that it can't. Rare, and boxed by its caller, so
    /// that every stream's task does not carry room for it.
    async fn step(&mut self, cost: Units, until: Instant) -> Result<Step, StoreError> {
        if self.ahead.is_none()
            && let Some(work) = &mut self.work
        {
            let Ok(done) = tokio::time::timeout_at(until, work).await else {
                return Err(on_its_way());
            };
            self.work = None;
            self.absorb(done.ok());
        }
        if let Some(ending) = self.over {
            return Ok(Step::Refused(if ending == Ending::Revoked {
                Refusal::Revoked
            } else {
                Refusal::Lost
            }));
        }
        if let Some(next) = self.ahead.take() {
            self.leave_on(None);
            self.on = Some(next);
            return Ok(Step::Moved);
        }
        // While the old envelope has something, only a whole chunk is worth a move; then anything is.
        let least =
            if self.on.as_ref().is_some_and(|place| !place.left.is_zero()) { cost } else { Units::from(1) };
        let returned = self.finish_settles(until).await;
        if let Some((at, asked, why)) = self.refused.as_ref().filter(|_| !returned)
            && at.elapsed() < REFUSED_PAUSE
            && *asked <= least
        {
            return Ok(Step::Refused(why.clone()));
        }
        let resumes = self.on.is_none() && self.current > self.barred;
        let n = if resumes { self.current } else { self.current + 1 };
        let size = Size::new(self.want.max(cost), self.floor(), least);
        let mut pause = Pause::new();
        let mut asked = self.ask(n, size, until).await;
        while matches!(asked, Err(AskError::Refused(Refusal::Leases))) && Instant::now() < until {
            // Quiet sockets of the session sit on older leases until their next heartbeat.
            pause.wait().await;
            asked = self.ask(self.current + 1, size, until).await;
        }
        match asked {
            Ok(place) => {
                self.leave_on(None);
                self.on = Some(place);
                Ok(Step::Moved)
            }
            Err(AskError::Refused(why)) => {
                self.refused = Some((Instant::now(), least, why.clone()));
                Ok(Step::Refused(why))
            }
            Err(AskError::Store(error)) => Err(error),
        }
    }

    fn floor(&self) -> Units {
        audio(self.quota.0.settings.floor, self.deed.terms.units_per_second)
    }

    /// A take whose answer was lost: it counts as waste, and the lease is left for the next one.
    fn doubt(&mut self, cost: Units) {
        self.waste(cost);
        self.barred = self.barred.max(self.on.as_ref().map_or(0, |place| place.n));
        self.leave_on(None);
        self.on = self.ahead.take();
    }

    /// Takes the result of background work that has finished; never waits for one that has not.
    async fn absorb_finished(&mut self) {
        if self.work.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(work) = self.work.take()
        {
            self.absorb(work.await.ok());
        }
    }

    fn absorb(&mut self, work: Option<Work>) {
        match work {
            Some(Work::Asked(asked)) => match self.take_asked(asked) {
                Ok(place) => self.ahead = Some(place),
                Err(AskError::Refused(why)) => self.refused = Some((Instant::now(), Units::from(1), why)),
                Err(AskError::Store(error)) => tracing::debug!(%error, "refill got no answer"),
            },
            Some(Work::Beat { moved, over, free, cap }) => {
                self.over = self.over.or(over);
                self.free = free.unwrap_or(self.free);
                self.cap = cap.unwrap_or(self.cap);
                if let Some(n) = moved.filter(|n| *n > self.current) {
                    // The others are in a later lease: draw there from now on.
                    self.current = n;
                    self.outdated = self.ahead.is_none();
                }
            }
            None => tracing::error!("background work of a lease panicked"),
        }
    }

    fn take_asked(&mut self, asked: Asked) -> Result<Place, AskError> {
        self.minted = self.minted.max(asked.ask.attachment);
        self.account = asked.ask.account;
        for (n, attachment, period) in &asked.strays {
            self.leave(Place::stray(&self.deed, *n, *attachment, period), false, None);
        }
        let (place, free, cap) = asked.end?;
        self.current = self.current.max(place.n);
        self.free = free.unwrap_or(self.free);
        self.cap = cap;
        self.refused = None;
        Ok(place)
    }
}

fn on_its_way() -> StoreError {
    StoreError::Away("a reserve is still on its way".into())
}

impl Drop for Lease {
    fn drop(&mut self) {
        metrics::gauge!("voxgate_leases_open").decrement(1.0);
    }
}
