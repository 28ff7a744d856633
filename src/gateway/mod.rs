//! The public side: listener, handshake, and one task for each stream that carries audio and words.
//!
//! A stream's task joins three futures: `uplink` reads the client at once and holds what is not paid for, `purse`
//! pays for it and hands it to a worker, `downlink` carries the words back. `session` opens, joins and settles
//! them. Nothing is forwarded that was not admitted; nothing admitted is lost from the books.

mod answer;
mod auth;
mod clocks;
mod downlink;
mod front;
mod grant;
mod handshake;
mod hold;
mod meters;
mod pages;
mod purse;
mod ring;
mod session;
mod socket;
mod stop;
mod uplink;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::auth::Auth;
use self::grant::Grants;
use self::hold::HeldBytes;
use self::meters::Meters;
pub use self::ring::TokenSecrets;
use crate::limits;
use crate::quota::{Quota, Unasked};
use crate::wire::deepgram::Refusal;
use crate::worker::Pool;

/// A running gateway. Dropping it stops nothing: call [`Gateway::drain`].
#[derive(Clone)]
pub struct Gateway {
    core: Arc<Core>,
    address: SocketAddr,
}

impl Gateway {
    /// Listens, and serves from now on.
    ///
    /// # Errors
    /// The address can't be listened on.
    pub async fn start(settings: Settings, quota: Quota, pool: Pool) -> io::Result<Self> {
        let listener = TcpListener::bind(settings.listen).await?;
        let address = listener.local_addr()?;
        let core = Arc::new(Core::new(settings, quota, pool));
        tracing::info!(secret = core.token_secret_word(), "short-lived tokens can be granted");
        core.connections.spawn(front::serve(Arc::clone(&core), listener));
        let (mended, shut) = (core.quota.clone(), core.shut.clone());
        core.tasks.spawn(async move { mended.mend_until(shut).await });
        let watched = core.pool.clone();
        let shut = core.shut.clone();
        core.tasks.spawn(async move { watched.watch(shut).await });
        Ok(Self { core, address })
    }

    /// Where it listens; tells the port if the settings left it open.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Whether new streams are taken: not draining, and a worker is well. The store's health is the quota room's.
    pub fn ready(&self) -> bool {
        self.core.is_open() && self.core.pool.ready()
    }

    /// Streams that are open.
    pub fn streams(&self) -> usize {
        self.core.streams.len()
    }

    /// Takes no new streams, gives running ones `patience` to end by themselves, then ends them with their last
    /// words, waits for every settle, and stops listening. Takes at most `patience`, [`limits::DRAIN_END`] and a
    /// few seconds for settles. Meant to be called once.
    pub async fn drain(&self, patience: Duration) -> DrainReport {
        let core = &self.core;
        core.closed.store(true, Ordering::Release);
        core.streams.close();
        let running = core.streams.len();
        let finished = tokio::select! { biased;
            () = core.streams.wait() => true,
            () = core.leave.cancelled() => false,
            () = tokio::time::sleep(patience) => false,
        };
        let cut = if finished { 0 } else { core.streams.len() };
        core.leave.cancel();
        let _ = tokio::time::timeout(limits::DRAIN_END, core.streams.wait()).await;
        let abandoned = core.streams.len();
        core.shut.cancel();
        core.tasks.close();
        core.connections.close();
        let _ = tokio::time::timeout(SHUT, async {
            tokio::join!(core.tasks.wait(), core.connections.wait());
        })
        .await;
        let unsettled = core.quota.drain(SETTLE).await;
        DrainReport { running, cut, abandoned, unsettled }
    }

    /// Ends the patience of a drain at once: a second signal.
    pub fn hurry(&self) {
        self.core.leave.cancel();
    }
}

/// What a drain came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// Streams that were open when it began.
    pub running: usize,
    /// Streams that were ended by it.
    pub cut: usize,
    /// Streams that did not end in time; their envelopes are left to the reaper.
    pub abandoned: usize,
    /// Settles that got no answer in time; left to the reaper.
    pub unsettled: u64,
}

