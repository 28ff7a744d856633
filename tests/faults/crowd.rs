//! Many at once: scripts flushed under them, calls cancelled, gateways that come back together.

use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};
use voxgate::quota::script;

use super::house::{House, Wire, poll};
use crate::harness::audio::noise_ms;
use crate::harness::client::{Client, Heard, LINEAR16};
use crate::harness::proxy::{Cut, Mode, Proxy};
use crate::harness::redis_server::{RedisServer, redis};

/// SCRIPT FLUSH every 10 ms for 5 s under 100 streams.
#[tokio::test(flavor = "multi_thread")]
async fn flushed_scripts_lose_no_stream() {
    let house = House::on(RedisServer::start(redis(), &[])).await;
    let crowd = house.crowd(100).await;
    let mut foreign = Wire::to(&house.store).await;
    let before = house.metric("voxgate_script_loads_total", &[]).await;
    let (mut ticks, start, mut flushes) = (interval(Duration::from_millis(10)), Instant::now(), 0.0);
    while start.elapsed() < Duration::from_secs(5) {
        ticks.tick().await;
        assert_eq!(foreign.ask(&["SCRIPT", "FLUSH"]).await, "+OK");
        flushes += 1.0;
    }

    let loads = house.metric("voxgate_script_loads_total", &[]).await - before;
    let missed = house.errors("noscript").await;
    house.agrees(&crowd.went_on().await).await;
    println!("flushed {flushes} times: {loads} loads, {missed} calls found theirs gone");
    // A flush takes all scripts; of the five verbs, admit runs all the time, the others now and then.
    assert!(loads <= flushes * 1.2 + 10.0, "{loads} loads for {flushes} flushes");
    assert_eq!(house.metric("voxgate_doubts_total", &[]).await, 0.0);
}

/// The answer to three admits in a row is lost after they ran: one charge for the chunk. When every answer is lost the
/// stream ends, after a few leases and not after a storm of them.
#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_charge_once() {
    let store = RedisServer::start(redis(), &[]);
    let proxy = Proxy::to(([127, 0, 0, 1], store.port).into()).await;
    let house = House::behind(store, &proxy.redis_url()).await;
    let admit = script::ADMIT.sha.as_bytes();
    let crowd = house.crowd(1).await;
    proxy.cut_next(Cut::After, 3, admit);
    proxy.after_cuts(3).await;
    poll("words", async || (house.worker.audio_bytes() > 32_000).then_some(())).await;
    let mut ends = crowd.went_on().await;
    let doubts = house.metric("voxgate_doubts_total", &["script=\"admit\""]).await;
    assert!(doubts >= 3.0, "{doubts}");
    house.agrees(&ends).await;

    let crowd = house.crowd(1).await;
    proxy.cut_next(Cut::After, usize::MAX, admit);
    ends.extend(crowd.ended().await);
    proxy.cut_next(Cut::After, 0, admit);
    let last = &ends[1].heard;
    assert_eq!((last.code(), last.reason(), last.metadata_ms()), (1013, "STORE-0000", 0), "{last:?}");
    house.agrees(&ends).await;
    let reserves = house.metric("voxgate_reserves_total", &[]).await;
    println!("lost: {doubts} doubts of three cuts; every answer lost: {reserves} reserves in all");
    assert!(reserves <= 40.0, "{reserves} reserves");
}

/// 200 streams on one slow connection, each with a budget that can be told from the others'; half of them vanish at any
/// moment, with admits on their way. What a stream hears is its own, and what its worker got is what it pays.
#[tokio::test(flavor = "multi_thread")]
async fn cut_calls_poison_no_other() {
    const STREAMS: u64 = 200;
    let store = RedisServer::start(redis(), &[]);
    let proxy = Proxy::to(([127, 0, 0, 1], store.port).into()).await;
    let house = House::behind(store, &proxy.redis_url()).await;
    let mut clients = Vec::new();
    for number in 0..STREAMS {
        let account = format!("n{number}");
        let key = house.gateway.account_with(&account, cap(number), json!({"share": 1})).await;
        clients.push(house.gateway.open(LINEAR16, &key).await.expect("accepted"));
    }
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    let mut streams = JoinSet::new();
    for (number, mut client) in (0..).zip(clients) {
        streams.spawn(async move {
            let cut = if number % 2 == 0 { 40 } else { fastrand::u64(1..40) };
            for chunk in noise_ms(number, 2000).chunks(50 * 32).take(usize::try_from(cut).expect("few")) {
                assert!(client.audio(chunk).await);
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..60))).await; // any moment
            }
            let heard = if number % 2 == 0 { client.finish().await } else { vanished(client) };
            let lefts =
                heard.of("Results").into_iter().filter_map(|told| told["voxgate"]["quota_left_ms"].as_u64());
            for left in lefts {
                assert!((cap(number) - 2_000..=cap(number)).contains(&left), "stream {number} heard {left}");
            }
            number
        });
    }
    streams.join_all().await;
    proxy.set(Mode::Pass);
    poll("everything settled", async || {
        let open = house.metric("voxgate_leases_open", &[]).await
            + house.metric("voxgate_settles_pending", &[]).await;
        (open == 0.0).then_some(())
    })
    .await;

    let visits = house.worker.visits();
    for number in 0..STREAMS {
        let begin = &noise_ms(number, 2000)[..64];
        let handed: usize =
            visits.iter().filter(|visit| visit.audio.starts_with(begin)).map(|visit| visit.audio.len()).sum();
        let balance = house.gateway.balance(&format!("n{number}")).await;
        assert_eq!(
            (balance.settled, balance.held, balance.leases),
            (handed as u64 / 32, 0, 0),
            "stream {number}"
        );
    }
    let all: usize = visits.iter().map(|visit| visit.audio.len()).sum();
    println!("cut: {} ms of 200 streams, each to its own", all / 32);
}

fn vanished(client: Client) -> Heard {
    let heard = client.heard();
    client.vanish();
    heard
}

/// A budget that no other stream has.
const fn cap(number: u64) -> u64 {
    (number + 1) * 1_000_000
}
