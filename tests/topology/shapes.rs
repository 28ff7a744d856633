//! A store of each shape behind a byte proxy, and short ways to stream and to look.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use voxgate::quota::store::Store;
use voxgate::quota::store::redis::Options;
use voxgate::quota::{Account, Key, Lease, Name, OpenError, Quota, Settings, Terms};

use crate::harness::cluster::Cluster;
use crate::harness::proxy::Proxy;
use crate::harness::redis_server::RedisServer;
use crate::harness::sentinel::Sentinel;
use crate::money::books::{self, Books};
use crate::money::house::{a_key, name, units};

/// Units per day of an account made here: more than any test uses.
pub const CAP: u32 = 1_000_000_000;

/// A store of one primary, reached in one of the ways there are, always through a proxy.
pub struct Shape {
    /// `standalone`, `sentinel` or `cluster`.
    pub word: &'static str,
    /// What a gateway is given.
    pub url: String,
    /// Stands before the primary; nothing but tests reaches it otherwise.
    pub proxy: Proxy,
    servers: Servers,
}

enum Servers {
    One(RedisServer),
    Watched(Sentinel),
    Cluster(Cluster),
}

impl Shape {
    /// All shapes on one kind of server.
    pub async fn all(binary: &Path) -> [Self; 3] {
        [Self::standalone(binary).await, Self::watched(binary).await, Self::cluster(binary).await]
    }

    /// A server alone.
    pub async fn standalone(binary: &Path) -> Self {
        let server = RedisServer::start(binary, &[]);
        let proxy = Proxy::to(([127, 0, 0, 1], server.port).into()).await;
        Self { word: "standalone", url: proxy.redis_url(), proxy, servers: Servers::One(server) }
    }

    /// A server that a Sentinel gives the proxy's address of.
    pub async fn watched(binary: &Path) -> Self {
        let server = RedisServer::start(binary, &[]);
        let proxy = Proxy::to(([127, 0, 0, 1], server.port).into()).await;
        let watched = Sentinel::behind(binary, server, &proxy);
        Self { word: "sentinel", url: watched.url(), proxy, servers: Servers::Watched(watched) }
    }

    /// A cluster of one node that announces the proxy's address.
    pub async fn cluster(binary: &Path) -> Self {
        let (cluster, proxy) = Cluster::one_behind_proxy(binary).await;
        Self { word: "cluster", url: cluster.url().to_owned(), proxy, servers: Servers::Cluster(cluster) }
    }

    /// The primary itself.
    pub fn server(&self) -> &RedisServer {
        match &self.servers {
            Servers::One(server) => server,
            Servers::Watched(watched) => &watched.data[0],
            Servers::Cluster(cluster) => &cluster.nodes[0],
        }
    }

    /// The books of an account, read past the proxy.
    pub async fn books(&self, account: &str) -> Books {
        books_on(self.server(), account).await
    }
}

/// The books of an account on the node that has them.
pub async fn books_on(server: &RedisServer, account: &str) -> Books {
    let direct = Store::open(&server.url()).expect("a valid URL");
    books::read(&direct, "vox:", &name(account)).await
}

/// A gateway's money room over a real store, with one account.
pub struct Till {
    /// The room.
    pub quota: Quota,
    store: Store,
    /// Who pays.
    pub id: Name,
    /// How.
    pub key: Arc<Key>,
}

impl Till {
    /// Makes the account and a key of it.
    pub async fn at(url: &str, account: &str) -> Self {
        Self::with(url, &Options::default(), account).await
    }

    /// The same with what a URL can't hold.
    pub async fn with(url: &str, options: &Options, account: &str) -> Self {
        let store = Store::open_with(url, options).expect("a valid URL");
        let quota = Quota::new(store.clone(), Settings::default());
        let mut account = Account::new(name(account), units(CAP));
        account.share = 1;
        quota.put_account(&account).await.expect("a store that answers");
        let key = quota.add_key(a_key(&account.id)).await.expect("a store that answers").1;
        Self { quota, store, id: account.id, key: Arc::new(key) }
    }

    /// The same room for another account.
    pub fn of(&self, id: Name, key: Key) -> Self {
        Self { quota: self.quota.clone(), store: self.store.clone(), id, key: Arc::new(key) }
    }

    /// Another room of the same account, whose leases fall due at once.
    pub fn hasty(&self) -> Self {
        let settings = Settings { lifetime: Duration::from_millis(200), ..Settings::default() };
        let quota = Quota::new(self.store.clone(), settings);
        Self { quota, store: self.store.clone(), id: self.id.clone(), key: self.key.clone() }
    }

    /// Opens a stream.
    pub async fn open(&self, session: &str) -> Result<Lease, OpenError> {
        let account = self.quota.account(&self.id).await?.expect("an account");
        let terms = Terms {
            account: Arc::new(account),
            key: self.key.clone(),
            session: Some(name(session)),
            model: "m".into(),
            units_per_second: 1000,
            tags: String::new(),
        };
        self.quota.open(terms).await
    }
}
