//! The ways to take a quota, each run with a number of callers until the quota is empty or the time is over.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use voxgate::quota::store::{Reply, Store};
use voxgate::quota::{Account, Key, Name, Quota, Settings, script};
use voxgate::units::Units;

use super::super::gateway::Gateway;
use super::super::latency::{histogram, record};
use super::super::peer::{Client, Worker};
use super::super::progress::stop;
use super::super::server::{Private, Spent};
use super::super::{Failure, admit};

/// How units are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Naive,
    Lock,
    Script,
    Gateway,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Naive, Self::Lock, Self::Script, Self::Gateway];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Lock => "lock",
            Self::Script => "script",
            Self::Gateway => "gateway",
        }
    }
}

/// What is raced for.
#[derive(Clone, Copy)]
pub(super) struct Lot {
    pub units: u32,
    pub cost: u32,
    /// How long a way may take.
    pub patience: Duration,
}

/// What one way came to.
pub(super) struct Course {
    /// Units taken.
    pub admitted: u64,
    /// Of these, beyond the quota.
    pub oversold: u64,
    /// Units that nobody got.
    pub unsold: u64,
    /// Every caller was refused in the end.
    pub emptied: bool,
    pub takes: u64,
    pub trips: u64,
    pub seconds: f64,
    /// Nanoseconds per take that was granted.
    pub times: Histogram<u64>,
}

/// What one caller saw.
struct Seen {
    trips: u64,
    emptied: bool,
    times: Histogram<u64>,
}

impl Seen {
    fn nothing() -> Self {
        Self { trips: 0, emptied: true, times: histogram() }
    }

    fn add(&mut self, other: &Self) {
        self.trips += other.trips;
        self.emptied &= other.emptied;
        self.times += &other.times;
    }

    fn course(self, lot: Lot, admitted: u64, seconds: f64) -> Course {
        let units = u64::from(lot.units);
        Course {
            admitted,
            oversold: admitted.saturating_sub(units),
            unsold: units.saturating_sub(admitted),
            emptied: self.emptied,
            takes: self.times.len(),
            trips: self.trips,
            seconds,
            times: self.times,
        }
    }
}

/// Callers on connections of their own to the store.
pub(super) async fn to_store(server: &Private, lot: Lot, callers: u32, way: Way) -> Result<Course, Failure> {
    let quota = format!("load:race:{}", way.word());
    let master = server.store()?;
    master.command(&["SET", &quota, &lot.units.to_string(), "PX", "3600000"]).await?;
    let barrier = Arc::new(Barrier::new(callers as usize));
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let caller = Caller { store: server.store()?, quota: quota.clone(), lot, trips: 0 };
        // Connected before the start.
        caller.store.command(&["GET", &quota]).await?;
        let barrier = barrier.clone();
        tasks.spawn(async move {
            barrier.wait().await;
            caller.take_all(way).await
        });
    }
    let start = Instant::now();
    let seen = gather(tasks).await?;
    let seconds = start.elapsed().as_secs_f64();
    master.command(&["DEL", &quota]).await?;
    let admitted = seen.times.len() * u64::from(lot.cost);
    Ok(seen.course(lot, admitted, seconds))
}

async fn gather(mut tasks: JoinSet<Result<Seen, Failure>>) -> Result<Seen, Failure> {
    let mut all = Seen::nothing();
    while let Some(seen) = tasks.join_next().await {
        all.add(&seen??);
    }
    Ok(all)
}

struct Caller {
    store: Store,
    quota: String,
    lot: Lot,
    trips: u64,
}

impl Caller {
    async fn take_all(mut self, way: Way) -> Result<Seen, Failure> {
        let (mut seen, end) = (Seen::nothing(), Instant::now() + self.lot.patience);
        loop {
            let sent = Instant::now();
            if sent > end || stop().is_cancelled() {
                seen.emptied = false;
                break;
            }
            let taken = match way {
                Way::Naive => self.check_then_take().await?,
                Way::Lock => self.locked(end).await?,
                Way::Script | Way::Gateway => {
                    self.trips += 1;
                    admit(&self.store, &script::ADMIT, &self.quota, &self.lot.cost.to_string()).await?
                }
            };
            if !taken {
                seen.emptied = Instant::now() <= end && !stop().is_cancelled();
                break;
            }
            record(&mut seen.times, sent.elapsed());
        }
        seen.trips = self.trips;
        Ok(seen)
    }

