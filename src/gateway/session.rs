//! One stream's life: open its lease, carry both directions, settle on the one way out, say goodbye.
//!
//! Two directions and the money between them are futures of one task, joined under one [`Stop`]. A panic in them
//! ends this stream only, and leaves its envelope to the reaper.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_util::sync::CancellationToken;

use super::hold::Hold;
use super::purse::{Paid, Purse};
use super::socket::{ClientSocket, Outbox};
use super::stop::Stop;
use super::{Core, auth, downlink, front, uplink};
use crate::audio::{Meter, Tariff};
use crate::ending::Ending;
use crate::limits;
use crate::quota::{Account, Key, Lease, Name, OpenError, Refusal as Refused, Terms};
use crate::wire::deepgram::{Listen, MetadataFacts, Model, Refusal, error, farewell, metadata};

/// A stream that was asked for and may be opened as far as anybody but the budget knows.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) request_id: String,
    pub(super) account: Arc<Account>,
    pub(super) key: Arc<Key>,
    pub(super) listen: Listen,
    pub(super) tariff: Tariff,
    /// The price of one second of one channel.
    pub(super) units_per_second: u32,
    /// The session to join, if one was named.
    pub(super) session: Option<Name>,
    pub(super) model: Model,
}

/// The way to the client before there is a socket.
pub(super) struct Door {
    /// Gets the session's name, or why there is none.
    pub(super) answer: oneshot::Sender<Result<String, Refusal>>,
    pub(super) upgrade: OnUpgrade,
    /// Counts the connection as long as the stream lives.
    pub(super) seat: Arc<front::Seat>,
}

/// Lives one stream from its reservation to its last Close frame.
pub(super) async fn live(core: Arc<Core>, plan: Plan, door: Door) {
    let started = Instant::now();
    // Boxed, as all that happens once: idle streams are many, and need not carry the room for it.
    let lease = match Box::pin(core.quota.open(plan.terms())).await {
        Ok(lease) => lease,
        Err(error) => {
            let refusal = refusal(&error);
            core.auth.refused(&plan.key, &error, &refusal);
            let _ = door.answer.send(Err(refusal));
            return;
        }
    };
    let _open = core.meters.open();
    let _seat = door.seat;
    let session = lease.session().to_owned();
    let created = jiff::Timestamp::now().to_string();
    let upgraded = match door.answer.send(Ok(session.clone())) {
        Ok(()) => tokio::time::timeout(limits::HEAD_TIME, door.upgrade).await.ok().and_then(Result::ok),
        Err(_) => None,
    };
    let line = Line::new(core, plan);
    let (ending, paid) = match upgraded.map(into_socket) {
        Some(socket) => line.carry(&mut socket.await, lease, &session, &created).await,
        None => {
            Box::pin(lease.settle(Ending::ClientGone, "")).await;
            (Ending::ClientGone, None)
        }
    };
    line.core.meters.ended(ending, started.elapsed().as_secs_f64());
    line.log(ending, started.elapsed(), paid.as_ref());
}

/// What the futures of one stream share.
pub(super) struct Line {
    pub(super) core: Arc<Core>,
    pub(super) plan: Plan,
    pub(super) stop: Stop,
    pub(super) hold: Hold,
    pub(super) outbox: Outbox,
    /// Cancelled once nobody is left to read words.
    pub(super) left: CancellationToken,
    /// A close code that says more than the ending does.
    pub(super) close_code: OnceLock<u16>,
    /// When the first audio was handed over.
    pub(super) first_audio: OnceLock<Instant>,
    /// Audio that the budget still pays for, in milliseconds.
    quota_left_ms: AtomicU64,
    /// What the client is told beside the ending's own words.
    explanation: Mutex<Option<String>>,
    refused: OnceLock<Refused>,
}

impl Line {
    fn new(core: Arc<Core>, plan: Plan) -> Self {
        Self {
            stop: Stop::new(&core.leave),
            hold: Hold::new(Arc::clone(&core.held)),
            outbox: Outbox::default(),
            left: CancellationToken::new(),
            close_code: OnceLock::new(),
            first_audio: OnceLock::new(),
            quota_left_ms: AtomicU64::new(0),
            explanation: Mutex::default(),
            refused: OnceLock::new(),
            core,
            plan,
        }
    }

    /// Carries both directions until the stream's end, settles, and says goodbye.
    async fn carry(
        &self,
        socket: &mut ClientSocket,
        lease: Lease,
        session: &str,
        created: &str,
    ) -> (Ending, Option<Paid>) {
        let meter = Meter::new(self.plan.listen.format, self.plan.tariff);
        let (give, take) = oneshot::channel();
        let purse = Purse::new(self, lease, meter, give);
        let carried = async {
            tokio::select! { biased;
                done = async { tokio::join!(purse.run(), downlink::run(self, take)) } => done,
                never = uplink::run(socket, self) => match never {},
            }
        };
        let Ok((paid, heard)) = AssertUnwindSafe(carried).catch_unwind().await else {
            self.core.meters.panics.increment(1);
            self.hold.close();
            Box::pin(self.say_goodbye(socket, Ending::Panicked, false)).await;
            return (Ending::Panicked, None);
        };
        let ending = self.stop.ending().unwrap_or(Ending::Panicked);
        if farewell(ending).is_some() {
            self.outbox.say(metadata(&MetadataFacts {
                request_id: &self.plan.request_id,
                sha256: &paid.sha256,
                created,
                duration: paid.seconds,
                channels: paid.channels,
                model: &self.plan.model,
                admitted: paid.settlement.tally,
                session_id: session,
                ending,
                worker_duration: heard,
            }));
        }
        Box::pin(self.say_goodbye(socket, ending, paid.linked)).await;
        (ending, Some(paid))
    }

