//! Primaries that die, step down, lock their door or come back slowly, under live streams.

use std::time::{Duration, Instant};

use voxgate::limits::HOLD;

use super::crowd::Stage;
use super::shapes::{Shape, books_on};
use crate::harness::audio::noise_ms;
use crate::harness::client::LINEAR16;
use crate::harness::cluster::Cluster;
use crate::harness::polled;
use crate::harness::redis_server::{RedisServer, redis, store_binaries};
use crate::harness::sentinel::Sentinel;

/// Streams at once while a primary dies.
const STREAMS: usize = 100;
/// What each of them says: longer than a failover takes.
const AUDIO_MS: usize = 9000;

/// A stream of a second goes through: nothing needs a restart.
async fn serves(stage: &Stage, key: &str) {
    let mut client = stage.gateway.open(LINEAR16, key).await.expect("budget");
    assert!(client.stream(&noise_ms(7, 1000), 3200, Duration::ZERO).await);
    assert_eq!(client.finish().await.metadata_ms(), 1000);
}

/// Waits until the worker has so many milliseconds of audio: the crowd is well on its way.
async fn under_way(stage: &Stage, ms: u64) {
    polled("audio on its way", async || (stage.forwarded() >= ms).then_some(())).await;
}

/// The primary is killed under 100 live streams, and comes back as a replica; the Sentinels promote another one.
#[tokio::test(flavor = "multi_thread")]
async fn sentinel_failover_keeps_streams_paid() {
    let mut watched = Sentinel::start(&redis()).await;
    let stage = Stage::on(&watched.url(), "").await;
    let key = stage.account("a").await;
    let crowd = stage.crowd(&key, STREAMS, AUDIO_MS).await;
    under_way(&stage, STREAMS as u64 * 1000).await;

    let killed = Instant::now();
    let old = watched.kill_primary().await;
    watched.failed_over(old).await;
    let promoted = killed.elapsed();
    watched.data[old].restart(&[]);
    let after = crowd.over().await;

    let (gap, first) = stage.longest_gap(killed, |_| true);
    println!(
        "sentinel: promoted {promoted:.2?} after the kill, first admit {first:.2?} after it, gap {gap:.2?}"
    );
    println!("  ended {:?}", after.ends);
    after.check();
    assert!(after.whole || first + Duration::from_millis(500) > HOLD, "{:?}", after.ends);
    stage.settled("a").await;
    // On a slow machine the Sentinels may have chosen more than once.
    let new = watched.primary().await;
    stage.check(after.admitted, &[books_on(&watched.data[new], "a").await]).await;
    serves(&stage, &key).await;
    watched.follows(old).await;
}

/// A primary of three is killed under live streams of its slots; those of another primary feel nothing.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_failover_keeps_streams_paid() {
    let mut cluster = Cluster::start(&redis()).await;
    let (hit, spared) = names_apart(&cluster).await;
    let stage = Stage::on(cluster.url(), "").await;
    let (key, other_key) = (stage.account(&hit).await, stage.account(&spared).await);
    let target = format!("{LINEAR16}&tag=spared");
    let crowd = stage.crowd(&key, STREAMS - 20, AUDIO_MS).await;
    let others = stage.crowd_at(&target, &other_key, 20, AUDIO_MS).await;
    under_way(&stage, STREAMS as u64 * 1000).await;
    let doomed = cluster.node_of(&format!("{{{hit}}}")).await;

    let killed = Instant::now();
    cluster.nodes[doomed].kill();
    let (after, other_after) = tokio::join!(crowd.over(), others.over());

    let is_spared = |target: &str| target.contains("spared");
    let (gap, first) = stage.longest_gap(killed, |visit| !is_spared(&visit.target));
    let (other_gap, _) = stage.longest_gap(killed, |visit| is_spared(&visit.target));
    println!(
        "cluster: first admit {first:.2?} after the kill, gap {gap:.2?}; other slots: gap {other_gap:.2?}"
    );
    println!("  ended {:?}, others {:?}", after.ends, other_after.ends);
    after.check();
    assert!(after.whole || first + Duration::from_millis(500) > HOLD, "{:?}", after.ends);
    assert!(other_after.whole && other_gap < gap, "{:?}, {other_gap:?} of {gap:?}", other_after.ends);
    stage.settled(&hit).await;
    stage.settled(&spared).await;
    let books = books_on(&cluster.nodes[doomed + 3], &hit).await;
    let home = cluster.node_of(&format!("{{{spared}}}")).await;
    let other_books = books_on(&cluster.nodes[home], &spared).await;
    assert_eq!(other_books.charged() as u64, other_after.admitted);
    stage.check(after.admitted + other_after.admitted, &[books, other_books]).await;
    serves(&stage, &key).await;
}

/// Two account names whose slots lie on different primaries.
async fn names_apart(cluster: &Cluster) -> (String, String) {
    let first = "a".to_owned();
    let home = cluster.node_of("{a}").await;
    for number in 0.. {
        let name = format!("b{number}");
        if cluster.node_of(&format!("{{{name}}}")).await != home {
            return (first, name);
        }
    }
    unreachable!("there are three primaries")
}