/// What an operator can set about the public side.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Most connections at once.
    pub connections_max: usize,
    /// Most connections at once from one address.
    pub connections_per_address_max: usize,
    /// Origins (`https://app.example`) whose pages may open streams with a subprotocol credential, beside the
    /// gateway's own page; `*` allows all.
    pub origins: Vec<String>,
    /// Silence that ends a stream; at most [`limits::CLIENT_IDLE`] unless the operator knows better.
    pub client_idle: Duration,
    /// Longest stream.
    pub stream_longest: Duration,
    /// Unpaid audio held for all streams together, in bytes.
    pub held_bytes_max: usize,
    /// Whether `Metadata` tells the SHA-256 of the audio.
    pub sha256: bool,
    /// Price of one second of one channel, in units, of models without an own one.
    pub units_per_second: u32,
    /// Prices by model, whatever the case of its name.
    pub prices: HashMap<String, u32>,
    /// What tokens are signed with; none: a secret that all gateways of the store share.
    pub token_secrets: TokenSecrets,
}

impl Settings {
    fn price(&self, model: &str) -> u32 {
        // Workers take a model's name in any case, so a price that minded it could be talked away.
        let named = |(name, price): (&String, &u32)| name.eq_ignore_ascii_case(model).then_some(*price);
        self.prices.iter().find_map(named).unwrap_or(self.units_per_second)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            connections_max: 10_000,
            connections_per_address_max: 10_000,
            origins: Vec::new(),
            client_idle: limits::CLIENT_IDLE,
            stream_longest: Duration::from_secs(12 * 3600),
            held_bytes_max: 256 * 1024 * 1024,
            sha256: true,
            units_per_second: 1000,
            prices: HashMap::new(),
            token_secrets: TokenSecrets::default(),
        }
    }
}

/// What every part of the room works with.
struct Core {
    settings: Settings,
    quota: Quota,
    pool: Pool,
    auth: Auth,
    grants: Grants,
    meters: Meters,
    held: Arc<HeldBytes>,
    /// No new streams.
    closed: AtomicBool,
    /// Streams must end now.
    leave: CancellationToken,
    /// No more connections.
    shut: CancellationToken,
    streams: TaskTracker,
    connections: TaskTracker,
    /// The pool's watch, and goodbyes to workers.
    tasks: TaskTracker,
}

impl Core {
    fn new(settings: Settings, quota: Quota, pool: Pool) -> Self {
        Self {
            held: Arc::new(HeldBytes::new(settings.held_bytes_max)),
            auth: Auth::new(&settings.token_secrets),
            settings,
            quota,
            pool,
            grants: Grants::default(),
            meters: Meters::new(),
            closed: AtomicBool::new(false),
            leave: CancellationToken::new(),
            shut: CancellationToken::new(),
            streams: TaskTracker::new(),
            connections: TaskTracker::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Where the secret for tokens comes from, for people.
    fn token_secret_word(&self) -> &'static str {
        match (self.settings.token_secrets.is_empty(), self.quota.store_word()) {
            (false, _) => "configured",
            (true, "embedded") => "made for this process: tokens end with it",
            (true, _) => "kept in the store",
        }
    }

    fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }
}

/// What a client is told when the store can't be asked.
fn away(error: &Unasked) -> Refusal {
    match error {
        // The breaker has said so once.
        Unasked::Shut => tracing::debug!("refused without the store"),
        Unasked::Store(error) => tracing::warn!(%error, "the store could not be asked"),
    }
    Refusal::unavailable("Keys and budgets can't be checked for now; please try again.", 2)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// For idle connections and goodbyes to end after the last stream.
const SHUT: Duration = Duration::from_secs(2);
/// For the last settles.
const SETTLE: Duration = Duration::from_secs(5);
