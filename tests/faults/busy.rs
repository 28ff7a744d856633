//! Somebody else's script holds the server: who waits, who is refused, who pays.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::house::{House, Wire, ask, commandstat};
use crate::harness::audio::noise_ms;
use crate::harness::redis_server::{RedisServer, redis};

/// Reads for ever; can be killed.
const ENDLESS: &str = "while true do redis.call('TIME') end";
/// Writes once, then runs for so many milliseconds; can't be killed. (On 7.0 the clock goes on inside a script.)
const WRITER: &str = "
redis.call('SET', 'foreign', '1', 'EX', '60')
local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end
local start = now()
while now() - start < tonumber(ARGV[1]) do end
return 'done'";

async fn busy_house() -> House {
    House::on(RedisServer::start(redis(), &["--busy-reply-threshold", "50"])).await
}

/// The server answers BUSY by now; gives what it says to a kill.
async fn kill(house: &House) -> String {
    ask(&house.store, &["SCRIPT", "KILL"]).await
}

async fn until_busy(house: &House) {
    super::house::poll("BUSY", async || {
        ask(&house.store, &["PING"]).await.starts_with("-BUSY").then_some(())
    })
    .await;
}

/// 50 people speak while a foreign script holds the store for 2 s and another one, which nothing can end, for 3 s.
#[tokio::test(flavor = "multi_thread")]
async fn busy_store_holds_every_stream() {
    let house = busy_house().await;
    let (crowd, mut witness) = (house.crowd(50).await, house.open().await);
    let mut foreign = Wire::to(&house.store).await;
    sleep(Duration::from_secs(1)).await; // time to speak, not a race

    foreign.send(&["EVAL", ENDLESS, "0"]).await;
    until_busy(&house).await;
    let held = Instant::now();
    assert!(witness.audio(&noise_ms(1, 100)).await && witness.ping().await);
    witness.until("pong while held", |heard| heard.pongs == 1).await;
    let (first, late) = (house.refused().await, house.refused().await);
    sleep(Duration::from_secs(2).saturating_sub(held.elapsed())).await;
    assert_eq!(kill(&house).await, "+OK");
    assert!(foreign.answer().await.starts_with("-ERR"), "killed");
    sleep(Duration::from_millis(500)).await; // time to speak

    foreign.send(&["EVAL", WRITER, "0", "3000"]).await;
    until_busy(&house).await;
    assert!(kill(&house).await.starts_with("-UNKILLABLE"));
    assert_eq!(foreign.answer().await, "done");
    let (again, reopened) = house.reopened().await;
    sleep(Duration::from_secs(1)).await; // time to speak

    let mut ends = crowd.went_on().await;
    for client in [witness, again] {
        ends.push(super::house::End { heard: client.finish().await, sent: 0, pings: 0 });
    }
    let (units, busy) = (house.agrees(&ends).await, house.errors("busy").await);
    println!(
        "busy: {units} units, {busy} refusals, new streams refused in {first:?}, {late:?}, taken after {reopened:?}"
    );
    assert!(busy > 0.0 && late < Duration::from_millis(900), "{busy} counted, {late:?}");
    assert_eq!(house.metric("voxgate_doubts_total", &[]).await, 0.0, "BUSY leaves no doubt");
    assert_eq!(house.metric("voxgate_units_total", &["fate=\"wasted\""]).await, 0.0);
    let kills = commandstat(&house.store, "script|kill", "calls").await;
    assert_eq!(kills, 2, "ours, and nobody else's");
}

/// Beyond HOLD the stream ends with the store's name on it, and nothing that was held is forwarded or charged.
#[tokio::test(flavor = "multi_thread")]
async fn endless_busy_ends_by_name() {
    let house = busy_house().await;
    let crowd = house.crowd(10).await;
    sleep(Duration::from_secs(1)).await; // time to speak
    let mut foreign = Wire::to(&house.store).await;
    foreign.send(&["EVAL", ENDLESS, "0"]).await;
    until_busy(&house).await;
    let handed = house.worker.audio_bytes();

    let ends = crowd.ended().await;
    for end in &ends {
        assert_eq!((end.heard.code(), end.heard.reason()), (1013, "STORE-0000"), "{:?}", end.heard);
        assert!(end.sent >= end.heard.metadata_ms() + 4_000, "held for 5 s: {} sent", end.sent);
    }
    assert_eq!(house.worker.audio_bytes(), handed, "nothing unpaid is forwarded");
    assert_eq!(kill(&house).await, "+OK");
    house.agrees(&ends).await;
    let ended = house.metric("voxgate_streams_total", &["ending=\"store_busy\""]).await;
    assert_eq!(ended, 10.0);
}