/// The roles are swapped while every connection stays open: READONLY sends the gateway to the new primary.
#[tokio::test(flavor = "multi_thread")]
async fn swapped_roles_are_found() {
    for binary in store_binaries() {
        let primary = RedisServer::start(&binary, &[]);
        let replica = RedisServer::start(&binary, &["--replicaof", &format!("127.0.0.1 {}", primary.port)]);
        let watched = Sentinel::watching(&binary, vec![primary, replica]);
        watched.follows(1).await;
        let stage = Stage::on(&watched.url(), "").await;
        let key = stage.account("a").await;
        let crowd = stage.crowd(&key, 5, 3000).await;
        under_way(&stage, 2000).await;

        let port = watched.data[1].port.to_string();
        watched.data[0].tell::<()>(&["FAILOVER", "TO", "127.0.0.1", &port]).await;
        polled("swapped roles", async || {
            (watched.data[0].info("replication", "role").await? == "slave").then_some(())
        })
        .await;
        watched.name_primary(1).await;
        let after = crowd.over().await;

        assert!(after.whole, "on {binary:?}: {:?}", after.ends);
        stage.settled("a").await;
        stage.check(after.admitted, &[books_on(&watched.data[1], "a").await]).await;
        let refused = watched.data[0].info("errorstats", "errorstat_READONLY").await;
        assert!(refused.is_some(), "the old primary was asked and refused");
        serves(&stage, &key).await;
    }
}

/// A password that is set in mid-stream ends streams as a fault of the store, never as a spent budget; once it is gone
/// all is well again without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn sudden_password_is_no_spent_budget() {
    for shape in Shape::all(&redis()).await {
        let stage = Stage::on(&shape.url, "").await;
        let key = stage.account("a").await;
        let crowd = stage.crowd(&key, 3, 4000).await;
        under_way(&stage, 900).await;

        shape.server().tell::<()>(&["CONFIG", "SET", "requirepass", "secret"]).await;
        shape.proxy.reset_all();
        let after = crowd.over().await;

        for (code, reason) in after.ends.keys() {
            assert_ne!(*code, 1000, "on {}: without an admit nothing goes on", shape.word);
            assert!(reason.starts_with("STORE-"), "on {}: {code} {reason}", shape.word);
        }
        polled("a red readiness", async || (stage.gateway.status("/readyz").await == 503).then_some(()))
            .await;
        let refused = stage.gateway.open(LINEAR16, &key).await.err().map(|refusal| refusal.status);
        assert_eq!(refused, Some(503), "on {}", shape.word);
        assert!(stage.errors("noauth").await + stage.errors("wrongpass").await > 0.0, "on {}", shape.word);
        let direct = format!("redis://:secret@127.0.0.1:{}", shape.server().port);
        let admin = ::redis::Client::open(direct).expect("a URL");
        let mut link = admin.get_multiplexed_async_connection().await.expect("the password");
        let words = ["SET", "requirepass", ""];
        ::redis::cmd("CONFIG").arg(&words).query_async::<()>(&mut link).await.expect("the old rule");
        polled("a green readiness", async || (stage.gateway.status("/readyz").await == 200).then_some(()))
            .await;
        serves(&stage, &key).await;
        stage.settled("a").await;
        stage.check(after.admitted + 1000, &[shape.books("a").await]).await;
    }
}

/// A server that is killed and takes two seconds to read its data back is waited for: LOADING is no refusal.
#[tokio::test(flavor = "multi_thread")]
async fn loading_server_is_waited_for() {
    for binary in store_binaries() {
        let keep = ["--appendonly", "yes", "--loading-process-events-interval-bytes", "1024"];
        let mut server = RedisServer::start(&binary, &keep);
        let fill = "for i = 1, 2000 do redis.call('SET', KEYS[1] .. i, string.rep('x', 1000)) end";
        server.tell::<()>(&["EVAL", fill, "1", "filler"]).await;
        server.tell::<String>(&["BGREWRITEAOF"]).await;
        polled("a rewritten file", async || {
            (server.info("persistence", "aof_rewrite_in_progress").await? == "0").then_some(())
        })
        .await;
        let stage = Stage::on(&server.url(), "").await;
        let key = stage.account("a").await;
        let crowd = stage.crowd(&key, 5, 5000).await;
        under_way(&stage, 2000).await;

        server.restart(&["--key-load-delay", "1000"]);
        let after = crowd.over().await;

        assert!(after.whole, "on {binary:?}: {:?}", after.ends);
        stage.settled("a").await;
        stage.check(after.admitted, &[books_on(&server, "a").await]).await;
        let errors = server.info("errorstats", "errorstat_LOADING").await;
        assert!(errors.is_some(), "on {binary:?}: it was asked while it loaded");
    }
}
