//! The Deepgram front as its clients meet it: vendor SDKs unmodified, refusals, endings, and what each costs.

use std::time::Duration;

use serde_json::json;

use crate::harness::audio::{noise, noise_ms, wav_file};
use crate::harness::client::{Client, Credential, Heard, LINEAR16};
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::proxy::Proxy;
use crate::harness::redis_server::{RedisServer, redis};
use crate::harness::scripted_worker::{Results, Script, ScriptedWorker};
use crate::harness::sdk::{Sdk, SdkRun};

const NO_WAIT: Duration = Duration::ZERO;
const CHUNK: usize = 3200; // 100 ms of 16 kHz linear16

/// A gateway with one scripted worker, and the store it stands on when that is a server.
struct House {
    gateway: Gateway,
    worker: ScriptedWorker,
    store: &'static str,
    _redis: Option<RedisServer>,
}

impl House {
    async fn embedded(more: &str) -> Self {
        let worker = ScriptedWorker::start(Script::default()).await;
        let gateway = Gateway::start(&Setup::embedded(&[worker.url()]).more(more)).await;
        Self { gateway, worker, store: "embedded", _redis: None }
    }

    async fn on_redis() -> Self {
        let redis = RedisServer::start(redis(), &[]);
        let worker = ScriptedWorker::start(Script::default()).await;
        let gateway = Gateway::start(&Setup::on(&redis.url(), &[worker.url()])).await;
        Self { gateway, worker, store: "redis", _redis: Some(redis) }
    }

    async fn open(&self, key: &str) -> Client {
        self.gateway.open(LINEAR16, key).await.expect("accepted")
    }

