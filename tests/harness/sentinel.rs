//! A primary, its replicas, and the Sentinels that watch over them: real processes on loopback.

use std::path::Path;

use super::polled;
use super::proxy::Proxy;
use super::redis_server::RedisServer;

/// The name under which the Sentinels know the primary.
pub const MASTER: &str = "voice";

/// A watched primary. All processes end with this handle.
pub struct Sentinel {
    /// Data nodes, the first primary first.
    pub data: Vec<RedisServer>,
    /// The watchers.
    pub sentinels: Vec<RedisServer>,
    scheme: &'static str,
}

impl Sentinel {
    /// One primary, two replicas, three Sentinels that fail over a second after they miss the primary.
    pub async fn start(binary: &Path) -> Self {
        let primary = RedisServer::start(binary, &[]);
        let of = format!("127.0.0.1 {}", primary.port);
        let replica = || RedisServer::start(binary, &["--replicaof", &of]);
        let replicas = [replica(), replica()];
        let watcher = || watcher(binary, primary.port, 2, 1000, &[]);
        let sentinels = vec![watcher(), watcher(), watcher()];
        let mut data = vec![primary];
        data.extend(replicas);
        let watched = Self { data, sentinels, scheme: "redis+sentinel" };
        watched.ready().await;
        watched
    }

    /// One primary whose announced address is `proxy`'s, and one Sentinel that never fails over.
    pub fn behind(binary: &Path, primary: RedisServer, proxy: &Proxy) -> Self {
        let sentinel = watcher(binary, proxy.address().port(), 1, 60_000, &[]);
        Self { data: vec![primary], sentinels: vec![sentinel], scheme: "redis+sentinel" }
    }

    /// Servers and one Sentinel that never fails over and watches the first of them.
    pub fn watching(binary: &Path, data: Vec<RedisServer>) -> Self {
        let sentinel = watcher(binary, data[0].port, 1, 60_000, &[]);
        Self { data, sentinels: vec![sentinel], scheme: "redis+sentinel" }
    }

    /// A TLS-only primary and a Sentinel that listens on TLS as well; `tls` are the server's TLS arguments.
    pub fn over_tls(binary: &Path, primary: RedisServer, tls: &[String]) -> Self {
        let tls = tls.chunks(2).map(|pair| format!("{} {}\n", pair[0].trim_start_matches('-'), pair[1]));
        let more = tls.chain(["tls-replication yes\ntls-port SECOND\n".to_owned()]).collect::<Vec<_>>();
        let sentinel = watcher(binary, primary.second_port, 1, 60_000, &more);
        Self { data: vec![primary], sentinels: vec![sentinel], scheme: "rediss+sentinel" }
    }

    /// The store URL that names all Sentinels.
    pub fn url(&self) -> String {
        self.url_as("", "")
    }

    /// The same with a login (`user:password`) for the data nodes, and a query.
    pub fn url_as(&self, login: &str, query: &str) -> String {
        let tls = self.scheme.starts_with("rediss");
        let port = |server: &RedisServer| if tls { server.second_port } else { server.port };
        let hosts: Vec<_> = self.sentinels.iter().map(|s| format!("127.0.0.1:{}", port(s))).collect();
        let at = if login.is_empty() { "" } else { "@" };
        format!("{}://{login}{at}{}/{MASTER}{query}", self.scheme, hosts.join(","))
    }

    /// The port that the first Sentinel gives as the primary's.
    pub async fn primary_port(&self) -> u16 {
        self.port_by(&self.sentinels[0]).await
    }

    /// The data node that is primary by the Sentinels' word.
    pub async fn primary(&self) -> usize {
        let port = self.primary_port().await;
        self.data.iter().position(|server| server.port == port).expect("one of ours")
    }

    /// Tells the Sentinels that another node is the primary, as if they had found out.
    pub async fn name_primary(&self, node: usize) {
        let port = self.data[node].port.to_string();
        for sentinel in &self.sentinels {
            sentinel.tell::<()>(&["SENTINEL", "REMOVE", MASTER]).await;
            sentinel.tell::<()>(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &port, "1"]).await;
        }
    }

    /// Kills the primary and tells which node it was.
    pub async fn kill_primary(&mut self) -> usize {
        let old = self.primary().await;
        self.data[old].kill();
        old
    }

    /// Waits until every Sentinel names another primary than `old`, and that one takes writes; tells which.
    pub async fn failed_over(&self, old: usize) -> usize {
        polled("a failover", async || {
            let now = self.primary().await;
            for sentinel in &self.sentinels {
                (self.port_by(sentinel).await != self.data[old].port).then_some(())?;
            }
            let role = self.data[now].info("replication", "role").await?;
            (now != old && role == "master").then_some(now)
        })
        .await
    }

    /// Waits until a restarted node follows the primary.
    pub async fn follows(&self, node: usize) {
        polled("a replica that follows", async || {
            let link = self.data[node].info("replication", "master_link_status").await?;
            (link == "up").then_some(())
        })
        .await;
    }

    async fn port_by(&self, sentinel: &RedisServer) -> u16 {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
        sentinel.tell::<(String, u16)>(&words).await.1
    }

    /// Waits until all know each other: only then can they elect one of them and promote a replica.
    async fn ready(&self) {
        for sentinel in &self.sentinels {
            polled("Sentinels that know each other", async || {
                let state: Vec<String> = sentinel.ask(&["SENTINEL", "MASTER", MASTER]).await.ok()?;
                let field =
                    |name: &str| state.chunks(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone());
                (field("num-slaves")? == "2" && field("num-other-sentinels")? == "2").then_some(())
            })
            .await;
        }
        for node in 1..self.data.len() {
            self.follows(node).await;
        }
    }
}

fn watcher(binary: &Path, port: u16, quorum: u8, down_after_ms: u32, more: &[String]) -> RedisServer {
    RedisServer::launch(binary, |place| {
        let text = format!(
            "port {}\nbind 127.0.0.1\n{}sentinel monitor {MASTER} 127.0.0.1 {port} {quorum}\n\
             sentinel down-after-milliseconds {MASTER} {down_after_ms}\nsentinel failover-timeout {MASTER} 3000\n",
            place.port,
            more.concat().replace("SECOND", &place.second_port.to_string()),
        );
        let file = place.folder.join("sentinel.conf");
        std::fs::write(&file, text).expect("a writable folder");
        vec![file.display().to_string(), "--sentinel".to_owned()]
    })
}
