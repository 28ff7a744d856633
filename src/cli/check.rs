//! `check`: tries out everything that `serve` needs and says, line by line, what is wrong and how to mend it.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use voxgate::config::{Config, StoreUrl};
use voxgate::quota::Quota;
use voxgate::quota::period::zone_known;
use voxgate::quota::store::{Store, StoreError};
use voxgate::worker::WorkerSpec;

use super::latency::{self, Latency};
use super::store::{Finding, Grade, inspect};
use super::{ConfigArgs, Failure, fit, told};

/// How long a worker may take to answer.
const WORKER_PATIENCE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  voxgate check --config voxgate.toml
  voxgate check --store redis://127.0.0.1:6379 --json

Exit codes: 0 nothing failed (there may be warnings), 1 something failed,
78 the configuration is wrong.";

/// Tries out configuration, ports, store and workers; measures the scripts.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CheckArgs {
    /// Print JSON instead of text.
    #[arg(long, env = "VOXGATE_JSON")]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs the command.
pub(super) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let config = match args.config.load() {
        Ok(config) => config,
        Err(failure) => {
            if args.json {
                told::json(&json!({ "findings": [Finding::fail("config", failure.text(), "see stderr")] }));
            }
            return Err(failure);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("no runtime: {error}")))?;
    let mut findings = vec![Finding::pass("config", "every setting is allowed")];
    findings.extend(runtime.block_on(ports(&config)));
    findings.push(descriptors(config.limits.streams_max));
    findings.push(zones());
    findings.push(token(&config));
    findings.extend(models(&config));
    let table = runtime.block_on(store(&config, &mut findings));
    findings.extend(workers(&config.workers));
    tell(&findings, &table, args.json);
    let failed = findings.iter().filter(|finding| finding.grade == Grade::Fail).count();
    if failed == 0 {
        Ok(())
    } else {
        Err(Failure::failed(format!("{failed} of {} checks failed", findings.len())))
    }
}

fn tell(findings: &[Finding], table: &[Latency], as_json: bool) {
    if as_json {
        told::json(&json!({ "findings": findings, "scripts": table }));
        return;
    }
    for finding in findings {
        told::line(&format!("{}  {:<18} {}", finding.grade.word(), finding.name, finding.reason));
        if !finding.fix.is_empty() {
            told::line(&format!("      {:<18} fix: {}", "", finding.fix));
        }
    }
    if !table.is_empty() {
        told::line("");
        told::out(&told::table(&latency::COLUMNS, &table.iter().map(Latency::cells).collect::<Vec<_>>()));
    }
}

async fn ports(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, address) in
        [("public address", config.listen.address), ("admin address", config.admin.address)]
    {
        findings.push(port(name, address).await);
    }
    if !config.listen.address.ip().is_loopback() {
        let reason = format!("{} can be reached from other machines, without TLS", config.listen.address);
        findings.push(Finding::warn("public TLS", reason, "put a TLS proxy (Caddy, nginx) in front"));
    }
    findings
}

async fn port(name: &str, address: SocketAddr) -> Finding {
    match tokio::net::TcpListener::bind(address).await {
        Ok(_) => Finding::pass(name, format!("{address} is free")),
        Err(error) => {
            let fix = "stop what listens there (is `voxgate serve` running?), or choose another port";
            Finding::fail(name, format!("can't listen on {address}: {error}"), fix)
        }
    }
}

/// Each stream needs two descriptors: the client's socket and the worker's.
fn descriptors(streams_max: u32) -> Finding {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()).map(|word| word.parse::<u64>());
    let needed = 2 * u64::from(streams_max) + 128;
    match soft {
        Some(Ok(soft)) if soft < needed => {
            let reason = format!("{soft} allowed, {needed} needed for limits.streams_max = {streams_max}");
            Finding::warn(
                "open files",
                reason,
                "raise it (ulimit -n, LimitNOFILE=), or lower limits.streams_max",
            )
        }
        Some(Ok(soft)) => Finding::pass("open files", format!("{soft} allowed, {needed} needed")),
        // `unlimited`, or a system without /proc.
        Some(Err(_)) | None => Finding::pass("open files", "no limit found"),
    }
}

