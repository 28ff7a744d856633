//! The load driver: reproduces what the README claims, one command each, and never leaves this machine unasked.
//!
//! `load race` shows many callers taking the same quota, by three ways; `load cycles` runs whole reservations and holds
//! the ledger against them; `load latency` measures the whole `admit` call
//! by input size and callers. Each run is bounded in time, tells its progress on stderr, and prints one JSON line on
//! stdout, which can be kept. Without `--store` a private redis-server is started on a free port and stopped again.

mod cycles;
mod latency;
mod race;
mod server;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use voxgate::quota::store::{Reply, Script, Store, StoreError};

/// Measures Voxgate's claims on this machine.
#[derive(Parser)]
#[command(name = "load", version, max_term_width = 80)]
struct Cli {
    #[command(subcommand)]
    run: Run,
}

#[derive(Subcommand)]
enum Run {
    /// Many callers take the same quota: check-then-take, a lock, and the one-key script
    #[command(after_help = "Example: load race --callers 64 --units 20000")]
    Race(race::Options),
    /// The whole admit call, by input size and number of callers
    #[command(after_help = "Example: load latency --calls 20000 --callers 1,8,50")]
    Latency(latency::Options),
    /// Reserve + settle cycles: saturating rate, latency at half of it, and the ledger held against both
    #[command(after_help = "Example: load cycles --cycles 70000 --clients 50")]
    Cycles(cycles::Options),
}

/// Where the store is.
#[derive(Args)]
struct Target {
    /// A store to use (keys under `load:`); default: a private redis-server
    #[arg(long, env = "VOXGATE_LOAD_STORE", value_name = "URL")]
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
    let done = runtime.block_on(async {
        match cli.run {
            Run::Race(options) => race::run(options).await,
            Run::Latency(options) => latency::run(options).await,
            Run::Cycles(options) => cycles::run(options).await,
        }
    });
    match done {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
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
    /// The store gave no answer.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// The budget of the run did not do.
    #[error("refused: {0}")]
    Refused(String),
    /// A task of the run panicked.
    #[error("a caller died: {0}")]
    Caller(#[from] tokio::task::JoinError),
    /// The store answered what no command or script of the run answers.
    #[error("unexpected answer: {0:?}")]
    Odd(Reply),
}

/// The machine and the day, for every result.
fn environment() -> serde_json::Value {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    serde_json::json!({
        "voxgate": env!("CARGO_PKG_VERSION"),
        "cores": cores,
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
