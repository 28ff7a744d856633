//! Ours to fix: passwords, permissions, and keys that hold what no script of ours writes.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::house::{House, Wire, ask, poll};
use crate::harness::audio::noise_ms;
use crate::harness::client::LINEAR16;
use crate::harness::redis_server::{RedisServer, redis};

/// What takes access away, what gives it back, and what is counted. `CLIENT KILL` makes everybody come in anew.
const ROWS: [(&str, &[&str], &[&str]); 4] = [
    ("denied", &["ACL SETUSER default -decrby"], &["ACL SETUSER default +decrby"]),
    ("noperm", &["ACL SETUSER default -evalsha"], &["ACL SETUSER default +@all"]),
    (
        "wrongpass denied",
        &["ACL SETUSER default resetpass >other", "CLIENT KILL TYPE normal"],
        &["ACL SETUSER default resetpass >first"],
    ),
    (
        "noperm",
        &["ACL SETUSER default -@all +auth +acl +client", "CLIENT KILL TYPE normal"],
        &["ACL SETUSER default +@all"],
    ),
];

/// One by one, access is taken from live streams: they end by the store's name, it is counted by its own, and all is
/// well when it comes back.
#[tokio::test(flavor = "multi_thread")]
async fn denied_access_ends_by_name() {
    let store = RedisServer::start(redis(), &["--requirepass", "first"]);
    let mut operator = Wire::to(&store).await;
    assert_eq!(operator.ask(&["AUTH", "first"]).await, "+OK");
    let url = format!("redis://:first@127.0.0.1:{}", store.port);
    let house = House::behind(store, &url).await;
    let mut told = 0;
    for (label, takes, gives) in ROWS {
        let (crowd, before) = (house.crowd(5).await, errors(&house, label).await);
        sleep(Duration::from_millis(500)).await; // time to speak
        for words in takes {
            let answer = operator.ask(&words.split(' ').collect::<Vec<_>>()).await;
            assert!(!answer.starts_with('-'), "{words}: {answer}");
        }
        let ends = crowd.ended().await;
        for end in &ends {
            assert_eq!(
                (end.heard.code(), end.heard.reason()),
                (1013, "STORE-0000"),
                "{label}: {:?}",
                end.heard
            );
            told += end.heard.metadata_ms();
        }
        assert!(errors(&house, label).await > before, "{label}");
        if label != "denied" {
            house.refused().await; // without DECRBY a stream opens all the same, and can't be paid for
        }
        for words in gives {
            assert_eq!(operator.ask(&words.split(' ').collect::<Vec<_>>()).await, "+OK", "{words}");
        }
        let (client, reopened) = house.reopened().await;
        assert_eq!(client.finish().await.code(), 1000);
        house.unheld().await;
        println!("{label}: mended in {reopened:?}");
    }
    let handed = house.metric("voxgate_units_total", &["fate=\"tallied\""]).await as u64;
    assert_eq!((handed, house.worker.audio_bytes() as u64 / 32), (told, told));
    assert_eq!(house.gateway.balance("a").await.settled, told);
}

/// Calls that failed for one of these reasons.
async fn errors(house: &House, kinds: &str) -> f64 {
    let mut sum = 0.0;
    for kind in kinds.split(' ') {
        sum += house.errors(kind).await;
    }
    sum
}

/// A password is set where there was none.
#[tokio::test(flavor = "multi_thread")]
async fn new_password_is_a_fault_of_ours() {
    let house = House::on(RedisServer::start(redis(), &[])).await;
    let crowd = house.crowd(5).await;
    let mut operator = Wire::to(&house.store).await;
    assert_eq!(operator.ask(&["CONFIG", "SET", "requirepass", "new"]).await, "+OK");
    operator.ask(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let ends = crowd.ended().await;
    for end in &ends {
        assert_eq!((end.heard.code(), end.heard.reason()), (1013, "STORE-0000"), "{:?}", end.heard);
    }
    assert!(house.errors("noauth").await > 0.0);
    house.refused().await;
    assert_eq!(operator.ask(&["CONFIG", "SET", "requirepass", ""]).await, "+OK");
    let (client, _) = house.reopened().await;
    assert_eq!(client.finish().await.code(), 1000);
    house.unheld().await;
    let told: u64 = ends.iter().map(|end| end.heard.metadata_ms()).sum();
    assert_eq!(
        (house.gateway.balance("a").await.settled, house.worker.audio_bytes() as u64 / 32),
        (told, told)
    );
}

/// Every kind of key in turn holds a list: that account's stream ends as corrupt, forwards nothing more, and no other
/// account notices.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_values_end_their_stream() {
    let store = RedisServer::start(redis(), &[]);
    let url = store.url();
    let house = House::hungry(store, &url).await;
    let crowd = house.crowd(2).await;
    let mut streams = tokio::task::JoinSet::new();
    for room in ["quota", "session", "budget", "leases", "streams", "account", "lease"] {
        house.gateway.account(room, 3_600_000).await;
        let key = house.gateway.key(room, json!({})).await;
        let mut client = house.gateway.open(LINEAR16, &key).await.expect("accepted");
        assert!(client.audio(&noise_ms(1, 500)).await);
        client.until("its first place", |_| true).await;
        let spoil = "local keys = redis.call('KEYS', ARGV[1])
                     for _, key in ipairs(keys) do redis.call('DEL', key) redis.call('LPUSH', key, 'x') end
                     return #keys";
        let pattern = format!("vox:{room}:{{{room}}}*");
        let spoiled = ask(&house.store, &["EVAL", spoil, "0", &pattern]).await;
        assert!(spoiled.starts_with(':') && spoiled != ":0", "{pattern}: {spoiled}");
        streams.spawn(async move {
            // In real time until it ends: the key shows when it is next looked at.
            let mut ticks = tokio::time::interval(Duration::from_millis(100));
            for _ in 0..40 {
                if client.is_over() || !client.audio(&noise_ms(2, 100)).await {
                    break;
                }
                ticks.tick().await;
            }
            (room, client.finish().await)
        });
    }
    for (room, heard) in streams.join_all().await {
        println!("{room}: {} ms", heard.metadata_ms());
        // A stream that has left its lease needs it no more: it goes on in the next one.
        let expected = if room == "lease" { (1000, "") } else { (1011, "STORE-0001") };
        assert_eq!((heard.code(), heard.reason()), expected, "{room}: {heard:?}");
    }
    let balance = house.gateway.balance("lease").await;
    assert!(balance.held > 0 && balance.leases == 1, "its units stay held: {balance:?}");
    crowd.went_on().await;
    let handed = house.metric("voxgate_units_total", &["fate=\"handed_over\""]).await as u64;
    let admitted = house.metric("voxgate_units_total", &["fate=\"admitted\""]).await as u64;
    poll("all audio at the worker", async || {
        (house.worker.audio_bytes() as u64 / 32 == handed).then_some(())
    })
    .await;
    assert_eq!(handed, admitted);
    let mut corrupt = house.errors("corrupt").await;
    for name in ["voxgate_reserves_total", "voxgate_settles_total"] {
        corrupt += house.metric(name, &["answer=\"corrupt\""]).await;
    }
    assert!(corrupt >= 7.0, "each was counted: {corrupt}");
}
