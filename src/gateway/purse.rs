//! Hold to worker: prices what waits, pays for it, and hands it over, in this order and never in another.
//!
//! At most one admit is in flight, and its future is never dropped half way. What was granted and not taken by the
//! worker's socket is waste, to the chunk. One exit settles.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::hold::Taken;
use super::session::Line;
use crate::audio::{AudioFault, Meter};
use crate::ending::Ending;
use crate::limits;
use crate::quota::store::StoreError;
use crate::quota::{Admission, Lease, Refusal, Settlement};
use crate::units::Units;
use crate::wire::deepgram::ToWorker;
use crate::worker::{Feed, Link, Undelivered, WorkerGone};

/// Everything of a stream that costs.
pub(super) struct Purse<'a> {
    line: &'a Line,
    lease: Lease,
    beat: Interval,
    /// When audio was last paid for; [`limits::LEASE_IDLE`] later the envelope goes back.
    spoke: Instant,
    rested: bool,
    /// What was handed over so far.
    meter: Meter,
    digest: Option<Sha256>,
    /// The worker, from the first audio on.
    feed: Option<Feed>,
    give: Option<oneshot::Sender<Link>>,
    worker: String,
    /// Texts that came before the first audio.
    early: Vec<ToWorker>,
}

impl<'a> Purse<'a> {
    pub(super) fn new(line: &'a Line, lease: Lease, meter: Meter, give: oneshot::Sender<Link>) -> Self {
        let now = Instant::now();
        let mut beat = interval_at(now + limits::HEARTBEAT, limits::HEARTBEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        line.learn(&lease);
        Self {
            line,
            lease,
            beat,
            spoke: now,
            rested: false,
            meter,
            digest: line.core.settings.sha256.then(Sha256::new),
            feed: None,
            give: Some(give),
            worker: String::new(),
            early: Vec::new(),
        }
    }

    /// Pays and forwards until the client, the budget, the worker or a drain ends it; then settles.
    pub(super) async fn run(mut self) -> Paid {
        let ending = loop {
            let taken = match self.attend(self.line.hold.take()).await {
                Ok(taken) => taken,
                Err(ending) => break ending,
            };
            let done = match taken {
                Taken::Audio(batch) => self.pay(batch).await,
                Taken::Say(text) => {
                    self.say(text);
                    Ok(())
                }
                Taken::Finish => Err(Ending::ClientDone),
            };
            if let Err(ending) = done {
                break ending;
            }
        };
        self.line.stop.ask(ending);
        self.line.hold.close();
        if let Some(feed) = &self.feed {
            feed.finish(ToWorker::CloseStream.text());
        }
        // A link that nobody was given would keep the downlink waiting.
        self.give = None;
        let first = self.line.stop.ending().unwrap_or(ending);
        Box::pin(self.settle(first)).await
    }

    async fn settle(self, ending: Ending) -> Paid {
        let sha256 =
            self.digest.map_or_else(|| EMPTY_SHA256.to_owned(), |digest| hex::encode(digest.finalize()));
        let linked = self.feed.is_some();
        let (seconds, channels) = (self.meter.seconds(), self.meter.channels().unwrap_or(1));
        let settlement = self.lease.settle(ending, &self.worker).await;
        Paid { settlement, seconds, channels, sha256, worker: self.worker, linked }
    }

    /// Pays for a batch and hands it over.
    async fn pay(&mut self, batch: Vec<Bytes>) -> Result<(), Ending> {
        (self.spoke, self.rested) = (Instant::now(), false);
        let (after, cost) = price(&self.meter, &batch).map_err(|fault| self.audio_fault(&fault))?;
        let meters = &self.line.core.meters;
        meters.received_seconds.add(milliseconds(&after).saturating_sub(milliseconds(&self.meter)));
        self.ready().await?;
        if cost.is_zero() {
            return self.deliver(batch, after, cost).await;
        }
        match self.admit(cost, &batch).await? {
            Answer::Granted => self.deliver(batch, after, cost).await,
            Answer::Refused { left, why } => Box::pin(self.pay_parts(batch, left, why)).await,
        }
    }

    /// One admit; what leaves nothing to be done ends the stream.
    async fn admit(&mut self, cost: Units, batch: &[Bytes]) -> Result<Answer, Ending> {
        let meters = &self.line.core.meters;
        // Boxed: idle streams are many, and need not carry the room for a call that is rare for them.
        match self.lease.admit(cost).await {
            Ok(Admission::Grant) => Ok(Answer::Granted),
            Ok(Admission::Refuse { left, why }) => Ok(Answer::Refused { left, why }),
            Ok(Admission::Lapse) => {
                meters.lapsed.increment(count(batch));
                Err(Ending::LeaseLapsed)
            }
            Err(error) => {
                meters.failed.increment(count(batch));
                Err(store_fault(&error))
            }
        }
    }

    /// The last units: as many whole samples as they pay for, from wherever some are left, then the end.
    async fn pay_parts(&mut self, batch: Vec<Bytes>, left: Units, why: Refusal) -> Result<(), Ending> {
        let (mut rest, mut left, mut why) = (batch, left, why);
        for _ in 0..PARTS_MAX {
            let (part, after, cost) = cut(&self.meter, &rest, left);
            if cost.is_zero() {
                break;
            }
            match self.admit(cost, &rest).await? {
                Answer::Granted => {
                    rest = behind(&rest, part.iter().map(Bytes::len).sum());
                    self.deliver(part, after, cost).await?;
                }
                // Another stream of the session was quicker.
                Answer::Refused { left: now, why: because } => {
                    (left, why) = (now, because);
                    continue;
                }
            }
            let (after, cost) = price(&self.meter, &rest).map_err(|fault| self.audio_fault(&fault))?;
            if cost.is_zero() {
                return self.deliver(rest, after, cost).await;
            }
            match self.admit(cost, &rest).await? {
                Answer::Granted => return self.deliver(rest, after, cost).await,
                Answer::Refused { left: now, why: because } => (left, why) = (now, because),
            }
        }
        let ending = refusal_ending(&why);
        self.line.note_refusal(why);
        self.line.core.meters.refused.increment(count(&rest));
        Err(ending)
    }

    /// Waits, unpaid, until the worker can take a batch; asks for a worker first if there is none.
    async fn ready(&mut self) -> Result<(), Ending> {
        let feed = match &self.feed {
            Some(feed) => feed.clone(),
            None => self.connect().await?,
        };
        match self.attend_worker(feed.room()).await? {
            Ok(()) => Ok(()),
            Err(WorkerGone) => Err(Ending::WorkerGone),
        }
    }

    /// Waits for a worker to take something, but not for ever: one that takes nothing is as good as gone.
    async fn attend_worker<F: Future>(&mut self, work: F) -> Result<F::Output, Ending> {
        match self.attend(tokio::time::timeout(limits::WORKER_STUCK, work)).await? {
            Ok(done) => Ok(done),
            Err(_) => {
                self.line
                    .explain(format!("The worker takes no audio: nothing in {:?}.", limits::WORKER_STUCK));
                Err(Ending::WorkerGone)
            }
        }
    }

    async fn connect(&mut self) -> Result<Feed, Ending> {
        let line = self.line;
        // Boxed, so that its size is not part of every stream's for life.
        let asked = Box::pin(line.core.pool.link(&line.plan.listen.model, &line.plan.listen.worker_query));
        let link = self.attend(asked).await?.map_err(|none| {
            line.explain(none.to_string());
            Ending::WorkerGone
        })?;
        let feed = link.feed();
        link.worker().clone_into(&mut self.worker);
        for text in self.early.drain(..) {
            feed.say(text.text());
        }
        // Nobody waits for it only if the stream is over already.
        if self.give.take().is_none_or(|give| give.send(link).is_err()) {
            return Err(Ending::WorkerGone);
        }
        self.feed = Some(feed.clone());
        Ok(feed)
    }

    fn say(&mut self, text: ToWorker) {
        match &self.feed {
            Some(feed) => feed.say(text.text()),
            None if self.early.len() < EARLY_TEXTS_MAX => self.early.push(text),
            None => {}
        }
    }

    /// Hands a paid batch over, and says what became of its units.
    async fn deliver(&mut self, batch: Vec<Bytes>, after: Meter, cost: Units) -> Result<(), Ending> {
        let Some(feed) = self.feed.clone() else { return Err(Ending::WorkerGone) };
        let meters = &self.line.core.meters;
        meters.admitted.increment(count(&batch));
        let gained = milliseconds(&after).saturating_sub(milliseconds(&self.meter));
        meters.admitted_seconds.add(gained);
        let mut put = pin!(feed.put(batch.clone()));
        let (put, ending) = match self.attend_worker(put.as_mut()).await {
            Ok(put) => (put, None),
            Err(ending) => {
                let late = tokio::time::timeout(GRACE, put).await;
                let unsent = || Err(Undelivered { sent: batch.len().saturating_sub(feed.take_back()) });
                (late.unwrap_or_else(|_| unsent()), Some(ending))
            }
        };
        match put {
            Ok(()) => self.delivered(&batch, after, cost, gained),
            Err(Undelivered { sent }) => {
                self.undelivered(&batch, sent, cost);
                return Err(ending.unwrap_or(Ending::WorkerGone));
            }
        }
        ending.map_or(Ok(()), Err)
    }

    fn delivered(&mut self, batch: &[Bytes], after: Meter, cost: Units, gained: u64) {
        if !cost.is_zero() {
            self.lease.tally(cost);
        }
        self.meter = after;
        for chunk in batch {
            if let Some(digest) = &mut self.digest {
                digest.update(chunk);
            }
        }
        self.line.core.meters.forwarded_seconds.add(gained);
        self.line.learn(&self.lease);
        let _ = self.line.first_audio.set(Instant::now());
    }

    /// The socket took only the leading `sent` chunks: those are owed, the rest of the cost is not.
    fn undelivered(&mut self, batch: &[Bytes], sent: usize, cost: Units) {
        let (taken, rest) = batch.split_at(sent.min(batch.len()));
        let owed = match price(&self.meter, taken) {
            Ok((after, owed)) => {
                let gained = milliseconds(&after).saturating_sub(milliseconds(&self.meter));
                self.delivered(taken, after, owed, gained);
                owed
            }
            Err(_) => Units::ZERO,
        };
        let waste = cost.saturating_sub(owed);
        if !waste.is_zero() {
            self.lease.waste(waste);
        }
        self.line.core.meters.undelivered.increment(count(rest));
    }

    /// Waits for something that may be cut short, while the lease is kept alive; the stream's end wins.
    async fn attend<F: Future>(&mut self, work: F) -> Result<F::Output, Ending> {
        let mut work = pin!(work);
        loop {
            tokio::select! { biased;
                ending = self.line.stop.asked() => return Err(ending),
                done = &mut work => return Ok(done),
                ending = self.lease.ended() => return Err(ending),
                _ = self.beat.tick() => self.beat(),
            }
        }
    }

    fn beat(&mut self) {
        let quiet = self.spoke.elapsed() >= limits::LEASE_IDLE && self.line.hold.is_empty();
        if quiet && !self.rested {
            self.rested = self.lease.rest();
        }
        // A resting stream beats too: it keeps its place under the key's cap, and hears a revocation.
        self.lease.beat();
        self.line.learn(&self.lease);
    }

    fn audio_fault(&self, fault: &AudioFault) -> Ending {
        super::meters::fault("audio");
        self.line.explain(fault.to_string());
        Ending::AudioFault
    }
}

/// What the store decided, where the stream goes on or looks for its last units.
enum Answer {
    Granted,
    Refused { left: Units, why: Refusal },
}

/// What a stream came to.
pub(super) struct Paid {
    pub(super) settlement: Settlement,
    /// Audio handed over, in seconds.
    pub(super) seconds: f64,
    pub(super) channels: u16,
    /// Of the audio handed over, 64 hex digits.
    pub(super) sha256: String,
    /// Its name, or nothing.
    pub(super) worker: String,
    /// Whether there ever was a worker.
    pub(super) linked: bool,
}

/// What a batch costs, and the meter behind it.
fn price(meter: &Meter, batch: &[Bytes]) -> Result<(Meter, Units), AudioFault> {
    let mut after = meter.clone();
    let mut cost = Units::ZERO;
    for chunk in batch {
        cost = cost.saturating_add(after.price(chunk)?);
    }
    Ok((after, cost))
}

/// The leading part of a batch that costs at most `left`, the meter behind it, and its cost.
fn cut(meter: &Meter, batch: &[Bytes], left: Units) -> (Vec<Bytes>, Meter, Units) {
    let (mut part, mut after, mut cost) = (Vec::new(), meter.clone(), Units::ZERO);
    for chunk in batch {
        let fits = after.fit(chunk, left.saturating_sub(cost));
        let piece = chunk.slice(..fits);
        if let Ok(more) = after.price(&piece) {
            cost = cost.saturating_add(more);
            if !piece.is_empty() {
                part.push(piece);
            }
        }
        if fits < chunk.len() {
            break;
        }
    }
    (part, after, cost)
}

/// What lies behind the first `bytes` of a batch.
fn behind(batch: &[Bytes], bytes: usize) -> Vec<Bytes> {
    let mut skip = bytes;
    let mut rest = Vec::new();
    for chunk in batch {
        let here = skip.min(chunk.len());
        skip -= here;
        if here < chunk.len() {
            rest.push(chunk.slice(here..));
        }
    }
    rest
}

fn refusal_ending(why: &Refusal) -> Ending {
    match why {
        Refusal::Budget { .. } | Refusal::Key { .. } => Ending::BudgetSpent,
        Refusal::Held { .. } | Refusal::Streams { .. } | Refusal::Leases => Ending::BudgetHeld,
        Refusal::Session { .. } => Ending::SessionSpent,
        Refusal::Frozen | Refusal::Revoked | Refusal::Ended => Ending::Revoked,
        Refusal::Conflict | Refusal::NotYours => Ending::LeaseLapsed,
        Refusal::Lost => Ending::StoreCorrupt,
    }
}

fn store_fault(error: &StoreError) -> Ending {
    tracing::warn!(%error, "the store could not be asked about a chunk");
    if matches!(error, StoreError::Corrupt(_)) { Ending::StoreCorrupt } else { Ending::StoreBusy }
}

fn milliseconds(meter: &Meter) -> u64 {
    meter.rate().map_or(0, |rate| meter.samples().saturating_mul(1000) / u64::from(rate.max(1)))
}

fn count(batch: &[Bytes]) -> u64 {
    batch.len() as u64
}

/// How long a worker may still take what was paid for after the stream's end was asked for.
const GRACE: Duration = Duration::from_secs(2);
/// Pieces that the last units of a budget may come in: an old envelope, what others returned, races for both.
const PARTS_MAX: usize = 8;
/// Texts kept for a worker that is not there yet.
const EARLY_TEXTS_MAX: usize = 16;
/// Of no bytes at all: what `Metadata` says when nothing is hashed.
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

#[cfg(test)]
mod tests {
    use super::{behind, cut, price};
    use crate::audio::{Encoding, Format, Meter, Tariff};
    use crate::units::Units;
    use bytes::Bytes;

