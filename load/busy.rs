//! `load busy`: somebody else's slow scripts on the store, under live streams that must be paid for.
//!
//! Swept: scripts that read, that write, that are one slow command; SCRIPT KILL on each; a script that loops over a
//! growing list beside the one-key script. Afterwards the worker's bytes are held against what was admitted, and the
//! books against the worker's bytes: nothing unpaid, nothing charged twice.

mod felt;
mod lists;
mod prober;
mod slow;
mod told;

use std::time::Duration;

use serde::Serialize;
use voxgate::quota::store::Store;

use super::client::{Crowd, Door, Outcome, Plan, Run, UNIT_BYTES};
use super::gateway::{self, Gateway, Metrics};
use super::progress::stop;
use super::report::Report;
use super::server::Private;
use super::worker::Worker;
use super::{Failure, Target, process};
use lists::{Calls, Way};
use prober::{Probe, Prober};
use slow::{Hold, Kind, Neighbour};

/// What `load busy` can be told.
#[derive(clap::Args)]
pub(super) struct Options {
    #[command(flatten)]
    target: Target,
    /// Live streams, 3200 B each 100 ms
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    streams: u32,
    /// Live streams while it is measured how soon all is normal after a script of a second
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    recovery_streams: u32,
    /// Such scripts, one after another
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    recoveries: u32,
    /// Milliseconds that a slow script lasts, several
    #[arg(long, value_delimiter = ',', default_value = "10,30,100,300,1000,3000",
        value_parser = clap::value_parser!(u32).range(1..=4_000))]
    lengths: Vec<u32>,
    /// Elements of the list that a script loops over, several
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,10000,100000,1000000",
        value_parser = clap::value_parser!(u32).range(1..=2_000_000))]
    sizes: Vec<u32>,
    /// The store's busy-reply-threshold in milliseconds
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    threshold_ms: u32,
    /// Few streams, short scripts: whether it works
    #[arg(long)]
    quick: bool,
    /// A gateway that runs already on the store named by --store
    #[arg(long, value_name = "WS_URL", requires = "key", requires = "store")]
    gateway: Option<String>,
    /// Its API key
    #[arg(long, env = "VOXGATE_KEY", value_name = "KEY", hide_env_values = true)]
    key: Option<String>,
}

/// One slow script under live streams; times in seconds of its phase.
#[derive(Debug)]
struct Case {
    kind: Kind,
    asked: Duration,
    hold: Hold,
    from: f64,
    to: f64,
    /// BUSY answers that the gateway got meanwhile.
    busy: f64,
    /// Most audio that it held unpaid, in bytes.
    held_bytes: f64,
}

/// One crowd from its opening to its end.
struct Phase {
    streams: usize,
    cases: Vec<Case>,
    calls: Vec<Calls>,
    outcome: Outcome,
    probes: Vec<Probe>,
    /// Streams that did not end well when all were asked to.
    ended_badly: u64,
}

/// Units by what became of them, after all streams have ended.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Books {
    /// What the worker got.
    forwarded: u64,
    admitted: u64,
    wasted: u64,
    /// What the ledger charged.
    settled: u64,
    /// Still reserved, which must be nothing.
    held: u64,
    /// Calls whose answer was lost.
    doubts: u64,
    busy: u64,
}

impl Books {
    /// Forwarded and not admitted.
    const fn unpaid(&self) -> u64 {
        self.forwarded.saturating_sub(self.admitted)
    }

    /// Charged and not forwarded.
    const fn twice(&self) -> u64 {
        self.settled.saturating_sub(self.forwarded)
    }

    /// Forwarded and not charged.
    const fn free(&self) -> u64 {
        self.forwarded.saturating_sub(self.settled)
    }
}

/// Everything that runs.
struct Stage {
    url: String,
    _store: Private,
    own: Store,
    neighbour: Neighbour,
    worker: Worker,
    gateway: Option<Gateway>,
    door: Door,
    /// Its threshold before, to be restored.
    threshold: String,
    account: String,
}

/// Runs all of it and gives the report; what was started is stopped, interrupted or not.
pub(super) async fn run(options: Options) -> Result<Report, Failure> {
    let options = options.fit();
    process::room_for(options.streams.max(options.recovery_streams) as usize)?;
    let mut stage = Stage::set(&options).await?;
    let done = tokio::select! {
        done = stage.play(&options) => done,
        () = process::interrupted() => Err(Failure::Interrupted),
    };
    let books = stage.clear().await;
    let phases = done?;
    Ok(told::report(&options, &phases, books?))
}

