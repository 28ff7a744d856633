//! The store stops answering and keeps its connections: stopped, stalled, or slowed by neighbours.

use std::time::Duration;

use tokio::time::{Instant, interval, sleep};

use super::house::{End, House, Wire, poll};
use crate::harness::audio::noise_ms;
use crate::harness::client::Client;
use crate::harness::proxy::{Mode, Proxy};
use crate::harness::redis_server::{RedisServer, redis};
use crate::harness::signal;

/// A server that is stopped in its tracks, until this is dropped.
struct Frozen(u32);

impl Frozen {
    fn new(store: &RedisServer) -> Self {
        signal::send("STOP", store.pid());
        Self(store.pid())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        signal::send("CONT", self.0);
    }
}

/// Resident memory of a process, in KiB.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident size");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Stopped for 1.5 s, then for 4 s: longer than a connection may owe its answers, shorter than a chunk is held.
#[tokio::test(flavor = "multi_thread")]
async fn short_freezes_end_no_stream() {
    let house = House::on(RedisServer::start(redis(), &[])).await;
    let (crowd, mut witness) = (house.crowd(20).await, house.open().await);
    sleep(Duration::from_secs(1)).await; // time to speak
    for (round, time) in [(1, 1_500), (2, 4_000)] {
        let frozen = Frozen::new(&house.store);
        let start = Instant::now();
        assert!(witness.audio(&noise_ms(1, 1000)).await && witness.ping().await);
        witness.until("pong while held", |heard| heard.pongs == round).await;
        sleep(Duration::from_millis(time).saturating_sub(start.elapsed())).await;
        drop(frozen);
        let thawed = Instant::now();
        witness.until("words", |heard| heard.of("Results").len() == round).await;
        println!("frozen for {time} ms: first words {:?} after it", thawed.elapsed());
    }
    sleep(Duration::from_secs(1)).await; // time to speak

    let mut ends = crowd.went_on().await;
    ends.push(End { heard: witness.finish().await, sent: 0, pings: 0 });
    house.agrees(&ends).await;
    let settles = house.metric("voxgate_settles_total", &[]).await;
    assert!(settles <= 4.0 * 21.0, "one for each doubt, one for each end: {settles}");
    assert_eq!(house.metric("voxgate_reaped_total", &["answer=\"reaped\""]).await, 0.0);
}

