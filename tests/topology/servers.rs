//! The servers of the harness themselves: a failover or a move that does not happen would let every other test pass for
//! nothing.

use crate::harness::certificates::Certificates;
use crate::harness::cluster::Cluster;
use crate::harness::polled;
use crate::harness::redis_server::{RedisServer, redis, store_binaries};
use crate::harness::sentinel::Sentinel;

/// Each kind of Sentinel promotes a replica that has what was written, and takes the old primary back as one.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_fail_over_and_back() {
    let kinds = store_binaries().into_iter().map(|binary| async move {
        let mut watched = Sentinel::start(&binary).await;
        let first = watched.primary().await;
        watched.data[first].tell::<()>(&["SET", "k", "v"]).await;
        watched.data[first].tell::<i64>(&["WAIT", "2", "5000"]).await;

        let old = watched.kill_primary().await;
        let new = watched.failed_over(old).await;

        assert_ne!(old, new);
        assert_eq!(watched.data[new].tell::<String>(&["GET", "k"]).await, "v");
        watched.data[old].restart(&[]);
        watched.follows(old).await;
        let error = watched.data[old].ask::<()>(&["SET", "k", "w"]).await.expect_err("a replica");
        assert_eq!(error.code(), Some("READONLY"));
    });
    futures_util::future::join_all(kinds).await;
}

/// Each kind of cluster answers ASK, TRYAGAIN and MOVED while a slot goes, keeps what it had, and fails over.
#[tokio::test(flavor = "multi_thread")]
async fn clusters_move_slots_and_fail_over() {
    let kinds = store_binaries().into_iter().map(|binary| async move {
        let mut cluster = Cluster::start(&binary).await;
        let (from, slot) = (cluster.node_of("{a}1").await, cluster.slot("{a}1").await);
        let to = (from + 1) % 3;
        for key in ["{a}1", "{a}2"] {
            cluster.nodes[from].tell::<()>(&["SET", key, key]).await;
        }
        cluster.begin_move(slot, from, to).await;
        assert_eq!(cluster.move_keys(slot, from, to, 1).await, 1);
        let code = async |words: &[&str]| {
            let answer = cluster.nodes[from].ask::<redis::Value>(words).await;
            answer.err().and_then(|error| error.code().map(str::to_owned))
        };
        let ask = [code(&["GET", "{a}1"]).await, code(&["GET", "{a}2"]).await];
        assert!(ask.contains(&Some("ASK".into())) && ask.contains(&None), "{ask:?}");
        assert_eq!(code(&["MGET", "{a}1", "{a}2"]).await.as_deref(), Some("TRYAGAIN"));
        cluster.move_keys(slot, from, to, 10).await;
        cluster.end_move(slot, from, to).await;
        assert_eq!(code(&["GET", "{a}1"]).await.as_deref(), Some("MOVED"));
        assert_eq!(cluster.nodes[to].tell::<Vec<String>>(&["MGET", "{a}1", "{a}2"]).await, ["{a}1", "{a}2"]);

        cluster.nodes[to].tell::<i64>(&["WAIT", "1", "5000"]).await;
        cluster.nodes[to].kill();
        let heir = polled("a failover", async || {
            let now = cluster.node_of("{a}1").await;
            (now != to).then_some(now)
        })
        .await;
        assert_eq!(heir, to + 3);
        assert_eq!(cluster.nodes[heir].tell::<String>(&["GET", "{a}2"]).await, "{a}2");
    });
    futures_util::future::join_all(kinds).await;
}

/// The announced port of a one-node cluster is its proxy's: who asks where the slots are is sent through it.
#[tokio::test]
async fn announced_port_is_the_proxys() {
    for binary in store_binaries() {
        let (cluster, proxy) = Cluster::one_behind_proxy(&binary).await;
        let nodes =
            polled("nodes", async || cluster.nodes[0].ask::<String>(&["CLUSTER", "NODES"]).await.ok()).await;
        let announced = format!(" 127.0.0.1:{}@", proxy.address().port());
        assert!(nodes.contains(&announced) && nodes.trim_end().ends_with(" 0-16383"), "{nodes}");
    }
}

/// A server with a certificate of ours shuts its TLS door to clients that show none, if it is told to.
#[tokio::test]
async fn tls_server_starts() {
    let certificates = Certificates::make();
    let server = RedisServer::start_at(redis(), |place| {
        let mut words = certificates.server_arguments("yes");
        words.extend(["--tls-port".to_owned(), place.second_port.to_string()]);
        words
    });
    let port: Vec<String> = server.tell(&["CONFIG", "GET", "tls-port"]).await;
    assert_eq!(port[1], server.second_port.to_string());
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", server.second_port)).await.is_ok());
}