    async fn command(&mut self, words: &[&str]) -> Result<Reply, Failure> {
        self.trips += 1;
        Ok(self.store.command(words).await?)
    }

    async fn check_then_take(&mut self) -> Result<bool, Failure> {
        let quota = self.quota.clone();
        let left = match self.command(&["GET", &quota]).await? {
            Reply::Bulk(bytes) => String::from_utf8_lossy(&bytes).parse::<i64>().unwrap_or(0),
            other => return Err(Failure::Odd(other)),
        };
        if left < i64::from(self.lot.cost) {
            return Ok(false);
        }
        let cost = self.lot.cost.to_string();
        self.command(&["DECRBY", &quota, &cost]).await?;
        Ok(true)
    }

    /// Waits for the lock as long as it takes, but not beyond `end`: then nothing is taken.
    async fn locked(&mut self, end: Instant) -> Result<bool, Failure> {
        let lock = format!("{}:lock", self.quota);
        while self.command(&["SET", &lock, "1", "NX", "PX", "5000"]).await? == Reply::Nil {
            if Instant::now() > end || stop().is_cancelled() {
                return Ok(false);
            }
            tokio::task::yield_now().await;
        }
        let taken = self.check_then_take().await;
        self.command(&["DEL", &lock]).await?;
        taken
    }
}

/// Streams of one session through a gateway on the same store.
pub(super) async fn through_gateway(
    server: &Private,
    lot: Lot,
    callers: u32,
    program: &Path,
) -> Result<Course, Failure> {
    let store = server.store()?;
    let (session, key) =
        (format!("race.{}", uuid::Uuid::new_v4().simple()), budget(&store, lot.units).await?);
    let worker = Worker::start().await?;
    let gateway = Gateway::start(program, &server.url, PREFIX, &worker.url).await?;
    let mut clients = Vec::new();
    for _ in 0..callers {
        clients.push(Client::open(&gateway.address, &key, &session).await?);
    }
    let before = Spent::so_far(&store).await?;
    let barrier = Arc::new(Barrier::new(clients.len()));
    let mut tasks = JoinSet::new();
    for client in clients {
        tasks.spawn(stream(client, barrier.clone(), lot));
    }
    let start = Instant::now();
    let mut seen = gather(tasks).await?;
    let seconds = start.elapsed().as_secs_f64();
    seen.trips = Spent::so_far(&store).await?.since(before).calls;
    let admitted = worker.bytes() / BYTES_PER_UNIT;
    gateway.stop().await?;
    Ok(seen.course(lot, admitted, seconds))
}

/// A key of an account that has plenty; `units` are the cap of one session of it.
async fn budget(store: &Store, units: u32) -> Result<String, Failure> {
    let quota = Quota::new(store.clone(), Settings { prefix: PREFIX.into(), ..Settings::default() });
    let id = Name::parse("race").ok_or(Failure::Odd(Reply::Nil))?;
    let mut account = Account::new(id.clone(), Units::MAX);
    account.share = 1;
    quota.put_account(&account).await?;
    let key = Key {
        fingerprint: String::new(),
        account: id,
        label: "load".into(),
        cap: None,
        session_cap: Some(Units::saturating(units.into())),
        streams_max: 4096,
        models: Vec::new(),
        revoked: false,
    };
    Ok(quota.add_key(key).await?.0)
}

/// One stream: a chunk in flight at a time, until the gateway ends it.
async fn stream(mut client: Client, barrier: Arc<Barrier>, lot: Lot) -> Result<Seen, Failure> {
    let chunk = Bytes::from(vec![0; lot.cost as usize * BYTES_PER_UNIT as usize]);
    let (mut seen, end) = (Seen::nothing(), Instant::now() + lot.patience);
    barrier.wait().await;
    loop {
        let sent = Instant::now();
        if sent > end || stop().is_cancelled() {
            seen.emptied = false;
            break;
        }
        if !client.take(&chunk).await? {
            break;
        }
        record(&mut seen.times, sent.elapsed());
    }
    Ok(seen)
}

/// 16 kHz mono of two bytes: a unit, which is a millisecond, is so many.
const BYTES_PER_UNIT: u64 = 32;
const PREFIX: &str = "load:";