impl Options {
    fn fit(mut self) -> Self {
        if self.quick {
            self.streams = self.streams.min(10);
            self.recovery_streams = self.recovery_streams.min(20);
            self.recoveries = 1;
            self.lengths = vec![30, 200];
            self.sizes = vec![10, 10_000];
        }
        self
    }

    /// Every script of the first phase: kind, length, and after what time somebody tries to kill it.
    fn cases(&self) -> Vec<(Kind, Duration, Option<Duration>)> {
        let mut cases = Vec::new();
        for kind in [Kind::Reading, Kind::Writing, Kind::Command] {
            let most = if kind == Kind::Command { COMMAND_MS_MAX } else { u32::MAX };
            let lengths = self.lengths.iter().filter(|ms| **ms <= most);
            cases.extend(lengths.map(|ms| (kind, Duration::from_millis((*ms).into()), None)));
        }
        let (long, soon) = (1_000, 300);
        let (long, soon) = (Duration::from_millis(long), Duration::from_millis(soon));
        for kind in [Kind::Reading, Kind::Writing, Kind::Command] {
            cases.push((kind, long, Some(soon)));
        }
        // Killed long after its end: there is nothing to kill.
        cases.push((Kind::Reading, Duration::from_millis(10), Some(soon)));
        cases
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(if self.quick { 600 } else { 2_000 })
    }
}

impl Stage {
    async fn set(options: &Options) -> Result<Self, Failure> {
        let threshold = options.threshold_ms.to_string();
        let store = Private::open_with(&options.target, &["--busy-reply-threshold", &threshold])?;
        let url = store.url.clone();
        let mut neighbour = Neighbour::connect(&url).await?;
        let before = neighbour.threshold(&threshold).await?;
        let worker = Worker::start().await?;
        let account = format!("busy-{}-{}", std::process::id(), fastrand::u32(..));
        let (gateway, door) = match &options.gateway {
            Some(url) => {
                let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
                let address = rest.split('/').next().unwrap_or(rest).to_owned();
                (None, Door { address, key: options.key.clone() })
            }
            None => {
                let gateway = Gateway::start(&gateway::beside(), &url, "load:", &worker.url()).await?;
                let key = Some(gateway.key(&account).await?);
                let door = Door { address: gateway.address.clone(), key };
                (Some(gateway), door)
            }
        };
        let own = store.store()?;
        Ok(Self { url, _store: store, own, neighbour, worker, gateway, door, threshold: before, account })
    }

    async fn play(&mut self, options: &Options) -> Result<Vec<Phase>, Failure> {
        let sweep = self.phase(options, options.streams, &options.cases(), &options.sizes).await?;
        let long = Duration::from_millis(if options.quick { 400 } else { 1_000 });
        let again = vec![(Kind::Writing, long, None); options.recoveries as usize];
        let recovery = self.phase(options, options.recovery_streams, &again, &[]).await?;
        Ok(vec![sweep, recovery])
    }

    async fn phase(
        &mut self,
        options: &Options,
        streams: u32,
        scripts: &[(Kind, Duration, Option<Duration>)],
        sizes: &[u32],
    ) -> Result<Phase, Failure> {
        eprintln!("busy: {streams} streams");
        let crowd = Crowd::open(&self.door, streams as usize).await?;
        let run = crowd.start(Plan { bytes: 3200, period: Duration::from_millis(100) });
        let prober = Prober::start(&self.url, run.start).await?;
        tokio::time::sleep(options.pause()).await;
        let (mut cases, mut calls) = (Vec::new(), Vec::new());
        for (kind, length, kill) in scripts {
            if stop().is_cancelled() {
                break;
            }
            self.neighbour.prepare(*kind, *length).await?;
            tokio::time::sleep(options.pause()).await;
            let case = self.case((*kind, *length, *kill), &run).await?;
            eprintln!(
                "busy: {} script of {:.0} ms: {}{}, {} BUSY to the gateway, at most {} B held",
                kind.word(),
                slow::ms(case.hold.lasted),
                case.hold.answer,
                case.hold.kill.as_ref().map_or_else(String::new, |kill| format!(", kill {}", kill.answer)),
                case.busy,
                case.held_bytes,
            );
            cases.push(case);
        }
        tokio::time::sleep(options.pause()).await;
        for elements in sizes {
            if stop().is_cancelled() {
                break;
            }
            lists::grow(&mut self.neighbour, &self.own, *elements).await?;
            for way in [Way::Loop, Way::Bounded] {
                tokio::time::sleep(options.pause() / 4).await;
                let called = lists::call(way, *elements, (&self.neighbour, &self.own), &|| run.now()).await?;
                calls.push(called);
            }
            eprintln!("busy: list of {elements} done");
        }
        lists::leave(&self.own).await?;
        tokio::time::sleep(options.pause() / 2).await;
        let outcome = run.end(PATIENCE).await?;
        let probes = prober.end().await?;
        let closes = crowd.close().await;
        let ended_badly = closes.iter().filter(|(code, _)| **code != 1000).map(|(_, streams)| streams).sum();
        Ok(Phase { streams: streams as usize, cases, calls, outcome, probes, ended_badly })
    }

