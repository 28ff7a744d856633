//! `demo`: everything on this machine, with a real speech model and no configuration. Ends all that it started.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use clap::Args;
use voxgate::config::{Config, Sources};
use voxgate::quota::{Account, Key, Name};
use voxgate::telemetry;
use voxgate::units::Units;

use super::python::WorkerProcess;
use super::serve::{Server, Signals, runtime};
use super::{Failure, told};

/// Small enough to see it drain: five minutes a day.
const BUDGET: u32 = 5 * 60 * 1000;
/// Ports that are tried first; where they are taken, any free ones.
const PORTS: (u16, u16) = (8080, 9090);

const EXAMPLES: &str = "\
Examples:
  voxgate demo
  voxgate demo --worker-python ~/venv/bin/python

The first run installs the speech model into ~/.cache/voxgate. Ctrl-c ends
everything.";

/// Runs gateway, books and a real speech model on this machine.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct DemoArgs {
    /// An interpreter that has the worker's packages already.
    #[arg(long, env = "VOXGATE_WORKER_PYTHON", value_name = "PATH")]
    worker_python: Option<PathBuf>,
    /// Public port; without it 8080, or a free one.
    #[arg(long, env = "VOXGATE_DEMO_PORT")]
    port: Option<u16>,
    /// error, warn, info, debug, trace, or filters.
    #[arg(long, env = "VOXGATE_LOG__LEVEL", value_name = "LEVEL", default_value = "warn")]
    log_level: String,
}

/// Runs the command.
pub(super) fn run(args: &DemoArgs) -> Result<(), Failure> {
    let first = configure(args, "ws://127.0.0.1:1")?;
    telemetry::start_log(&first.log);
    runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        let mut worker = tokio::select! {
            worker = WorkerProcess::start(args.worker_python.as_deref()) => worker?,
            () = signals.next() => return Ok(()),
        };
        let outcome = serve(args, &mut worker, &mut signals).await;
        worker.stop().await;
        outcome
    })
}

async fn serve(args: &DemoArgs, worker: &mut WorkerProcess, signals: &mut Signals) -> Result<(), Failure> {
    let config = configure(args, &worker.url)?;
    let server = Server::start(&config).await?;
    let secret = match furnish(&server).await {
        Ok(secret) => secret,
        Err(failure) => {
            server.stop(signals).await.ok();
            return Err(failure);
        }
    };
    tell(&server, &secret);
    let lost = tokio::select! {
        reason = worker.ended() => Some(reason),
        () = signals.next() => None,
    };
    let ended = server.stop(signals).await;
    match lost {
        Some(reason) => Err(Failure::unavailable(reason)),
        None => ended,
    }
}

/// The demo's settings: nothing of the environment but the log.
fn configure(args: &DemoArgs, worker: &str) -> Result<Config, Failure> {
    let flags = vec![
        ("listen.address", address(args.port, PORTS.0).to_string()),
        ("admin.address", address(None, PORTS.1).to_string()),
        ("log.level", args.log_level.clone()),
        ("limits.drain", "3s".to_owned()),
    ];
    let sources = Sources { flags, workers: vec![worker.to_owned()], ..Sources::default() };
    Ok(Config::load(&sources)?)
}

/// The port asked for; else the usual one; else whichever is free when it is bound.
fn address(asked: Option<u16>, usual: u16) -> SocketAddr {
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match asked {
        Some(port) => at(port),
        None if TcpListener::bind(at(usual)).is_ok() => at(usual),
        None => at(0),
    }
}

/// Makes the account and its key; gives the secret.
async fn furnish(server: &Server) -> Result<String, Failure> {
    let id = Name::parse("demo").ok_or_else(|| Failure::failed("the demo's own name is not allowed"))?;
    let account = Account { share: 1, ..Account::new(id.clone(), Units::from(BUDGET)) };
    server.quota.put_account(&account).await?;
    let key = Key {
        fingerprint: String::new(),
        account: id,
        label: "demo".to_owned(),
        cap: None,
        session_cap: None,
        streams_max: 16,
        models: Vec::new(),
        revoked: false,
    };
    let (secret, _) = server.quota.add_key(key).await?;
    Ok(secret)
}

fn tell(server: &Server, secret: &str) {
    server.tell();
    eprintln!("\nAccount `demo` has 5 minutes of audio a day. Speak, or play the sample, on this page:");
    told::line(&format!("http://{}/#key={secret}", server.public));
    eprintln!("\nOr stream a file (ctrl-c here ends the demo):");
    eprintln!(
        "  VOXGATE_KEY={secret} {} stream clients/sample/two_cities.wav --url http://{}",
        std::env::args().next().unwrap_or_else(|| "voxgate".to_owned()),
        server.public
    );
}