/// Stopped for 30 s: who speaks is told after HOLD, who is silent lives on, nobody new waits, and nobody is reaped.
#[tokio::test(flavor = "multi_thread")]
async fn long_freeze_ends_who_speaks() {
    let house = House::on(RedisServer::start(redis(), &[])).await;
    let mut quiet = Vec::new();
    for seed in 0..5 {
        let mut client = house.open().await;
        assert!(client.audio(&noise_ms(seed, 1000)).await);
        client.until("words", |heard| heard.of("Results").len() == 1).await;
        quiet.push(client);
    }
    let crowd = house.crowd(20).await;
    sleep(Duration::from_secs(1)).await; // time to speak
    let memory = resident(house.gateway.pid());
    let (frozen, start) = (Frozen::new(&house.store), Instant::now());

    let mut ends = crowd.ended().await;
    let ended = start.elapsed();
    for end in &ends {
        assert_eq!((end.heard.code(), end.heard.reason()), (1013, "STORE-0000"), "{:?}", end.heard);
    }
    assert!(ended < Duration::from_secs(7), "held for 5 s, then told at once: {ended:?}");
    let handed = house.metric("voxgate_units_total", &["fate=\"handed_over\""]).await as u64;
    assert!(house.worker.audio_bytes() as u64 / 32 <= handed, "nothing unpaid is forwarded");
    let (mut ticks, mut refused) = (interval(Duration::from_millis(500)), Vec::new());
    while start.elapsed() < Duration::from_secs(30) {
        ticks.tick().await;
        for client in &mut quiet {
            assert!(client.text(r#"{"type":"KeepAlive"}"#).await, "who is silent is not cut off");
        }
        refused.push(house.refused().await);
    }
    let grown = resident(house.gateway.pid()).saturating_sub(memory);
    drop(frozen);
    let thawed = Instant::now();
    let first = first_words(&mut quiet).await - thawed;
    let (client, reopened) = house.reopened().await;

    refused.sort();
    let (count, median, slowest) = (refused.len(), refused[refused.len() / 2], refused[refused.len() - 1]);
    println!(
        "frozen for 30 s: ended after {ended:?}, {count} refused in {median:?}, at most {slowest:?}, {grown} KiB more, \
         first admit after {first:?}, a new stream after {reopened:?} more"
    );
    assert!(median < Duration::from_millis(500), "refused without the store: {median:?}");
    assert!(grown < 32 * 1024, "20 streams hold 5 s each, that is 3 MiB: {grown} KiB");
    assert!(first < Duration::from_secs(3), "by design less than one backoff: {first:?}");
    quiet.push(client);
    for client in quiet {
        let heard = client.finish().await;
        assert_eq!(heard.code(), 1000, "{heard:?}");
        ends.push(End { heard, sent: 0, pings: 0 });
    }
    house.agrees(&ends).await;
    assert_eq!(house.metric("voxgate_reaped_total", &["answer=\"reaped\""]).await, 0.0);
    assert_eq!(house.metric("voxgate_breaker_open", &[]).await, 0.0);
    assert!(house.metric("voxgate_breaker_opened_total", &[]).await >= 1.0);
}

/// Speaks to all, and gives when the first one was answered.
async fn first_words(clients: &mut [Client]) -> Instant {
    for client in clients.iter_mut() {
        assert!(client.audio(&noise_ms(9, 1000)).await);
    }
    poll("words", async || {
        clients.iter().any(|client| client.heard().of("Results").len() > 1).then(Instant::now)
    })
    .await
}

/// Answers are kept back on their way for 3 s: the connection is given up, and what may have been taken is never charged.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_replies_are_doubted_once() {
    let store = RedisServer::start(redis(), &[]);
    let proxy = Proxy::to(([127, 0, 0, 1], store.port).into()).await;
    let house = House::behind(store, &proxy.redis_url()).await;
    let crowd = house.crowd(20).await;
    sleep(Duration::from_secs(1)).await; // time to speak

    proxy.set(Mode::HoldReplies);
    sleep(Duration::from_secs(3)).await; // the fault's length
    proxy.set(Mode::Pass);
    sleep(Duration::from_secs(1)).await; // time to speak

    house.agrees(&crowd.went_on().await).await;
    let doubts = house.metric("voxgate_doubts_total", &["script=\"admit\""]).await;
    let wasted = house.metric("voxgate_units_total", &["fate=\"wasted\""]).await;
    println!("stalled: {doubts} doubts, {wasted} units wasted");
    assert!((1.0..=20.0).contains(&doubts), "at most one admit of each stream was on its way: {doubts}");
    assert!(wasted > 0.0);
}

/// A foreign script of 400 ms in every second, below the threshold: latency, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn slow_neighbours_cost_only_latency() {
    let house = House::on(RedisServer::start(redis(), &[])).await;
    let crowd = house.crowd(20).await;
    let mut foreign = Wire::to(&house.store).await;
    let slow = "local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end
                local start = now()
                while now() - start < 400 do end";
    let mut ticks = interval(Duration::from_secs(1));
    for _ in 0..10 {
        ticks.tick().await;
        foreign.ask(&["EVAL", slow, "0"]).await;
    }

    let settles = house.metric("voxgate_settles_total", &[]).await;
    house.agrees(&crowd.went_on().await).await;
    let seen = house.gateway.metrics().await;
    let errors = seen.lines().filter(|line| line.starts_with("voxgate_script_errors_total{"));
    // A script that was never loaded is loaded and called again: no fault.
    let faults: Vec<_> = errors.filter(|line| !line.contains("kind=\"noscript\"")).collect();
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(house.metric("voxgate_doubts_total", &[]).await, 0.0);
    assert_eq!(house.metric("voxgate_breaker_opened_total", &[]).await, 0.0);
    // Each stream moves to its second envelope within 10 s of audio, and to its third at most.
    assert!(settles <= 40.0, "no settle storm: {settles}");
}