fn zones() -> Finding {
    if zone_known("Europe/Berlin") {
        Finding::pass("time zones", "the zone database is there")
    } else {
        let reason = "no zone database: accounts can only use UTC and fixed periods";
        Finding::warn("time zones", reason, "install the package tzdata")
    }
}

fn token(config: &Config) -> Finding {
    match config.admin.token {
        Some(_) => Finding::pass("admin token", "configured"),
        None => Finding::pass("admin token", "none configured: `serve` makes one at its start"),
    }
}

/// Models with a tariff that no worker serves are most likely typing mistakes.
fn models(config: &Config) -> Option<Finding> {
    let served =
        |model: &String| config.workers.iter().any(|w| w.models.is_empty() || w.models.contains(model));
    let lost: Vec<_> = config.models.keys().filter(|model| !served(model)).cloned().collect();
    let reason = format!("no worker serves {}", lost.join(", "));
    (!lost.is_empty()).then(|| Finding::warn("models", reason, "compare [models] with the workers' models"))
}

async fn store(config: &Config, findings: &mut Vec<Finding>) -> Vec<Latency> {
    if let StoreUrl::Disk(url) = &config.store.url
        && is_bare(url)
    {
        findings.push(Finding::pass("store", format!("{url}: nothing there yet, `serve` makes it")));
        return Vec::new();
    }
    let outcome = async {
        let quota = Quota::new(
            Store::open_with(config.store.url.address(), &config.store.options)?,
            fit::quota_settings(config),
        );
        findings.extend(inspect(&quota, &config.store.url).await?);
        let table = latency::measure(&quota).await?;
        findings.extend(latency::judge(&table));
        Ok::<_, StoreError>(table)
    };
    match outcome.await {
        Ok(table) => table,
        Err(error) => {
            let reason = format!("{}: {error}", config.store.url);
            let fix = match (&config.store.url, &error) {
                (StoreUrl::Embedded | StoreUrl::Disk(_), _) => "see there, or name another store.url",
                (StoreUrl::Redis(_), StoreError::Thin { .. }) => "add replicas, or lower store.wait_replicas",
                (StoreUrl::Redis(_), StoreError::Denied(_)) => {
                    "mend store.url, its password and the user's ACL"
                }
                (StoreUrl::Redis(_), _) => "start it, or mend store.url",
            };
            findings.push(Finding::fail("store", reason, fix));
            Vec::new()
        }
    }
}

/// Whether opening this store would make it: checking changes nothing.
fn is_bare(url: &str) -> bool {
    let folder = url.strip_prefix("embedded:").unwrap_or(url);
    let empty = |mut entries: std::fs::ReadDir| entries.next().is_none();
    match std::fs::read_dir(folder) {
        Ok(entries) => empty(entries),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

fn workers(workers: &[WorkerSpec]) -> Vec<Finding> {
    if workers.is_empty() {
        let fix = "name one: [[workers]] in the file, or --worker ws://127.0.0.1:7000";
        return vec![Finding::warn("workers", "none configured: every stream will be refused", fix)];
    }
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(WORKER_PATIENCE))
        .max_redirects(0)
        .http_status_as_error(false)
        .build();
    let agent = ureq::Agent::from(config);
    workers.iter().map(|worker| reach(&agent, worker)).collect()
}

/// Any HTTP answer will do: not every worker has a page for its state.
fn reach(agent: &ureq::Agent, worker: &WorkerSpec) -> Finding {
    let name = format!("worker {}", worker.name);
    let url = worker.url.to_string();
    let authority = url.strip_prefix("ws://").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    match agent.get(format!("http://{authority}/v1/status")).call() {
        Ok(_) => Finding::pass(&name, format!("{url} answers")),
        Err(error) => Finding::fail(&name, format!("{url}: {error}"), "start it, or mend its url"),
    }
}
