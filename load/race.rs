//! `load race`: callers on connections of their own take one quota until it is empty, by each way in turn.
//!
//! | way | round trips per take | can oversell |
//! |---|---|---|
//! | naive: GET, compare, DECRBY | 2 | yes |
//! | lock: SET NX, GET, compare, DECRBY, DEL | 4 and the waiting | no, while nobody outlives the lock |
//! | script: `lua/admit.lua` | 1 | no |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::Barrier;
use voxgate::quota::script;
use voxgate::quota::store::{Reply, Store};

use super::progress::Progress;
use super::report::Report;
use super::server::Private;
use super::{Failure, Target, admit};

/// What `load race` can be told.
#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    target: Target,
    /// Callers at once, each on a connection of its own
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    callers: u32,
    /// Units in the quota
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    units: u32,
    /// Units per take
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cost: u32,
}

#[derive(Clone, Copy)]
enum Way {
    Naive,
    Lock,
    Script,
}

impl Way {
    const fn word(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Lock => "lock",
            Self::Script => "script",
        }
    }
}

/// Runs every way once; gives the report.
pub(super) async fn run(options: Options) -> Result<Report, Failure> {
    let server = Private::open(&options.target)?;
    let mut report = Report::new(
        "race",
        json!({ "callers": options.callers, "units": options.units, "cost": options.cost }),
    );
    report.tell_store(&server.store()?).await;
    let (progress, mut ways) = (Progress::start("race", 3), Vec::new());
    for way in [Way::Naive, Way::Lock, Way::Script] {
        progress.say(&format!("{} callers, {} units, way {}", options.callers, options.units, way.word()));
        ways.push(one(&server, &options, way).await?);
        progress.step();
    }
    report.data = json!({
        "callers": options.callers, "units": options.units,
        "cost": options.cost, "ways": ways,
    });
    Ok(report)
}

async fn one(server: &Private, options: &Options, way: Way) -> Result<Value, Failure> {
    let quota = format!("load:race:{}", way.word());
    let master = server.store()?;
    master.command(&["SET", &quota, &options.units.to_string(), "PX", "600000"]).await?;
    let (trips, barrier) = (Arc::new(AtomicU64::new(0)), Arc::new(Barrier::new(options.callers as usize)));
    let mut callers = Vec::new();
    for _ in 0..options.callers {
        let caller =
            Caller { store: server.store()?, quota: quota.clone(), cost: options.cost, trips: trips.clone() };
        let barrier = barrier.clone();
        callers.push(tokio::spawn(async move {
            barrier.wait().await;
            caller.take_all(way).await
        }));
    }
    let start = Instant::now();
    let mut taken = 0;
    for caller in callers {
        taken += caller.await??;
    }
    let seconds = start.elapsed().as_secs_f64();
    master.command(&["DEL", &quota]).await?;
    let (units, takes) = (u64::from(options.units), taken / u64::from(options.cost));
    Ok(json!({
        "way": way.word(), "admitted": taken, "oversold": taken.saturating_sub(units),
        "round_trips": trips.load(Ordering::Relaxed), "seconds": seconds, "takes_per_second": takes as f64 / seconds,
    }))
}

struct Caller {
    store: Store,
    quota: String,
    cost: u32,
    trips: Arc<AtomicU64>,
}

impl Caller {
    async fn take_all(self, way: Way) -> Result<u64, Failure> {
        let mut taken = 0;
        while match way {
            Way::Naive => self.check_then_take().await?,
            Way::Lock => self.locked().await?,
            Way::Script => {
                self.trips.fetch_add(1, Ordering::Relaxed);
                admit(&self.store, &script::ADMIT, &self.quota, &self.cost.to_string()).await?
            }
        } {
            taken += u64::from(self.cost);
        }
        Ok(taken)
    }

    async fn command(&self, words: &[&str]) -> Result<Reply, Failure> {
        self.trips.fetch_add(1, Ordering::Relaxed);
        Ok(self.store.command(words).await?)
    }

    async fn check_then_take(&self) -> Result<bool, Failure> {
        let left = match self.command(&["GET", &self.quota]).await? {
            Reply::Bulk(bytes) => String::from_utf8_lossy(&bytes).parse::<i64>().unwrap_or(0),
            other => return Err(Failure::Odd(other)),
        };
        if left < i64::from(self.cost) {
            return Ok(false);
        }
        self.command(&["DECRBY", &self.quota, &self.cost.to_string()]).await?;
        Ok(true)
    }

    async fn locked(&self) -> Result<bool, Failure> {
        let lock = format!("{}:lock", self.quota);
        while self.command(&["SET", &lock, "1", "NX", "PX", "5000"]).await? == Reply::Nil {
            tokio::task::yield_now().await;
        }
        let taken = self.check_then_take().await;
        self.command(&["DEL", &lock]).await?;
        taken
    }
}
