//! A cluster of real processes on loopback, put together by plain commands, whose slots can be moved half way.

use std::path::Path;

use super::polled;
use super::proxy::Proxy;
use super::redis_server::RedisServer;

/// All slots of a cluster.
const SLOTS: u16 = 16_384;

/// A running cluster. All processes end with this handle.
pub struct Cluster {
    /// Three primaries, then their replicas in the same order; or one node.
    pub nodes: Vec<RedisServer>,
    url: String,
}

impl Cluster {
    /// Three primaries with a replica each, which fail over about a second after a primary is missed. A dead primary
    /// takes only its own slots with it.
    pub async fn start(binary: &Path) -> Self {
        let nodes: Vec<_> = (0..6).map(|_| node(binary, &[])).collect();
        let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let cluster = Self { nodes, url: format!("redis+cluster://{}", hosts.join(",")) };
        for (number, node) in cluster.nodes.iter().enumerate() {
            node.tell::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]).await;
        }
        for (third, node) in cluster.nodes[..3].iter().enumerate() {
            let from = |third: usize| (third * usize::from(SLOTS)).div_ceil(3);
            let (first, last) = (from(third).to_string(), (from(third + 1) - 1).to_string());
            node.tell::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
        }
        for node in &cluster.nodes[1..] {
            let (port, bus) = (node.port.to_string(), node.second_port.to_string());
            cluster.nodes[0].tell::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
        }
        cluster.settled("cluster_known_nodes", "6").await;
        for replica in 3..6 {
            let of = cluster.id(replica - 3).await;
            polled("a replica", async || {
                cluster.nodes[replica].ask::<()>(&["CLUSTER", "REPLICATE", &of]).await.ok()
            })
            .await;
        }
        cluster.settled("cluster_state", "ok").await;
        for replica in 3..6 {
            cluster.follows(replica).await;
        }
        cluster
    }

    /// One node that holds every slot.
    pub async fn one(binary: &Path) -> Self {
        Self::of_one(node(binary, &[]), "redis+cluster").await
    }

    /// One node that holds every slot and announces a proxy's port as its own: clients that ask it where the slots are
    /// go through the proxy.
    pub async fn one_behind_proxy(binary: &Path) -> (Self, Proxy) {
        let node = node(binary, &[]);
        let proxy = Proxy::to(([127, 0, 0, 1], node.port).into()).await;
        let port = proxy.address().port();
        node.tell::<()>(&["CONFIG", "SET", "cluster-announce-port", &port.to_string()]).await;
        node.tell::<()>(&["CONFIG", "SET", "cluster-announce-ip", "127.0.0.1"]).await;
        let mut cluster = Self::of_one(node, "redis+cluster").await;
        cluster.url = format!("redis+cluster://127.0.0.1:{port}");
        (cluster, proxy)
    }

    /// One node that holds every slot and speaks TLS to clients; `tls` are its TLS arguments.
    pub async fn one_over_tls(binary: &Path, tls: &[String]) -> Self {
        let tls: Vec<_> = tls.iter().map(String::as_str).collect();
        let node = tls_node(binary, &tls);
        let mut cluster = Self::of_one(node, "rediss+cluster").await;
        let port: u16 = cluster.nodes[0].tell::<Vec<String>>(&["CONFIG", "GET", "tls-port"]).await[1]
            .parse()
            .expect("a port");
        cluster.url = format!("rediss+cluster://127.0.0.1:{port}");
        cluster
    }

    async fn of_one(node: RedisServer, scheme: &str) -> Self {
        node.tell::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", &(SLOTS - 1).to_string()]).await;
        let url = format!("{scheme}://127.0.0.1:{}", node.port);
        let cluster = Self { nodes: vec![node], url };
        cluster.settled("cluster_state", "ok").await;
        cluster
    }

    /// The store URL that names all nodes.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The slot of a key.
    pub async fn slot(&self, key: &str) -> u16 {
        self.alive().await.tell(&["CLUSTER", "KEYSLOT", key]).await
    }

    /// The node that serves a key now, by its own word.
    pub async fn node_of(&self, key: &str) -> usize {
        polled("a node that serves the key", async || {
            for (number, node) in self.nodes.iter().enumerate() {
                // A replica or another primary says MOVED, a dead one nothing.
                if node.ask::<i64>(&["EXISTS", key]).await.is_ok() {
                    return Some(number);
                }
            }
            None
        })
        .await
    }

    /// Waits until a node's replication is up.
    pub async fn follows(&self, node: usize) {
        polled("a replica that follows", async || {
            let link = self.nodes[node].info("replication", "master_link_status").await?;
            (link == "up").then_some(())
        })
        .await;
    }

    /// Half of a move: `from` sends clients that ask for keys it does not have (any more) on to `to` by ASK, and answers
    /// TRYAGAIN where it has some of a script's keys.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, source, target) = (slot.to_string(), self.id(from).await, self.id(to).await);
        self.nodes[to].tell::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]).await;
        self.nodes[from].tell::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await;
    }

    /// Moves at most `most` keys of a slot, and tells how many there were.
    pub async fn move_keys(&self, slot: u16, from: usize, to: usize, most: usize) -> usize {
        let words = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &most.to_string()];
        let keys: Vec<String> = self.nodes[from].tell(&words).await;
        if !keys.is_empty() {
            let port = self.nodes[to].port.to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            self.nodes[from].tell::<String>(&words).await;
        }
        keys.len()
    }

    /// The other half: `to` owns the slot, and everybody who asks `from` is told MOVED.
    pub async fn end_move(&self, slot: u16, from: usize, to: usize) {
        let target = self.id(to).await;
        for node in [to, from] {
            self.nodes[node].tell::<()>(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &target]).await;
        }
    }

    /// A whole move.
    pub async fn migrate(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to).await;
        while self.move_keys(slot, from, to, 100).await > 0 {}
        self.end_move(slot, from, to).await;
    }

    async fn id(&self, node: usize) -> String {
        self.nodes[node].tell(&["CLUSTER", "MYID"]).await
    }

    async fn alive(&self) -> &RedisServer {
        for node in &self.nodes {
            if node.ask::<String>(&["PING"]).await.is_ok() {
                return node;
            }
        }
        panic!("no node answers");
    }

    /// Waits until every node says so.
    async fn settled(&self, field: &str, value: &str) {
        for node in &self.nodes {
            polled(field, async || {
                let text: String = node.ask(&["CLUSTER", "INFO"]).await.ok()?;
                text.lines().any(|line| line.trim() == format!("{field}:{value}")).then_some(())
            })
            .await;
        }
    }
}

fn node(binary: &Path, extra: &[&str]) -> RedisServer {
    RedisServer::start_at(binary, |place| {
        let bus = place.second_port.to_string();
        let fixed = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "1000"];
        let lax = ["--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0"];
        [&fixed[..], &lax, extra].concat().into_iter().map(str::to_owned).collect()
    })
}

/// A node whose second port speaks TLS, and is the one it tells TLS clients of. It has no bus of its own to share.
fn tls_node(binary: &Path, tls: &[&str]) -> RedisServer {
    RedisServer::start_at(binary, |place| {
        let port = place.second_port.to_string();
        let fixed =
            ["--cluster-enabled", "yes", "--cluster-port", "0", "--tls-port", &port, "--tls-cluster", "yes"];
        [&fixed[..], tls].concat().into_iter().map(str::to_owned).collect()
    })
}
