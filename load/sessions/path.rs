//! Ways from a client to the worker. Another proxy is one more [`Path`]: start it, say where it listens and which
//! processes are its own.

use super::super::client::Door;
use super::super::gateway::{self, Gateway};
use super::super::server::Private;
use super::super::worker::Worker;
use super::super::{Failure, Target};

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(in super::super) enum Path {
    /// From client to worker with nothing between: what all others are held against.
    Direct,
    /// Through a gateway with the store in its own process.
    Embedded,
    /// Through a gateway and a Redis.
    Redis,
    /// Through a gateway that somebody else runs.
    #[value(skip)]
    Given,
}

impl Path {
    /// Its name in reports.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Embedded => "embedded",
            Self::Redis => "redis",
            Self::Given => "given gateway",
        }
    }
}

/// A path that is up.
pub(super) struct Proxy {
    pub(super) path: Path,
    /// Where streams are opened.
    pub(super) door: Door,
    gateway: Option<Gateway>,
    store: Option<Private>,
}

impl Proxy {
    /// Starts all that the path needs, but for the worker.
    pub(super) async fn start(path: Path, worker: &Worker, target: &Target) -> Result<Self, Failure> {
        let (url, store) = match path {
            Path::Direct | Path::Given => return Ok(Self::given(path, &worker.address, None)),
            Path::Embedded => ("embedded".to_owned(), None),
            Path::Redis => {
                let store = Private::open(target)?;
                (store.url.clone(), Some(store))
            }
        };
        let gateway = Gateway::start(&gateway::beside(), &url, PREFIX, &worker.url()).await?;
        let account = format!("load-{}-{}", std::process::id(), fastrand::u32(..));
        let key = Some(gateway.key(&account).await?);
        let door = Door { address: gateway.address.clone(), key };
        Ok(Self { path, door, gateway: Some(gateway), store })
    }

    /// One that runs already.
    pub(super) fn given(path: Path, address: &str, key: Option<String>) -> Self {
        let door = Door { address: address.to_owned(), key };
        Self { path, door, gateway: None, store: None }
    }

    /// Its own processes, by what they are.
    pub(super) fn pids(&self) -> Vec<(&'static str, u32)> {
        let gateway = self.gateway.as_ref().and_then(Gateway::pid).map(|pid| ("gateway", pid));
        let store = self.store.as_ref().and_then(Private::pid).map(|pid| ("store", pid));
        gateway.into_iter().chain(store).collect()
    }

    /// Its store, if it has one outside the gateway.
    pub(super) fn store(&self) -> Option<&Private> {
        self.store.as_ref()
    }

    /// Ends what was started.
    pub(super) async fn stop(self) -> Result<(), Failure> {
        match self.gateway {
            Some(gateway) => gateway.stop().await,
            None => Ok(()),
        }
    }
}

/// What keys in the store begin with.
const PREFIX: &str = "load:";