    /// Runs one slow script and looks at the gateway meanwhile.
    async fn case(
        &mut self,
        (kind, asked, kill): (Kind, Duration, Option<Duration>),
        run: &Run<'_>,
    ) -> Result<Case, Failure> {
        let before = self.metrics().await?;
        let from = run.now();
        let (hold, held_bytes) =
            watched(self.gateway.as_ref(), self.neighbour.hold(kind, asked, kill)).await?;
        // Not the time of a late kill: the script itself.
        let to = from + hold.lasted.as_secs_f64();
        let after = self.metrics().await?;
        let busy = match (before, after) {
            (Some(before), Some(after)) => busy(&after) - busy(&before),
            (None, _) | (_, None) => 0.0,
        };
        Ok(Case { kind, asked, hold, from, to, busy, held_bytes })
    }

    async fn metrics(&self) -> Result<Option<Metrics>, Failure> {
        match &self.gateway {
            Some(gateway) => Ok(Some(gateway.metrics().await?)),
            None => Ok(None),
        }
    }

    /// Reads the books once all is settled, then ends everything.
    async fn clear(mut self) -> Result<Option<Books>, Failure> {
        self.neighbour.leave().await?;
        let before = self.threshold.clone();
        self.neighbour.threshold(&before).await?;
        let books = self.books().await?;
        if let Some(gateway) = self.gateway.take() {
            gateway.stop().await?;
        }
        Ok(books)
    }

    async fn books(&self) -> Result<Option<Books>, Failure> {
        let Some(gateway) = &self.gateway else { return Ok(None) };
        let until = tokio::time::Instant::now() + PATIENCE;
        let (metrics, balance) = loop {
            let (metrics, balance) = (gateway.metrics().await?, gateway.balance(&self.account).await?);
            let open = metrics.sum("voxgate_leases_open", "") + metrics.sum("voxgate_settles_pending", "");
            if (open == 0.0 && balance.held == 0) || tokio::time::Instant::now() > until {
                break (metrics, balance);
            }
            tokio::time::sleep(LOOK).await;
        };
        let units = |fate: &str| metrics.sum("voxgate_units_total", &format!("fate=\"{fate}\"")) as u64;
        Ok(Some(Books {
            forwarded: self.worker.counts().await?.bytes / UNIT_BYTES,
            admitted: units("admitted"),
            wasted: units("wasted"),
            settled: balance.settled,
            held: balance.held,
            doubts: metrics.sum("voxgate_doubts_total", "") as u64,
            busy: busy(&metrics) as u64,
        }))
    }
}

/// Waits for a script; gives the most audio that the gateway held unpaid meanwhile too, in bytes.
async fn watched(
    gateway: Option<&Gateway>,
    holding: impl Future<Output = Result<Hold, Failure>>,
) -> Result<(Hold, f64), Failure> {
    let mut holding = std::pin::pin!(holding);
    let mut held_bytes: f64 = 0.0;
    loop {
        tokio::select! {
            hold = &mut holding => return Ok((hold?, held_bytes)),
            () = tokio::time::sleep(LOOK) => {
                if let Some(gateway) = gateway {
                    held_bytes = held_bytes.max(gateway.metrics().await?.sum("voxgate_held_bytes", ""));
                }
            }
        }
    }
}

fn busy(metrics: &Metrics) -> f64 {
    metrics.sum("voxgate_script_errors_total", "kind=\"busy\"")
}

/// A slow command longer than this looks like a dead store (no reply at all), which is another story.
const COMMAND_MS_MAX: u32 = 1_000;
/// Between two looks at the gateway.
const LOOK: Duration = Duration::from_millis(50);
/// For answers and settles after the last script.
const PATIENCE: Duration = Duration::from_secs(20);
