//! A server that lives and refuses: memory, snapshots, replicas, its role. Nothing ran, so nothing is charged, and all goes
//! on when the cause is gone.

use std::time::Duration;

use tokio::time::sleep;

use super::house::{End, House, ask, poll};
use crate::harness::audio::noise_ms;
use crate::harness::redis_server::{RedisServer, redis};

/// What breaks a server, what mends it, and what its refusals are counted as.
struct Row {
    label: &'static str,
    breaks: fn(&RedisServer) -> Vec<Vec<String>>,
    mends: fn(&RedisServer) -> Vec<Vec<String>>,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

const ROWS: [Row; 4] = [
    Row {
        label: "oom",
        breaks: |_| vec![words("CONFIG SET maxmemory 1")],
        mends: |_| vec![words("CONFIG SET maxmemory 0")],
    },
    Row {
        label: "misconf",
        // A snapshot can't replace a folder.
        breaks: |store| {
            std::fs::create_dir(store.folder().join("dump.rdb")).expect("a writable folder");
            let mut save = words("CONFIG SET save");
            save.push("3600 1".into());
            vec![save, words("BGSAVE")]
        },
        mends: |store| {
            std::fs::remove_dir(store.folder().join("dump.rdb")).expect("our own folder");
            vec![words("BGSAVE")]
        },
    },
    Row {
        label: "noreplicas",
        breaks: |_| vec![words("CONFIG SET min-replicas-to-write 1")],
        mends: |_| vec![words("CONFIG SET min-replicas-to-write 0")],
    },
    Row {
        label: "readonly",
        // Port 1: nobody to copy from, so it keeps what it has.
        breaks: |_| vec![words("REPLICAOF 127.0.0.1 1")],
        mends: |_| vec![words("REPLICAOF NO ONE")],
    },
];

async fn tell(store: &RedisServer, all: Vec<Vec<String>>) {
    for words in all {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = ask(store, &words).await;
        assert!(answer.starts_with('+'), "{words:?}: {answer}");
    }
}

/// Ten people speak through four faults: each is counted by its own name, new streams are refused, everybody goes on, and
/// every unit that was taken is handed over.
#[tokio::test(flavor = "multi_thread")]
async fn refusing_store_holds_every_stream() {
    let store = RedisServer::start(redis(), &["--repl-diskless-load", "disabled"]);
    let url = store.url();
    let house = House::hungry(store, &url).await;
    let crowd = house.crowd(10).await;
    let mut ends = Vec::new();
    for Row { label, breaks, mends } in ROWS {
        let mut witness = house.open().await;
        // More than its envelope, so that it needs a reserve: scripts that only give back run without memory too.
        assert!(witness.audio(&noise_ms(1, 900)).await);
        sleep(Duration::from_millis(500)).await; // time to speak
        tell(&house.store, breaks(&house.store)).await;
        assert!(witness.audio(&noise_ms(2, 1500)).await && witness.ping().await);
        poll(label, async || (house.errors(label).await > 0.0).then_some(())).await;
        witness.until("pong while held", |heard| heard.pongs == 1).await;
        poll("open breaker", async || (house.metric("voxgate_breaker_open", &[]).await == 1.0).then_some(()))
            .await;
        let refused = house.refused().await;
        tell(&house.store, mends(&house.store)).await;
        let (client, reopened) = house.reopened().await;
        println!(
            "{label}: {} counted, refused in {refused:?}, mended in {reopened:?}",
            house.errors(label).await
        );
        for (client, ms) in [(witness, 2400), (client, 0)] {
            let heard = client.finish().await;
            assert_eq!((heard.code(), heard.metadata_ms()), (1000, ms), "{label}: {heard:?}");
            ends.push(End { heard, sent: ms, pings: 0 });
        }
    }

    ends.extend(crowd.went_on().await);
    house.agrees(&ends).await;
    assert_eq!(house.metric("voxgate_doubts_total", &[]).await, 0.0, "each refusal says that it did not run");
    assert_eq!(house.metric("voxgate_units_total", &["fate=\"wasted\""]).await, 0.0);
}
