//! The store dies and comes back: with all it knew, with half of it, with nothing, or slowly.

use std::time::Duration;

use tokio::time::sleep;

use super::house::{CAP, End, House, Wire, ask, poll};
use crate::harness::audio::noise_ms;
use crate::harness::redis_server::{RedisServer, redis};

const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// kill -9 and a restart from the append-only file: every stream goes on, and what was in doubt is not charged.
#[tokio::test(flavor = "multi_thread")]
async fn restart_with_data_ends_no_stream() {
    let mut house = House::on(RedisServer::start(redis(), &DURABLE)).await;
    let crowd = house.crowd(20).await;
    for _ in 0..2 {
        sleep(Duration::from_secs(1)).await; // time to speak
        house.store.restart(&[]);
    }
    sleep(Duration::from_secs(1)).await; // time to speak

    house.agrees(&crowd.went_on().await).await;
    let doubts = house.metric("voxgate_doubts_total", &[]).await;
    println!("restarted twice: {doubts} doubts");
    // Scripts are lost with the server; one load each brings them back for everybody.
    assert!(house.metric("voxgate_script_loads_total", &[]).await <= 3.0 * 12.0);
}

/// The next admit finds no quota key, or a doubted one no lease to go on from: it is told as missing or lost, never as a
/// fault of the gateway's or a spent budget.
fn missed(end: &End) {
    let told = (end.heard.code(), end.heard.reason());
    assert!(matches!(told, (1008, "QUOTA-0003") | (1011, "STORE-0001")), "{:?}", end.heard);
}

/// A server that comes back empty: streams lapse, nothing is made anew, and what nobody can charge is counted.
#[tokio::test(flavor = "multi_thread")]
async fn emptied_store_lapses_every_stream() {
    let mut house = House::on(RedisServer::start(redis(), &[])).await;
    let crowd = house.crowd(10).await;
    sleep(Duration::from_secs(1)).await; // time to speak

    house.store.restart(&[]);
    let ends = crowd.ended().await;

    let mut told = 0;
    for end in &ends {
        missed(end);
        told += end.heard.metadata_ms();
    }
    let lost = poll("settles answered", async || {
        let pending = house.metric("voxgate_settles_pending", &[]).await;
        let lost = house.metric("voxgate_unrecoverable_units_total", &["reason=\"unsettled\""]).await;
        (pending == 0.0).then_some(lost as u64)
    })
    .await;
    assert_eq!((lost, house.worker.audio_bytes() as u64 / 32), (told, told), "all that was handed over");
    let keys = ask(&house.store, &["EVAL", "return #redis.call('KEYS', 'vox:quota:*')", "0"]).await;
    assert_eq!(keys, ":0", "no quota is made anew");
    let refused = poll("a refusal", async || {
        let client = house.gateway.open(crate::harness::client::LINEAR16, &house.key).await;
        client.err().filter(|refusal| refusal.status != 503)
    })
    .await;
    assert_eq!(refused.status, 401, "nobody knows the key any more: {refused:?}");
}

/// A server that comes back from a snapshot: what it still knows goes on and is charged, the rest lapses and is counted.
#[tokio::test(flavor = "multi_thread")]
async fn older_snapshot_gives_nothing_away() {
    let mut house = House::on(RedisServer::start(redis(), &[])).await;
    let mut early = house.open().await;
    assert!(early.audio(&noise_ms(1, 1000)).await);
    early.until("words", |heard| heard.of("Results").len() == 1).await;
    assert_eq!(ask(&house.store, &["SAVE"]).await, "+OK");
    let crowd = house.crowd(10).await;
    sleep(Duration::from_secs(1)).await; // time to speak

    house.store.restart(&[]);
    let ends = crowd.ended().await;
    assert!(early.audio(&noise_ms(2, 500)).await);
    let heard = early.finish().await;

    assert_eq!((heard.code(), heard.metadata_ms()), (1000, 1500), "{heard:?}");
    for end in &ends {
        missed(end);
    }
    house.unheld().await;
    let books = house.books().await;
    books.check(CAP as i64).unwrap();
    let lost = house.metric("voxgate_unrecoverable_units_total", &["reason=\"unsettled\""]).await as u64;
    let told: u64 = ends.iter().map(|end| end.heard.metadata_ms()).sum();
    assert_eq!((books.charged(), lost), (1500, told), "what is not charged is counted");
    let (client, _) = house.reopened().await;
    assert_eq!(client.finish().await.code(), 1000);
}

/// A server that answers LOADING while it reads its snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn loading_store_holds_every_stream() {
    let mut house = House::on(RedisServer::start(redis(), &[])).await;
    let fill = "for i = 1, 3000 do redis.call('SET', 'filler:' .. i, string.rep('x', 1000)) end";
    ask(&house.store, &["EVAL", fill, "0"]).await;
    let crowd = house.crowd(20).await;
    sleep(Duration::from_secs(1)).await; // time to speak

    Wire::to(&house.store).await.send(&["SHUTDOWN", "SAVE"]).await;
    house.store.await_end();
    // 3,000 keys at 0.7 ms each, and a look at the network every few of them.
    house.store.revive(&["--key-load-delay", "700", "--loading-process-events-interval-bytes", "2048"]);
    house.refused().await;
    let (client, _) = house.reopened().await;
    sleep(Duration::from_secs(1)).await; // time to speak

    let mut ends = crowd.went_on().await;
    ends.push(End { heard: client.finish().await, sent: 0, pings: 0 });
    house.agrees(&ends).await;
    let loading = house.errors("loading").await;
    println!("loading: {loading} refusals");
    assert!(loading > 0.0);
}
