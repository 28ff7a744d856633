//! Slots that move, or have no home for a while, under live streams.

use std::collections::BTreeMap;
use std::time::Duration;

use super::access::rules;
use super::crowd::Stage;
use super::shapes::books_on;
use crate::harness::cluster::Cluster;
use crate::harness::polled;
use crate::harness::redis_server::store_binaries;

/// Error replies of the whole cluster so far, by their first word.
async fn replies(cluster: &Cluster) -> BTreeMap<&'static str, u64> {
    let mut seen = BTreeMap::new();
    for word in ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"] {
        for node in &cluster.nodes {
            let line = node.info("errorstats", &format!("errorstat_{word}")).await.unwrap_or_default();
            let count: u64 = line.strip_prefix("count=").map_or(0, |count| count.parse().expect("a number"));
            *seen.entry(word).or_default() += count;
        }
    }
    seen
}

/// An account's slot goes round three primaries, key by key, under live streams that open, refill and settle meanwhile:
/// nobody hears of it, nothing is taken twice.
#[tokio::test(flavor = "multi_thread")]
async fn moving_slots_disturb_no_stream() {
    futures_util::future::join_all(store_binaries().into_iter().map(|binary| async move {
        let cluster = Cluster::start(&binary).await;
        let more = "[quota]\nenvelope_first = \"1s\"\nenvelope_longest = \"2s\"\n";
        for node in &cluster.nodes {
            let user = ["ACL", "SETUSER", "voxgate"].map(str::to_owned);
            let words = [&user[..], &rules()].concat();
            node.tell::<()>(&words.iter().map(String::as_str).collect::<Vec<_>>()).await;
        }
        let stage = Stage::on(&cluster.url().replace("://", "://voxgate:pass@"), more).await;
        let key = stage.account("a").await;
        let (slot, home) = (cluster.slot("{a}").await, cluster.node_of("{a}").await);
        let long = stage.crowd(&key, 20, 6000).await;
        polled("audio on its way", async || (stage.forwarded() >= 10_000).then_some(())).await;

        let mut short = 0;
        for step in 0..3 {
            let (from, to) = ((home + step) % 3, (home + step + 1) % 3);
            cluster.begin_move(slot, from, to).await;
            while cluster.move_keys(slot, from, to, 4).await > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await; // as a careful operator's tool does
            }
            // Streams that begin while the slot lies on both sides, and the rest of the move beside them.
            let rest = async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                while cluster.move_keys(slot, from, to, 100).await > 0 {}
                cluster.end_move(slot, from, to).await;
            };
            let (newcomers, ()) = tokio::join!(stage.crowd(&key, 2, 300), rest);
            let after = newcomers.over().await;
            assert!(after.whole, "on {binary:?}: {:?}", after.ends);
            short += after.admitted;
        }
        let after = long.over().await;

        assert!(after.whole, "on {binary:?}: {:?}", after.ends);
        let seen = replies(&cluster).await;
        let doubts = stage.gateway.metric("voxgate_doubts_total", &[]).await;
        println!("{binary:?}: {seen:?}, {doubts} doubts");
        assert!(seen["MOVED"] > 0 && seen["ASK"] + seen["TRYAGAIN"] > 0, "{seen:?}");
        for node in &cluster.nodes[..3] {
            assert!(node.calls("asking").await > 0 || node.calls("cluster|slots").await > 0, "on {node}");
        }
        assert_eq!(doubts, 0.0, "none of these answers is a doubt");
        stage.settled("a").await;
        let books = books_on(&cluster.nodes[cluster.node_of("{a}").await], "a").await;
        assert_eq!(books.excess, 0);
        stage.check(after.admitted + short, &[books]).await;
    }))
    .await;
}

/// A slot that nobody serves for a second holds its streams, and ends none.
#[tokio::test(flavor = "multi_thread")]
async fn unserved_slot_holds_its_streams() {
    let cluster = Cluster::one(&crate::harness::redis_server::redis()).await;
    let stage = Stage::on(cluster.url(), "").await;
    let key = stage.account("a").await;
    let slot = cluster.slot("{a}").await.to_string();
    let crowd = stage.crowd(&key, 5, 3000).await;
    polled("audio on its way", async || (stage.forwarded() >= 2000).then_some(())).await;

    cluster.nodes[0].tell::<()>(&["CLUSTER", "DELSLOTS", &slot]).await;
    polled("calls without a home", async || (stage.errors("clusterdown").await > 20.0).then_some(())).await;
    cluster.nodes[0].tell::<()>(&["CLUSTER", "ADDSLOTS", &slot]).await;
    let after = crowd.over().await;

    assert!(after.whole, "{:?}", after.ends);
    assert!(replies(&cluster).await["CLUSTERDOWN"] > 0);
    stage.settled("a").await;
    stage.check(after.admitted, &[books_on(&cluster.nodes[0], "a").await]).await;
}
