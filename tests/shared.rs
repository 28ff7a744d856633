//! One session on many sockets and several gateways: the quota is shared, and spent to the unit.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::harness::audio::noise_ms;
use crate::harness::client::{Client, Heard, LINEAR16};
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::redis_server::{RedisServer, redis};
use crate::harness::scripted_worker::{Script, ScriptedWorker};

const SOCKETS: usize = 64;
/// Odd on purpose: the last chunk must be cut.
const QUOTA_MS: u64 = 40_003;

/// Sends more than there is for everybody together: the budget ends every stream, none ends by itself.
async fn stream(mut client: Client, audio: Arc<Vec<u8>>, barrier: Arc<Barrier>) -> Heard {
    barrier.wait().await;
    client.stream(&audio, 640, Duration::ZERO).await;
    client.end().await
}

/// 64 sockets of one session on two gateways, sending at the same instants: admitted = quota, to the unit; what
/// workers got is what was admitted, to the sample.
#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_spend_one_quota_exactly() {
    let store = RedisServer::start(redis(), &[]);
    let worker = ScriptedWorker::start(Script::default()).await;
    let more = "[[workers]]\nname = \"w\"\nurl = \"URL\"\nstreams_max = 200\n".replace("URL", &worker.url());
    let setup = || Setup::on(&store.url(), &[]).more(&more);
    let (one, two) = (Gateway::start(&setup()).await, Gateway::start(&setup()).await);
    one.account_with("a", QUOTA_MS, json!({"share": 1})).await;
    let key = one.key("a", json!({"streams_max": 100})).await;

    let (barrier, audio) = (Arc::new(Barrier::new(SOCKETS)), Arc::new(noise_ms(1, QUOTA_MS as usize + 100)));
    let target = format!("{LINEAR16}&session_id=together");
    let mut streams = JoinSet::new();
    for i in 0..SOCKETS {
        let gateway = if i % 2 == 0 { &one } else { &two };
        let client = gateway.open(&target, &key).await.expect("there is budget");
        streams.spawn(stream(client, audio.clone(), barrier.clone()));
    }
    let all = streams.join_all().await;

    let admitted: u64 = all.iter().map(Heard::metadata_ms).sum();
    for heard in &all {
        assert_eq!(heard.code(), 1008, "{}", heard.reason());
        assert!(heard.reason().starts_with("QUOTA-"), "{}", heard.reason());
    }
    let balance = one.balance("a").await;
    assert_eq!(admitted, QUOTA_MS);
    assert_eq!((balance.settled, balance.taken, balance.held, balance.leases), (QUOTA_MS, QUOTA_MS, 0, 0));
    assert_eq!(worker.audio_bytes() as u64, QUOTA_MS * 32, "forwarded is what was admitted");
    let refused = two.open(LINEAR16, &key).await.err().expect("nothing is left");
    assert_eq!(refused.status, 402);
}

/// A cap lowered to nothing under a live stream takes hold at the end of the envelope that it draws on, at the latest.
#[tokio::test(flavor = "multi_thread")]
async fn lowered_cap_ends_with_the_envelope() {
    let store = RedisServer::start(redis(), &[]);
    let worker = ScriptedWorker::start(Script::default()).await;
    let gateway = Gateway::start(&Setup::on(&store.url(), &[worker.url()])).await;
    let key = gateway.account_with("a", 600_000, json!({"share": 1})).await;
    let mut client = gateway.open(LINEAR16, &key).await.expect("accepted");
    assert!(client.audio(&noise_ms(1, 1000)).await);
    client.until("results", |heard| !heard.messages.is_empty()).await;

    let (status, body) = gateway.call("PATCH", "/v1/accounts/a", Some(json!({"cap": 0}))).await;
    assert_eq!(status, 200, "{body}");
    client.stream(&noise_ms(2, 60_000), 3200, Duration::ZERO).await;
    let heard = client.end().await;

    assert_eq!((heard.code(), heard.reason()), (1008, "QUOTA-0000"));
    assert_eq!(heard.metadata_ms(), 10_000, "the first envelope, to the unit");
    assert_eq!(worker.audio_bytes(), 10_000 * 32);
    assert_eq!(gateway.open(LINEAR16, &key).await.err().map(|refusal| refusal.status), Some(402));
}
