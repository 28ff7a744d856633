//! The load driver: reproduces what the README claims, one command each, and never leaves this machine unasked.
//!
//! Each run is bounded in time, tells its progress on stderr, and ends with a [`Report`]: one JSON line on stdout, kept
//! beside an HTML page under `--out`. Ctrl-C ends a run early, and the report holds what there is. Without `--store` a
//! private redis-server is started on a free port and stopped again.

mod busy;
mod ceiling;
mod client;
mod cycles;
mod frames;
mod gateway;
mod latency;
mod pace;
mod peer;
mod process;
mod progress;
mod race;
mod report;
mod server;
mod sessions;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{Signal, SignalKind, signal};
use voxgate::quota::store::{Reply, Script, Store, StoreError};

use progress::stop;
use report::Report;

/// Measures Voxgate's claims on this machine.
#[derive(Parser)]
#[command(name = "load", version, max_term_width = 80)]
struct Cli {
    #[command(subcommand)]
    run: Run,
    /// Where results go: a folder [default: target/load]; with `report`, a page
    /// [default: load.html]
    #[arg(long, global = true, value_name = "PATH")]
    out: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Run {
    /// Many callers take the same quota: check-then-take, a lock, the one-key script, and
    /// the gateway
    #[command(after_help = "Example: load race --callers 1,8,64 --units 20000")]
    Race(race::Options),
    /// The whole admit call, by input size and callers, held against the store's own ceiling
    #[command(after_help = "Example: load latency --calls 20000 --callers 1,8,50")]
    Latency(latency::Options),
    /// Reserve + settle cycles: saturating rate, latency at half of it, and the ledger held against both
    #[command(after_help = "Example: load cycles --cycles 70000 --clients 50")]
    Cycles(cycles::Options),
    /// Many live streams: latency that the gateway adds, CPU per chunk, memory per stream, nothing lost
    #[command(after_help = "Example: load sessions --scenarios a,b,c --rounds 5")]
    Sessions(sessions::Options),
    /// Slow scripts on the store under live streams: what is held, refused, paid for, and how soon it is over
    #[command(after_help = "Example: load busy --streams 50 --lengths 10,100,1000")]
    Busy(busy::Options),
    /// A worker that answers every audio message; started by the others
    #[command(hide = true)]
    Worker(worker::Options),
    /// Joins kept results into one page
    #[command(after_help = "Example: load report target/load/*.json --out load.html")]
    Report(report::Options),
}

/// Where the store is.
#[derive(Args)]
struct Target {
    /// A store to use (keys under `load:`); default: a private redis-server
    #[arg(long, env = "VOXGATE_LOAD_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
    /// The program to start as private server
    #[arg(long, default_value = "redis-server", value_name = "PROGRAM")]
    server: String,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("load: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> Result<(), Failure> {
    let interrupts = signal(SignalKind::interrupt()).map_err(|error| Failure::peer("signals", error))?;
    tokio::spawn(watch(interrupts));
    let report = match cli.run {
        Run::Race(options) => race::run(options).await,
        Run::Latency(options) => latency::run(options).await,
        Run::Cycles(options) => cycles::run(options).await,
        Run::Sessions(options) => sessions::run(options).await,
        Run::Busy(options) => busy::run(options).await,
        Run::Worker(options) => return worker::serve(options).await,
        Run::Report(options) => {
            return report::join(&options, cli.out.as_deref().unwrap_or(Path::new("load.html")));
        }
    };
    tell(report?, cli.out.as_deref().unwrap_or(Path::new("target/load")))
}

/// The first ctrl-c ends the run with what it has, the second ends everything.
async fn watch(mut interrupts: Signal) {
    interrupts.recv().await;
    eprintln!("load: stopping; what there is will be reported (ctrl-c again: at once, without)");
    stop().cancel();
    interrupts.recv().await;
    std::process::exit(130);
}

/// Keeps the report as two files and prints it as one line.
fn tell(mut report: Report, folder: &Path) -> Result<(), Failure> {
    if stop().is_cancelled() {
        report.notes.insert(0, "Stopped by ctrl-c: what was not measured by then is missing.".into());
    }
    let (machines, people) = report.keep(folder)?;
    eprintln!("{}\n{}", machines.display(), people.display());
    println!("{}", serde_json::json!(report));
    Ok(())
}

/// What ends a run early.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// No private server.
    #[error("can't start {program}: {why}; install redis-server or name a store by --store")]
    Server {
        /// What was tried.
        program: String,
        /// What happened.
        why: String,
    },
    /// A gateway or a peer of it, or the way there.
    #[error("{0}")]
    Peer(String),
    /// A file of a report can't be read or written.
    #[error("{0}")]
    File(String),
    /// The store gave no answer.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// The budget of the run did not do.
    #[error("refused: {0}")]
    Refused(String),
    /// The run was asked to end (SIGTERM).
    #[error("interrupted; everything that was started is stopped")]
    Interrupted,
    /// A task of the run panicked.
    #[error("a caller died: {0}")]
    Caller(#[from] tokio::task::JoinError),
    /// The store answered what no command or script of the run answers.
    #[error("unexpected answer: {0:?}")]
    Odd(Reply),
}

impl Failure {
    fn peer(who: &str, error: impl std::fmt::Display) -> Self {
        Self::Peer(format!("{who}: {error}"))
    }

    fn file(path: &Path, error: &std::io::Error) -> Self {
        Self::File(format!("{}: {error}", path.display()))
    }
}

/// The machine and the day, for every result.
fn environment() -> serde_json::Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    serde_json::json!({
        "voxgate": env!("CARGO_PKG_VERSION"),
        "cpu": field(&read("/proc/cpuinfo"), "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        // Of the last minute, before the run began: what else the machine had to do.
        "loadavg": read("/proc/loadavg").split(' ').next().and_then(|load| load.parse::<f64>().ok()),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "at": jiff::Timestamp::now().to_string(),
        "debug": cfg!(debug_assertions),
    })
}

/// One whole call of `lua/admit.lua`: the units granted, 0 when refused.
async fn admit(store: &Store, script: &Script, key: &str, cost: &str) -> Result<bool, Failure> {
    let reply = store.run(script, &[key], &[cost]).await?;
    match voxgate::quota::answer::Admitted::read(&reply)? {
        voxgate::quota::answer::Admitted::Grant(_) => Ok(true),
        voxgate::quota::answer::Admitted::Refuse(_) => Ok(false),
        voxgate::quota::answer::Admitted::Lapse | voxgate::quota::answer::Admitted::Corrupt => {
            Err(Failure::Odd(reply))
        }
    }
}
