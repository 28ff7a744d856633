//! `serve`: starts every part, tells where it is, and ends in order when asked to.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use voxgate::admin::{self, Readiness, TokenFile};
use voxgate::config::{Config, Secret, StoreUrl};
use voxgate::gateway::{DrainReport, Gateway};
use voxgate::quota::store::Store;
use voxgate::quota::{Quota, SchemaError};
use voxgate::telemetry::{self, Metrics};
use voxgate::worker::{self, Pool};

use super::failure::CONFIG;
use super::store::{Grade, inspect};
use super::{ConfigArgs, Failure, fit};

const EXAMPLES: &str = "\
Examples:
  voxgate serve --worker ws://127.0.0.1:7000
  voxgate serve --config /etc/voxgate/voxgate.toml
  voxgate serve --store embedded:/var/lib/voxgate --worker ws://127.0.0.1:7000
  voxgate serve --store redis://127.0.0.1:6379/0 --worker ws://10.0.0.5:7000

Any setting of the file can stand in the environment: VOXGATE_SECTION__KEY.
SIGTERM or ctrl-c: no new streams, running ones get their time and their last
words, then the end with 0. A second one ends their time, a third everything.";

/// Runs the gateway until SIGTERM or ctrl-c.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs the command.
pub(super) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let config = args.config.load()?;
    telemetry::start_log(&config.log);
    runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        let server = Server::start(&config).await?;
        server.tell();
        signals.next().await;
        server.stop(&mut signals).await
    })
}

/// The runtime that servers run on.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Failure::failed(format!("no runtime: {error}")))
}

/// SIGTERM and SIGINT, caught from the moment this is made.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self, Failure> {
        let catch = |kind| {
            signal(kind).map_err(|error| Failure::failed(format!("can't listen for signals: {error}")))
        };
        Ok(Self { terminate: catch(SignalKind::terminate())?, interrupt: catch(SignalKind::interrupt())? })
    }

    /// Resolves at the next of them. Cancel safe.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// A running gateway with all its parts.
pub(super) struct Server {
    gateway: Gateway,
    /// For the demo's account.
    pub(super) quota: Quota,
    readiness: Readiness,
    /// Where clients connect.
    pub(super) public: SocketAddr,
    admin: SocketAddr,
    /// The store's address, masked.
    books: String,
    token_file: Option<TokenFile>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    drain: Duration,
}

impl Server {
    /// Starts every part. When this fails, nothing is left running.
    pub(super) async fn start(config: &Config) -> Result<Self, Failure> {
        let metrics = Metrics::install();
        let quota = Quota::new(
            Store::open_with(config.store.url.address(), &config.store.options)?,
            fit::quota_settings(config),
        );
        refuse_unsafe_store(&quota, config).await?;
        refuse_other_schema(&quota).await?;
        let listener = bind(config.admin.address).await?;
        let admin_address = address(&listener)?;
        let (token, token_file) = admin_token(config, admin_address.port())?;
        let pool = Pool::new(config.workers.clone(), worker::Settings::default());
        let healthy = pool.clone();
        let readiness = Readiness::new(move || usize::from(healthy.ready()));
        let gateway = Gateway::start(fit::gateway_settings(config), quota.clone(), pool).await;
        let gateway = gateway.map_err(|error| {
            Failure::unavailable(format!("can't listen on {}: {error}", config.listen.address))
        })?;
        let router = admin::router(admin::Parts {
            quota: quota.clone(),
            readiness: readiness.clone(),
            metrics: metrics.clone(),
            token,
            share: config.quota.share,
        });
        if config.workers.is_empty() {
            tracing::warn!(
                "no worker is configured: every stream is refused; add --worker ws://… or a [[workers]] section"
            );
        }
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        tasks.spawn(admin::serve(listener, router, stop.clone()));
        let watch = admin::watch(quota.clone(), readiness.clone(), metrics);
        let reaping = quota.clone();
        let stopped = stop.clone();
        tasks.spawn(async move { reaping.reap_until(stopped).await });
        let stopped = stop.clone();
        tasks.spawn(async move { _ = stopped.run_until_cancelled(watch).await });
        let (public, drain) = (gateway.local_addr(), config.limits.drain);
        let books = match &config.store.url {
            StoreUrl::Embedded => "in memory, until this process ends".to_owned(),
            StoreUrl::Disk(url) => format!("{}, written every 250 ms", url.trim_start_matches("embedded:")),
            StoreUrl::Redis(_) => config.store.url.to_string(),
        };
        Ok(Self {
            gateway,
            quota,
            readiness,
            public,
            admin: admin_address,
            books,
            token_file,
            stop,
            tasks,
            drain,
        })
    }

    /// Prints where everything is.
    pub(super) fn tell(&self) {
        eprintln!("demo page  http://{}/", self.public);
        eprintln!("streams    ws://{}/v1/listen", self.public);
        eprintln!("metrics    http://{}/metrics", self.admin);
        eprintln!("health     http://{}/readyz", self.admin);
        eprintln!("admin API  http://{}/v1/accounts", self.admin);
        eprintln!("books      {}", self.books);
        if let Some(file) = &self.token_file {
            eprintln!("its token  {}", file.path().display());
        }
    }

