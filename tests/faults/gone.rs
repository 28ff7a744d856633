//! No store to be reached: from the start, in mid-stream, exactly at the settle, and again and again.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::house::{CAP, Crowd, House, books_of, listener, poll};
use crate::harness::client::LINEAR16;
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::proxy::{Mode, Proxy};
use crate::harness::redis_server::{RedisServer, redis};

/// Connections are reset, new ones refused.
fn part(proxy: &Proxy) {
    proxy.set(Mode::Refuse);
    proxy.reset_all();
}

/// New streams get 503, live ones are held or told after HOLD, settles wait their turn; the books are exact after it all.
#[tokio::test(flavor = "multi_thread")]
async fn unreachable_store_fails_closed() {
    let store = RedisServer::start(redis(), &[]);
    let proxy = Proxy::to(([127, 0, 0, 1], store.port).into()).await;
    let house = House::behind(store, &proxy.redis_url()).await;

    part(&proxy);
    let mut waits = Vec::new();
    for _ in 0..5 {
        waits.push(house.refused().await);
    }
    proxy.set(Mode::Pass);
    let (client, reopened) = house.reopened().await;
    println!("unreachable: refused in {waits:?}, taken {reopened:?} after it");
    client.finish().await;

    let crowd = house.crowd(10).await;
    sleep(Duration::from_millis(500)).await; // time to speak
    part(&proxy);
    sleep(Duration::from_secs(2)).await; // the fault's length
    proxy.set(Mode::Pass);
    sleep(Duration::from_millis(500)).await; // time to speak
    let mut ends = crowd.went_on().await;

    // Exactly at the settle: everybody is done, and nobody can be settled.
    let crowd = house.crowd(10).await;
    sleep(Duration::from_millis(500)).await; // time to speak
    poll("all paid for", async || (house.metric("voxgate_held_bytes", &[]).await == 0.0).then_some(())).await;
    part(&proxy);
    ends.extend(crowd.stop().await);
    for end in &ends[10..] {
        // Who was caught with a chunk in hand waits for it, and is told.
        assert!([1000, 1013].contains(&end.heard.code()), "{:?}", end.heard);
    }
    assert!(house.metric("voxgate_settles_pending", &[]).await >= 10.0, "they wait in the background");
    proxy.set(Mode::Pass);
    house.unheld().await;
    house.reopened().await.0.finish().await;

    let crowd = house.crowd(10).await;
    sleep(Duration::from_millis(500)).await; // time to speak
    part(&proxy);
    let last = crowd.ended().await;
    proxy.set(Mode::Pass);
    for end in &last {
        assert_eq!((end.heard.code(), end.heard.reason()), (1013, "STORE-0000"), "{:?}", end.heard);
    }
    ends.extend(last);
    house.agrees(&ends).await;
    assert_eq!(house.metric("voxgate_reaped_total", &["answer=\"reaped\""]).await, 0.0);
}

/// Four gateways on a server that takes ten clients, killed and started again five times under 200 streams: tries fall
/// off while it is away, one connection each comes back, and nobody is lost.
#[tokio::test(flavor = "multi_thread")]
async fn reconnects_fall_off_and_all_recover() {
    let mut store = RedisServer::start(
        redis(),
        &["--maxclients", "10", "--appendonly", "yes", "--appendfsync", "always"],
    );
    let worker = listener().await;
    let (mut gateways, mut crowd, mut key) = (Vec::new(), Crowd::new(), String::new());
    for number in 0..4 {
        let proxy = Proxy::to(([127, 0, 0, 1], store.port).into()).await;
        let gateway = Gateway::start(&Setup::on(&proxy.redis_url(), &[worker.url()])).await;
        if number == 0 {
            gateway.account_with("a", CAP, json!({"share": 400})).await;
            key = gateway.key("a", json!({"streams_max": 1000})).await;
        }
        for _ in 0..50 {
            let open = async || gateway.open(LINEAR16, &key).await.ok();
            crowd.add(poll("a stream", open).await);
        }
        gateways.push((gateway, proxy));
    }
    let tries = |gateways: &[(Gateway, Proxy)]| -> Vec<usize> {
        gateways.iter().map(|(_, proxy)| proxy.connections()).collect()
    };
    for round in 0..5 {
        let before = tries(&gateways);
        store.kill();
        sleep(Duration::from_millis(1000)).await; // the fault's first second
        let first = tries(&gateways);
        sleep(Duration::from_millis(if round == 0 { 1000 } else { 0 })).await; // and its second one
        let second = tries(&gateways);
        store.revive(&[]);
        let start = Instant::now();
        poll("all connected", async || gateways.iter().all(|(_, proxy)| proxy.live() == 1).then_some(()))
            .await;
        let less = |a: &[usize], b: &[usize]| a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>();
        let (early, late) = (less(&first, &before), less(&second, &first));
        println!(
            "killed: {early:?} tries in its first second, {late:?} in its second, back in {:?}",
            start.elapsed()
        );
        // 20 ms, doubled each time, with jitter: about six tries in the first second, two in the next.
        assert!(early.iter().all(|tries| *tries <= 10) && late.iter().all(|tries| *tries <= 4));
        sleep(Duration::from_millis(500)).await; // time to speak
    }

    let ends = crowd.went_on().await;
    let told: u64 = ends.iter().map(|end| end.heard.metadata_ms()).sum();
    for (gateway, proxy) in &gateways {
        poll("settles answered", async || {
            (gateway.metric("voxgate_settles_pending", &[]).await == 0.0).then_some(())
        })
        .await;
        assert_eq!(proxy.live(), 1, "connections of a gateway");
    }
    let books = books_of(&store).await;
    books.check(CAP as i64).unwrap();
    assert_eq!((books.charged() as u64, worker.audio_bytes() as u64 / 32), (told, told));
}