    /// `Error` unless all went well, then one Close frame, then the client's half of it.
    async fn say_goodbye(&self, socket: &mut ClientSocket, ending: Ending, linked: bool) {
        let Some(farewell) = farewell(ending).filter(|_| !self.left.is_cancelled()) else { return };
        if let Some((variant, description)) = farewell.error {
            let told = self.explanation.lock().unwrap_or_else(PoisonError::into_inner).take();
            let message = told.as_deref().unwrap_or(description);
            self.outbox.say(error(variant, description, message, self.extras()));
        }
        let own = self.close_code.get().copied();
        let never_linked = (ending == Ending::WorkerGone && !linked).then_some(TRY_AGAIN);
        let code = own.or(never_linked).unwrap_or(farewell.close.code);
        let close = CloseFrame { code: code.into(), reason: farewell.close.reason.into() };
        socket.say_goodbye(&self.outbox, close, limits::CLIENT_CLOSE).await;
    }

    /// Takes over what the lease knows of the budget.
    pub(super) fn learn(&self, lease: &Lease) {
        self.quota_left_ms.store(self.milliseconds(lease.left().get()), Ordering::Relaxed);
    }

    /// Audio that the budget still pays for, in milliseconds, as last heard.
    pub(super) fn left_ms(&self) -> u64 {
        self.quota_left_ms.load(Ordering::Relaxed)
    }

    /// What the client is told beside the ending's own words. The first explanation wins.
    pub(super) fn explain(&self, text: String) {
        self.explanation.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
    }

    /// Why there were no more units.
    pub(super) fn note_refusal(&self, why: Refused) {
        self.quota_left_ms.store(0, Ordering::Relaxed);
        let _ = self.refused.set(why);
    }

    fn extras(&self) -> Map<String, Value> {
        let mut extras = Map::new();
        extras.insert("quota_left_ms".into(), json!(self.left_ms()));
        if let Some(seconds) = self.refused.get().and_then(retry_after) {
            extras.insert("retry_after_s".into(), json!(seconds));
        }
        extras
    }

    fn milliseconds(&self, units: u64) -> u64 {
        let price = u64::from(self.plan.units_per_second) * u64::from(self.plan.listen.billed_channels());
        u64::try_from(u128::from(units) * 1000 / u128::from(price.max(1))).unwrap_or(u64::MAX)
    }

    fn log(&self, ending: Ending, lasted: Duration, paid: Option<&Paid>) {
        let settlement = paid.map(|paid| paid.settlement).unwrap_or_default();
        tracing::info!(
            ending = ending.word(),
            seconds = lasted.as_secs_f64(),
            audio_seconds = paid.map_or(0.0, |paid| paid.seconds),
            tally = settlement.tally.get(),
            waste = settlement.waste.get(),
            settled = settlement.done,
            worker = paid.map_or("", |paid| paid.worker.as_str()),
            account = self.plan.account.id.as_str(),
            key = self.plan.key.fingerprint,
            "stream ended"
        );
    }
}

impl Plan {
    pub(super) fn terms(&self) -> Terms {
        Terms {
            account: Arc::clone(&self.account),
            key: Arc::clone(&self.key),
            session: self.session.clone(),
            model: self.listen.model.clone(),
            units_per_second: self.units_per_second.saturating_mul(u32::from(self.listen.billed_channels())),
            tags: self.listen.tags.join(","),
        }
    }
}

async fn into_socket(upgraded: Upgraded) -> ClientSocket {
    match upgraded.downcast::<TokioIo<TcpStream>>() {
        Ok(parts) => ClientSocket::new(parts.io.into_inner(), &parts.read_buf).await,
        Err(_) => unreachable!("the front serves TCP streams and nothing else"),
    }
}

/// What a handshake is answered when no lease was given.
pub(super) fn refusal(error: &OpenError) -> Refusal {
    let why = match error {
        OpenError::Refused(why) => why,
        OpenError::Store(error) => {
            tracing::warn!(%error, "the store could not be asked about a stream");
            return Refusal::unavailable("The budget can't be asked for now; please try again.", 2);
        }
    };
    match why {
        Refused::Budget { .. } => Refusal::no_budget(retry_after(why)),
        Refused::Key { .. } => Refusal::key_spent(retry_after(why)),
        Refused::Held { .. } => Refusal::budget_held(retry_after(why)),
        Refused::Session { .. } => Refusal::session_spent(),
        Refused::Streams { .. } | Refused::Leases => Refusal::too_many_streams(STREAMS_RETRY_SECONDS),
        Refused::Frozen => Refusal::forbidden("The account is frozen."),
        Refused::Revoked => Refusal::invalid_auth(),
        Refused::Ended | Refused::NotYours => Refusal::forbidden("This session is not open to this key."),
        Refused::Conflict => {
            Refusal::bad_query("This session was opened with another model, tariff or tags; keep them.")
        }
        Refused::Lost => Refusal::unavailable("The account's books are being restored.", 60),
    }
}

/// Seconds until it is worth asking again.
fn retry_after(why: &Refused) -> Option<u32> {
    let at = match why {
        Refused::Budget { renews_at, .. } | Refused::Key { renews_at, .. } => *renews_at,
        Refused::Held { until, .. } => *until,
        Refused::Session { .. }
        | Refused::Streams { .. }
        | Refused::Leases
        | Refused::Frozen
        | Refused::Revoked
        | Refused::Ended
        | Refused::Conflict
        | Refused::NotYours
        | Refused::Lost => return None,
    };
    u32::try_from(at.saturating_sub(auth::unix_seconds()).max(1)).ok()
}

/// Close code of a stream that never got a worker.
const TRY_AGAIN: u16 = 1013;
const STREAMS_RETRY_SECONDS: u32 = 5;