    /// Ends in order: no new streams, running ones get their time and their last words, everything is settled. The
    /// first signal from now on ends their time, the second one ends everything.
    pub(super) async fn stop(mut self, signals: &mut Signals) -> Result<(), Failure> {
        self.readiness.drain();
        tracing::info!(patience = ?self.drain, streams = self.gateway.streams(), "draining");
        let report = {
            let draining = self.gateway.drain(self.drain);
            tokio::pin!(draining);
            let first = tokio::select! {
                report = &mut draining => Some(report),
                () = signals.next() => None,
            };
            if first.is_none() {
                self.gateway.hurry();
            }
            match first {
                Some(report) => Some(report),
                None => tokio::select! {
                    report = &mut draining => Some(report),
                    () = signals.next() => None,
                },
            }
        };
        self.stop.cancel();
        let Some(report) = report else {
            close(&self.quota)?;
            return Err(Failure::failed("ended at once, as asked; the reaper settles what was left"));
        };
        while self.tasks.join_next().await.is_some() {}
        let DrainReport { running, cut, abandoned, unsettled } = report;
        if abandoned > 0 || unsettled > 0 {
            tracing::error!(running, cut, abandoned, unsettled, "drained, the rest is left to the reaper");
        } else {
            tracing::info!(running, cut, "drained");
        }
        close(&self.quota)
    }
}

/// The last state goes to disk, where the store has one.
fn close(quota: &Quota) -> Result<(), Failure> {
    quota.close().map_err(|error| Failure::failed(format!("{error}; the last second's changes are lost")))
}

/// Money would be lost in such a store, so it is not even tried.
async fn refuse_unsafe_store(quota: &Quota, config: &Config) -> Result<(), Failure> {
    let url = &config.store.url;
    if matches!(url, StoreUrl::Embedded | StoreUrl::Disk(_)) {
        return Ok(()); // opening it has looked at all there is
    }
    let findings = inspect(quota, url).await.map_err(|error| {
        Failure::unavailable(format!("store {url} does not answer: {error}\nstart it, or mend store.url"))
    })?;
    for finding in &findings {
        match finding.grade {
            Grade::Pass => {}
            Grade::Warn => {
                tracing::warn!(what = finding.name, reason = finding.reason, fix = finding.fix, "store")
            }
            Grade::Fail => {
                let (name, reason, fix) = (&finding.name, &finding.reason, finding.fix);
                return Err(Failure::unavailable(format!("{name}: {reason}\n{fix}")));
            }
        }
    }
    Ok(())
}

/// A store whose layout is not ours is left alone.
async fn refuse_other_schema(quota: &Quota) -> Result<(), Failure> {
    quota.check_schema().await.map(drop).map_err(|error| match error {
        SchemaError::Store(error) => error.into(),
        SchemaError::Newer { .. } | SchemaError::Older { .. } | SchemaError::Foreign { .. } => {
            Failure::new(CONFIG, format!("{error}\nor name another store in store.url"))
        }
    })
}

/// The configured token, or one made for this run.
fn admin_token(config: &Config, port: u16) -> Result<(Secret, Option<TokenFile>), Failure> {
    if let Some(token) = &config.admin.token {
        return Ok((token.clone(), None));
    }
    let file = TokenFile::create(port).map_err(|error| {
        let path = admin::token_path(port);
        Failure::failed(format!("can't write {}: {error}\nset admin.token_file instead", path.display()))
    })?;
    Ok((file.token().clone(), Some(file)))
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::unavailable(format!(
            "can't listen on {address}: {error}\nis `voxgate serve` running already?"
        ))
    })
}

fn address(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    listener.local_addr().map_err(|error| Failure::failed(format!("a listener without an address: {error}")))
}

#[cfg(test)]
mod tests {
    use super::{Server, Signals};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use voxgate::config::{Config, Sources};

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_server_starts_and_drains() {
        let flags = vec![
            ("listen.address", "127.0.0.1:0".to_owned()),
            ("admin.address", "127.0.0.1:0".to_owned()),
            ("admin.token", "0123456789abcdef".to_owned()),
        ];
        let config = Config::load(&Sources { flags, ..Sources::default() }).unwrap();
        let server = Server::start(&config).await.unwrap();
        let (public, admin) = (server.public, server.admin);

        assert!(get(admin, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(admin, "/readyz").await.contains("no healthy worker"));
        assert!(get(admin, "/metrics").await.contains("voxgate_build_info"));
        for path in ["/metrics", "/v1/accounts", "/debug", "//metrics", "/%6detrics", "/METRICS"] {
            assert!(!get(public, path).await.starts_with("HTTP/1.1 2"), "{path} on the public side");
        }

        server.stop(&mut Signals::new().unwrap()).await.unwrap();
        assert!(tokio::net::TcpStream::connect(admin).await.is_err());
        assert!(tokio::net::TcpStream::connect(public).await.is_err());
    }
}