    /// Whether one connection to the worker brought exactly this audio.
    fn worker_heard(&self, audio: &[u8]) -> bool {
        self.worker.visits().iter().any(|visit| visit.audio == audio)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sdks_end_clean_on_embedded() {
    sdks_end_clean(&House::embedded("").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sdks_end_clean_on_redis() {
    sdks_end_clean(&House::on_redis().await).await;
}

/// However the audio is cut and however fast it comes, its price is its length.
async fn sdks_end_clean(house: &House) {
    let cuts: [&[&str]; 4] = [
        &["--speed", "4"],
        &["--speed", "0", "--chunk-ms", "5"],
        &["--speed", "0", "--split", "odd"],
        &["--speed", "4", "--finalize-at", "3", "--keepalive-at", "5"],
    ];
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (number, sdk) in Sdk::ALL.into_iter().enumerate() {
        for (cut, options) in cuts.iter().enumerate() {
            // 1 000.0625 ms: the last, begun millisecond is paid too.
            let audio = noise((number * 10 + cut) as u64, 16_001);
            let account = format!("a{number}-{cut}");
            let key = house.gateway.account(&account, 60_000).await;
            let wav = wav_file(folder.path(), "speech.wav", 16_000, &audio);
            let options = [*options, &["--api-key", &key]].concat();
            let Some(run) = sdk.stream(&house.gateway.public, &wav, &options).await else { continue };

            let what = format!("{sdk:?} {options:?} on {}: {run:#?}", house.store);
            assert_eq!(run.status, 0, "{what}");
            assert_eq!(run.strangers(), 0, "{what}");
            let duration = run.messages("Metadata")[0]["duration"].as_f64().expect("a number");
            assert!((duration - 1.000_062_5).abs() < 1e-6, "{duration} in {what}");
            assert!(house.worker_heard(&audio), "{what}");
            let balance = house.gateway.balance(&account).await;
            assert_eq!((balance.settled, balance.held, balance.leases), (1_001, 0, 0), "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spent_budget_ends_every_sdk() {
    let house = House::embedded("").await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let audio = noise_ms(7, 2_000);
    let wav = wav_file(folder.path(), "speech.wav", 16_000, &audio);
    for (number, sdk) in Sdk::ALL.into_iter().enumerate() {
        let account = format!("a{number}");
        let key = house.gateway.account(&account, 730).await;
        let options = ["--api-key", &key, "--speed", "2"];
        let Some(run) = sdk.stream(&house.gateway.public, &wav, &options).await else { continue };

        spent_sequence(sdk, &run);
        assert!(house.worker_heard(&audio[..730 * 32]), "{sdk:?}: paid to the last millisecond");
        let balance = house.gateway.balance(&account).await;
        assert_eq!((balance.settled, balance.taken, balance.held), (730, 730, 0), "{sdk:?}");

        let again = sdk.stream(&house.gateway.public, &wav, &options).await.expect("installed");
        assert_eq!(again.status, 3, "{sdk:?}: {again:#?}");
        let refused = match sdk {
            Sdk::PythonSync | Sdk::PythonAsync => again.of("rejected")[0]["status"] == 402,
            Sdk::Node => again.of("error").iter().any(|e| e["text"].to_string().contains("402")),
        };
        assert!(refused, "{sdk:?}: {again:#?}");
    }
}

/// Final words, `Metadata` of what was paid, `Error`, close 1008: in this order, and no message is a stranger.
fn spent_sequence(sdk: Sdk, run: &SdkRun) {
    assert_eq!((run.status, run.strangers()), (4, 0), "{sdk:?}: {run:#?}");
    let order = run.order();
    let (last, words) = order.split_at(order.len() - 2);
    assert_eq!(words, ["Metadata", "Error"], "{sdk:?}: {run:#?}");
    assert!(last.iter().all(|kind| *kind == "Results") && !last.is_empty(), "{sdk:?}: {order:?}");
    assert_eq!(run.messages("Error")[0]["variant"], "QUOTA_EXCEEDED", "{sdk:?}");
    let duration = run.messages("Metadata")[0]["duration"].as_f64().expect("a number");
    assert!((duration - 0.73).abs() < 1e-6, "{sdk:?}: {duration}");
    let close = run.of("close")[0];
    assert_eq!((&close["code"], &close["reason"]), (&json!(1008), &json!("QUOTA-0000")), "{sdk:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reconnecting_sdk_asks_twice() {
    let house = House::embedded("").await;
    let key = house.gateway.account("a", 500).await;
    let counter = Proxy::to(house.gateway.public.parse().expect("an address")).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let wav = wav_file(folder.path(), "speech.wav", 16_000, &noise_ms(8, 1_500));
    let address = counter.address().to_string();
    let options = ["--api-key", &key, "--speed", "2", "--reconnects", "30", "--wait", "30"];
    let Some(run) = Sdk::Node.stream(&address, &wav, &options).await else { return };

    assert_eq!(counter.connections(), 2, "{run:#?}");
    assert_eq!(run.of("open").len(), 1, "{run:#?}");
    let codes: Vec<_> = run.of("close").iter().map(|close| close["code"].clone()).collect();
    assert_eq!(codes, [json!(1008), json!(1000)], "the second is the SDK's own word for a refused upgrade");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_come_before_the_upgrade() {
    let house = House::embedded("").await;
    let gateway = &house.gateway;
    let key = gateway.account("a", 60_000).await;
    let spent = gateway.account("spent", 0).await;
    let narrow = gateway.key("a", json!({"models": ["other"]})).await;
    let zero_rate = "/v1/listen?model=m&encoding=linear16&sample_rate=0";
    let no_rate = "/v1/listen?model=m&encoding=linear16";
    let unknown = "/v1/listen?model=m&encoding=mp77&sample_rate=16000";
    let callback = "/v1/listen?model=m&encoding=linear16&sample_rate=16000&callback=http://127.0.0.1/";
    let cases = [
        (LINEAR16, Credential::Nothing, 401, "INVALID_AUTH"),
        (LINEAR16, Credential::Token("nobodys-key"), 401, "INVALID_AUTH"),
        (LINEAR16, Credential::Token(&spent), 402, "ASR_PAYMENT_REQUIRED"),
        (LINEAR16, Credential::Token(&narrow), 403, "INSUFFICIENT_PERMISSIONS"),
        (zero_rate, Credential::Token(&key), 400, ""),
        (no_rate, Credential::Token(&key), 400, ""),
        (unknown, Credential::Token(&key), 400, ""),
        (callback, Credential::Token(&key), 400, ""),
        ("/v1/nowhere", Credential::Token(&key), 404, ""),
    ];
    for (target, credential, status, code) in cases {
        let what = format!("{target} {credential:?}");
        let Err(refusal) = Client::open(&gateway.public, target, credential).await else {
            panic!("{what} was accepted");
        };
        assert_eq!(refusal.status, status, "{what}: {refusal:?}");
        assert!(code.is_empty() || refusal.body["err_code"] == code, "{what}: {refusal:?}");
        let message = refusal.body["err_msg"].as_str().unwrap_or_default();
        assert!(!message.is_empty(), "{what}: {refusal:?}");
        assert_eq!(refusal.headers.get("dg-error").map(String::as_str), Some(message), "{what}");
        assert!(refusal.headers.contains_key("dg-request-id"), "{what}");
    }
    let balance = gateway.balance("a").await;
    assert_eq!((balance.taken, balance.leases), (0, 0), "refusals hold nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_stream_too_many_is_refused() {
    let house = House::embedded("").await;
    house.gateway.account("a", 60_000).await;
    let key = house.gateway.key("a", json!({"streams_max": 1})).await;
    let mut first = house.open(&key).await;
    assert!(first.audio(&noise_ms(1, 100)).await);
    first.until("results", |heard| !heard.messages.is_empty()).await;

    let second = house.gateway.open(LINEAR16, &key).await.err().expect("refused");

    assert_eq!((second.status, &second.body["err_code"]), (429, &json!("TOO_MANY_REQUESTS")));
    assert_eq!(first.finish().await.code(), 1000);
    let third = house.open(&key).await;
    assert_eq!(third.finish().await.code(), 1000, "the place is free again");
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_credential_is_answered() {
    let house = House::embedded("").await;
    let key = house.gateway.account("a", 60_000).await;
    let browser = Client::open(&house.gateway.public, LINEAR16, Credential::Subprotocol(&key)).await;
    let browser = browser.expect("accepted");
    assert_eq!(browser.headers.get("sec-websocket-protocol").map(String::as_str), Some("token"));
    assert!(!browser.headers.contains_key("sec-websocket-extensions"));
    assert_eq!(browser.finish().await.code(), 1000);

    let folder = tempfile::tempdir().expect("a temporary folder");
    let wav = wav_file(folder.path(), "speech.wav", 16_000, &noise_ms(9, 300));
    let options = ["--api-key", &key, "--speed", "0", "--subprotocol-auth"];
    let Some(run) = Sdk::Node.stream(&house.gateway.public, &wav, &options).await else { return };
    assert_eq!(run.status, 0, "{run:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_raw_encoding_costs_its_time() {
    let house = House::embedded("").await;
    for (encoding, rate, channels, bytes_per_ms) in [
        ("linear16", 16_000, 1, 32),
        ("linear16", 48_000, 2, 192),
        ("linear32", 16_000, 1, 64),
        ("mulaw", 8_000, 1, 8),
        ("alaw", 8_000, 1, 8),
    ] {
        let account = format!("a-{encoding}-{rate}-{channels}");
        let key = house.gateway.account(&account, 60_000).await;
        let target = format!("/v1/listen?model=m&encoding={encoding}&sample_rate={rate}&channels={channels}");
        let mut client = house.gateway.open(&target, &key).await.expect("accepted");
        let audio = vec![0x55; 400 * bytes_per_ms];

        assert!(client.stream(&audio, 1323, NO_WAIT).await);
        let heard = client.finish().await;

        assert_eq!((heard.code(), heard.metadata_ms()), (1000, 400), "{account}");
        assert_eq!(house.gateway.balance(&account).await.settled, 400, "{account}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_stream_ends_as_idle() {
    let house = House::embedded("[limits]\nidle = \"1s\"\n").await;
    let key = house.gateway.account("a", 60_000).await;
    let mut spoke = house.open(&key).await;
    let silent = house.open(&key).await;
    assert!(spoke.audio(&noise_ms(1, 250)).await);

    for (heard, admitted) in [(spoke.end().await, 250), (silent.end().await, 0)] {
        assert_eq!((heard.code(), heard.reason()), (1011, "NET-0001"), "{heard:?}");
        assert_eq!(heard.order().last(), Some(&"Error"), "{heard:?}");
        if admitted > 0 {
            assert_eq!(heard.metadata_ms(), admitted);
        }
    }
    let balance = house.gateway.balance("a").await;
    assert_eq!((balance.settled, balance.held), (250, 0));
}

/// `KeepAlive` buys time only for a stream that has spoken.
#[tokio::test(flavor = "multi_thread")]
async fn keepalive_saves_only_spoken_streams() {
    let house = House::embedded("[limits]\nidle = \"1s\"\n").await;
    let key = house.gateway.account("a", 60_000).await;
    let (mut spoke, mut mute) = (house.open(&key).await, house.open(&key).await);
    assert!(spoke.audio(&noise_ms(1, 100)).await);

    let mut ticks = tokio::time::interval(Duration::from_millis(250));
    while !mute.heard().over {
        ticks.tick().await;
        assert!(spoke.text(r#"{"type": "KeepAlive"}"#).await);
        mute.text(r#"{"type": "KeepAlive"}"#).await;
    }

    assert_eq!(mute.heard().code(), 1011);
    let heard = spoke.finish().await;
    assert_eq!((heard.code(), heard.metadata_ms()), (1000, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_and_nonsense_are_answered() {
    let house = House::embedded("").await;
    let key = house.gateway.account("a", 60_000).await;
    let mut client = house.open(&key).await;
    assert!(
        client.ping().await && client.text("{not json").await && client.text(r#"{"type":"Dance"}"#).await
    );
    assert!(client.audio(&noise_ms(1, 100)).await);
    client.until("pong", |heard| heard.pongs == 1).await;

    let heard = client.finish().await;

    assert_eq!((heard.code(), heard.metadata_ms()), (1000, 100));
    let errors = heard.of("Error");
    assert_eq!(errors.len(), 2, "{heard:?}");
    assert!(errors.iter().all(|error| error["variant"] == "SchemaError"), "{heard:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn audio_after_closestream_is_free() {
    let house = House::embedded("").await;
    house.worker.play(Script { results: Results::Never, ..Script::default() });
    let key = house.gateway.account("a", 60_000).await;
    let mut client = house.open(&key).await;
    assert!(client.stream(&noise_ms(1, 500), CHUNK, NO_WAIT).await);
    assert!(client.text(r#"{"type":"CloseStream"}"#).await);
    client.audio(&noise_ms(2, 500)).await;

    let heard = client.end().await;

    ends_complete(&heard, 500);
    assert_eq!(house.gateway.balance("a").await.settled, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_stream_costs_nothing() {
    let house = House::embedded("").await;
    let key = house.gateway.account("a", 60_000).await;

    let heard = house.open(&key).await.finish().await;

    assert_eq!((heard.code(), heard.metadata_ms()), (1000, 0), "{heard:?}");
    let balance = house.gateway.balance("a").await;
    assert_eq!((balance.taken, balance.leases), (0, 0));
    assert!(house.worker.visits().is_empty(), "no audio, no worker");
}

/// The order that ends every good stream, and every field that the SDKs' types require.
fn ends_complete(heard: &Heard, ms: u64) {
    assert_eq!((heard.code(), heard.reason(), heard.metadata_ms()), (1000, "", ms), "{heard:?}");
    assert_eq!(heard.order().last(), Some(&"Metadata"), "{heard:?}");
    let metadata = heard.of("Metadata")[0];
    for field in ["transaction_key", "request_id", "sha256", "created", "duration", "channels"] {
        assert!(!metadata[field].is_null(), "{field} in {metadata}");
    }
    for result in heard.of("Results") {
        for field in ["channel_index", "duration", "start", "channel", "metadata"] {
            assert!(!result[field].is_null(), "{field} in {result}");
        }
        let alternative = &result["channel"]["alternatives"][0];
        assert!(alternative["words"].is_array() && alternative["confidence"].is_number(), "{result}");
        assert!(result["metadata"]["request_id"] == metadata["request_id"], "{result}");
    }
}
