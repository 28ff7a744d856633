//! A server that throws keys away while it serves.

use super::house::{End, House, Wire, ask};
use crate::harness::client::LINEAR16;
use crate::harness::redis_server::{RedisServer, redis};

/// `allkeys-lru` is set under 20 streams, and the memory is filled until our keys are gone: streams end as missing, what
/// they were handed is counted as lost, and no budget comes out of it anew.
#[tokio::test(flavor = "multi_thread")]
async fn evicted_keys_raise_no_budget() {
    let house = House::on(RedisServer::start(redis(), &["--maxmemory-samples", "1"])).await;
    let crowd = house.crowd(20).await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await; // time to speak
    let mut foreign = Wire::to(&house.store).await;
    let used = foreign.ask(&["INFO", "memory"]).await;
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("a size");
    let most = used.trim().parse::<u64>().expect("a number") + 500_000;
    assert_eq!(foreign.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await, "+OK");
    assert_eq!(foreign.ask(&["CONFIG", "SET", "maxmemory", &most.to_string()]).await, "+OK");
    let filler = "x".repeat(1000);
    let mut filled = 0;
    while ask(&house.store, &["EVAL", OURS, "0"]).await != ":0" {
        for _ in 0..500 {
            filled += 1;
            assert!(filled < 2_000_000, "our keys do not go");
            foreign.ask(&["SET", &format!("filler:{filled}"), &filler]).await;
        }
    }
    let ends = crowd.ended().await;
    assert_eq!(foreign.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await, "+OK");
    assert_eq!(foreign.ask(&["CONFIG", "SET", "maxmemory", "0"]).await, "+OK");

    let told: u64 = ends.iter().map(|end| end.heard.metadata_ms()).sum();
    super::house::poll("settles answered", async || {
        (house.metric("voxgate_settles_pending", &[]).await == 0.0).then_some(())
    })
    .await;
    let lost = house.metric("voxgate_unrecoverable_units_total", &["reason=\"unsettled\""]).await as u64;
    let booked = house.metric("voxgate_units_total", &["fate=\"tallied\""]).await as u64;
    println!(
        "evicted by {filled} fillers: {told} units handed over, {lost} counted as lost, {booked} booked"
    );
    ends.iter().for_each(missing);
    assert_eq!((lost + booked, house.worker.audio_bytes() as u64 / 32), (told, told));
    let refusal = house.gateway.open(LINEAR16, &house.key).await.err().expect("no allowance anew");
    assert!([401, 402, 503].contains(&refusal.status), "{refusal:?}");
    assert_eq!(ask(&house.store, &["EVAL", OURS, "0"]).await, ":0", "nothing is made anew");
}

/// By quota key, by budget, or by the account's own record, whichever was missed first.
fn missing(end: &End) {
    let told = (end.heard.code(), end.heard.reason());
    let known = [(1008, "QUOTA-0003"), (1011, "STORE-0001"), (1008, "AUTH-0000")];
    assert!(known.contains(&told), "{:?}", end.heard);
}

/// Budgets and quota keys that are left.
const OURS: &str = "return #redis.call('KEYS', 'vox:quota:*') + #redis.call('KEYS', 'vox:budget:*')";