    fn meter() -> Meter {
        let format = Format::Raw { encoding: Encoding::Linear16, rate: 16_000, channels: 1 };
        Meter::new(format, Tariff::new(1000, false).expect("a sound price"))
    }

    fn chunk(bytes: usize) -> Bytes {
        Bytes::from(vec![1; bytes])
    }

    #[test]
    fn last_units_pay_whole_samples() {
        let batch = vec![chunk(320), chunk(320), chunk(320)];
        let (whole, cost) = price(&meter(), &batch).expect("sound audio");
        assert_eq!((cost, whole.samples()), (Units::from(30), 480));

        let (part, after, cost) = cut(&meter(), &batch, Units::from(15));
        assert_eq!(cost, Units::from(15));
        assert_eq!(after.samples(), 240);
        assert_eq!(part.iter().map(Bytes::len).collect::<Vec<_>>(), [320, 160]);
    }

    #[test]
    fn parts_and_rest_are_the_batch() {
        let batch = vec![Bytes::from_static(b"abc"), Bytes::from_static(b"defg"), Bytes::from_static(b"h")];
        for bytes in 0..=8 {
            let rest = behind(&batch, bytes);
            assert_eq!(rest.concat(), &b"abcdefgh"[bytes..]);
        }
    }

    #[test]
    fn nothing_left_pays_nothing() {
        let (part, _, cost) = cut(&meter(), &[chunk(320)], Units::ZERO);
        assert!(part.is_empty(), "{part:?}");
        assert!(cost.is_zero());
    }

    #[test]
    fn cut_never_costs_more() {
        for left in 0..40u32 {
            for size in [1, 3, 31, 32, 33, 1323] {
                let batch = vec![chunk(size); 4];
                let (part, after, cost) = cut(&meter(), &batch, Units::from(left));
                assert!(cost <= Units::from(left));
                let (again, priced) = price(&meter(), &part).expect("sound audio");
                assert_eq!((again.samples(), priced), (after.samples(), cost));
            }
        }
    }
}
