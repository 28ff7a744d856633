//! What stays whole and what stays bounded: every paid byte reaches the worker; whatever is too much is refused.

use std::time::Duration;

use crate::harness::audio::{noise_ms, sine};
use crate::harness::client::{Client, LINEAR16};
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::raw::{self, RawClient};
use crate::harness::redis_server::{RedisServer, redis};
use crate::harness::scripted_worker::{Results, Script, ScriptedWorker};

const NO_WAIT: Duration = Duration::ZERO;
const ODD_FRAME: usize = 1323;

async fn house(script: Script) -> (ScriptedWorker, Gateway, String) {
    let worker = ScriptedWorker::start(script).await;
    let gateway = Gateway::start(&Setup::embedded(&[worker.url()])).await;
    let key = gateway.account("a", 600_000).await;
    (worker, gateway, key)
}

async fn open(gateway: &Gateway, key: &str) -> Client {
    gateway.open(LINEAR16, key).await.expect("accepted")
}

/// The worker is slow to come; the client does not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn late_worker_gets_every_byte() {
    let script = Script { connect_after: Duration::from_secs(2), ..Script::default() };
    let (worker, gateway, key) = house(script).await;
    let audio = noise_ms(11, 3_000);
    let mut client = open(&gateway, &key).await;

    assert!(client.stream(&audio, ODD_FRAME, NO_WAIT).await);
    let heard = client.finish().await;

    assert_eq!((heard.code(), heard.metadata_ms()), (1000, 3_000), "{heard:?}");
    let visits = worker.visits();
    assert_eq!(visits.len(), 1);
    assert!(visits[0].audio == audio, "byte for byte, from byte 0");
    assert_eq!(gateway.balance("a").await.settled, 3_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_frames_arrive_whole() {
    let (worker, gateway, key) = house(Script { results: Results::PerMs(100), ..Script::default() }).await;
    for (seed, frame) in [(1, 1), (2, 7), (3, ODD_FRAME), (4, 65_535)] {
        let audio = noise_ms(seed, if frame == 1 { 20 } else { 2_500 });
        let mut client = open(&gateway, &key).await;

        assert!(client.stream(&audio, frame, NO_WAIT).await);
        let heard = client.finish().await;

        assert_eq!((heard.code(), heard.metadata_ms()), (1000, audio.len() as u64 / 32), "frames of {frame}");
        let lengths: Vec<usize> = worker.visits().iter().map(|visit| visit.audio.len()).collect();
        assert!(
            worker.visits().iter().any(|visit| visit.audio == audio),
            "frames of {frame}: {} sent, {lengths:?} arrived",
            audio.len()
        );
    }
    assert_eq!(gateway.balance("a").await.settled, 20 + 3 * 2_500);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_large_message_is_not_charged() {
    let (worker, gateway, key) = house(Script::default()).await;
    let mut client = open(&gateway, &key).await;
    assert!(client.audio(&noise_ms(1, 100)).await);
    client.until("results", |heard| !heard.messages.is_empty()).await;
    client.audio(&vec![0; 64 * 1024 + 2]).await;

    let heard = client.end().await;

    assert_eq!(heard.code(), 1009, "{heard:?}");
    assert!(!heard.of("Error").is_empty(), "{heard:?}");
    let balance = gateway.balance("a").await;
    assert_eq!((balance.settled, balance.held), (100, 0));
    assert_eq!(worker.audio_bytes(), 3_200);
}

/// A promise of 60 MiB is refused by its header alone.
#[tokio::test(flavor = "multi_thread")]
async fn promised_giant_is_refused_unread() {
    let (_worker, gateway, key) = house(Script::default()).await;
    for length in [60 << 20, i64::MAX as u64] {
        let mut client = RawClient::connect(gateway.public.parse().expect("an address")).await;
        client.upgrade(LINEAR16, &key).await;

        client.promise(raw::BINARY, length).await;

        let close = client.closed().await;
        assert!(close.as_ref().is_some_and(|(code, _)| *code == 1009), "{length}: {close:?}");
    }
    assert_eq!(gateway.balance("a").await.taken, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_frames_end_the_stream() {
    let (_worker, gateway, key) = house(Script::default()).await;
    let address = gateway.public.parse().expect("an address");
    let frames: [(&str, u8, &[u8], bool, u16); 4] = [
        ("unmasked", raw::BINARY, b"12", false, 1002),
        ("reserved bit", 0xC2, b"12", true, 1002),
        ("unknown opcode", 0x83, b"12", true, 1002),
        ("bad UTF-8", raw::TEXT, b"\xff\xfe", true, 1007),
    ];
    for (what, bits, payload, masked, code) in frames {
        let mut client = RawClient::connect(address).await;
        client.upgrade(LINEAR16, &key).await;
        if masked {
            client.frame(bits, payload).await;
        } else {
            client.unmasked(bits, payload).await;
        }
        assert_eq!(client.closed().await.map(|(code, _)| code), Some(code), "{what}");
    }
    let balance = gateway.balance("a").await;
    assert_eq!((balance.taken, balance.leases), (0, 0));
}

/// A client that sends and never reads must not make the gateway keep its words for ever.
#[tokio::test(flavor = "multi_thread")]
async fn deaf_client_is_cut_off() {
    let (worker, gateway, key) = house(Script { wordy: 64 * 1024, ..Script::default() }).await;
    let mut client = RawClient::connect_narrow(gateway.public.parse().expect("an address")).await;
    client.upgrade(LINEAR16, &key).await;
    let mut frame = vec![raw::BINARY, 0x80 | 126, 0x01, 0x40, 0, 0, 0, 0]; // 320 bytes, mask 0
    frame.extend_from_slice(&sine(16_000, 160));

    // 10 ms of audio each; the answers fill every buffer on the way long before these are all sent.
    for _ in 0..2_000 {
        if client.try_send(&frame).await.is_err() {
            break;
        }
    }

    gateway.until_logged(r#""ending":"client_slow""#).await;
    let balance = gateway.balance("a").await;
    assert_eq!((balance.held, balance.leases, balance.taken), (0, 0, balance.settled));
    // What was handed to the link is owed, whether or not this worker, stuck on its answers, came to read it.
    let read = worker.audio_bytes() as u64 / 32;
    assert!((read..=20_000).contains(&balance.settled), "{read} read, {} charged", balance.settled);
}

/// A client that vanishes pays for what reached the worker and leaves nothing held.
#[tokio::test(flavor = "multi_thread")]
async fn vanished_client_is_settled() {
    let (worker, gateway, key) = house(Script::default()).await;
    let mut client = RawClient::connect(gateway.public.parse().expect("an address")).await;
    client.upgrade(LINEAR16, &key).await;
    client.frame(raw::BINARY, &noise_ms(1, 500)).await;
    assert!(client.next().await.is_some_and(|frame| frame.bits == raw::TEXT), "words came");

    client.vanish();

    worker.until("end of the visit", |visits| visits.iter().all(|visit| visit.over)).await;
    settled(&gateway, 500).await;
}

/// Half a head is not a client.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_head_is_dropped() {
    let (_worker, gateway, key) = house(Script::default()).await;
    let mut silent = RawClient::connect(gateway.public.parse().expect("an address")).await;
    let mut half = RawClient::connect(gateway.public.parse().expect("an address")).await;
    half.send(&RawClient::head(LINEAR16, &key).as_bytes()[..60]).await;

    assert!(half.dropped().await && silent.dropped().await);
}

/// A quota key that is gone ends the stream: not zero, not unlimited, and nothing makes it again.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_quota_key_lapses() {
    let store = RedisServer::start(redis(), &[]);
    let worker = ScriptedWorker::start(Script::default()).await;
    let gateway = Gateway::start(&Setup::on(&store.url(), &[worker.url()])).await;
    let key = gateway.account("a", 600_000).await;
    let mut client = open(&gateway, &key).await;
    assert!(client.audio(&noise_ms(1, 400)).await);
    client.until("results", |heard| !heard.messages.is_empty()).await;
    let server = ::redis::Client::open(store.url()).expect("a valid URL");
    let mut books = server.get_multiplexed_async_connection().await.expect("the store listens");
    let ask = ::redis::cmd("KEYS").arg("vox:quota:{a}:*").to_owned();
    let quotas: Vec<String> = ask.query_async(&mut books).await.expect("keys");
    assert_eq!(quotas.len(), 1);

    let gone: u32 = ::redis::cmd("DEL").arg(&quotas[0]).query_async(&mut books).await.expect("a count");
    assert_eq!(gone, 1);
    client.audio(&noise_ms(2, 400)).await;
    let heard = client.end().await;

    assert_eq!(heard.code(), 1008, "{heard:?}");
    assert_eq!((heard.metadata_ms(), worker.audio_bytes()), (400, 400 * 32), "{heard:?}");
    let left: Vec<String> = ask.query_async(&mut books).await.expect("keys");
    assert!(left.is_empty(), "{left:?}");
    settled(&gateway, 400).await;
}

/// Waits until nothing is held any more, and checks what was charged.
async fn settled(gateway: &Gateway, units: u64) {
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    for _ in 0..200 {
        ticks.tick().await;
        let balance = gateway.balance("a").await;
        if balance.leases == 0 && balance.settled > 0 {
            assert_eq!((balance.settled, balance.taken, balance.held), (units, units, 0));
            return;
        }
    }
    panic!("not settled: {:?}", gateway.balance("a").await);
}
