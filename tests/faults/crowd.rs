//! Many at once: scripts flushed under them, calls cancelled, gateways that come back together.

use std::time::Duration;

use tokio::time::{Instant, interval};

use super::house::{House, Wire};
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
    println!("flushed {flushes} times: {loads} loads, {missed} calls gave up");
    // A flush takes all scripts; of the five verbs, admit runs all the time, the others now and then.
    assert!(loads <= flushes * 1.2 + 10.0, "{loads} loads for {flushes} flushes");
    assert_eq!(house.metric("voxgate_doubts_total", &[]).await, 0.0);
}
