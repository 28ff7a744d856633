//! Short-lived tokens as a backend mints them and a browser uses them: what they open, for how long, and what not.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use voxgate::quota::store::Store;
use voxgate::quota::{Quota, Settings};

use crate::harness::PATIENCE;
use crate::harness::audio::{noise_ms, wav_file};
use crate::harness::client::{Client, Credential, LINEAR16, Refusal};
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::redis_server::{RedisServer, redis};
use crate::harness::scripted_worker::{Script, ScriptedWorker};
use crate::harness::sdk::Sdk;

const CHUNK: usize = 3200; // 100 ms of 16 kHz linear16

struct House {
    gateway: Gateway,
    worker: ScriptedWorker,
}

impl House {
    async fn embedded() -> Self {
        let worker = ScriptedWorker::start(Script::default()).await;
        Self { gateway: Gateway::start(&Setup::embedded(&[worker.url()])).await, worker }
    }

    async fn token(&self, key: &str, body: Value) -> String {
        token(&self.gateway, key, body).await
    }

    async fn bearer(&self, target: &str, token: &str) -> Result<Client, Refusal> {
        Client::open(&self.gateway.public, target, Credential::Bearer(token)).await
    }
}

/// What the grant endpoint answers.
struct Answer {
    status: u16,
    headers: http::HeaderMap,
    body: Value,
}

async fn ask(gateway: &Gateway, method: &str, authorization: Option<&str>, body: String) -> Answer {
    let mut request =
        http::Request::builder().method(method).uri(format!("http://{}/v1/auth/grant", gateway.public));
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    let request = request.body(body).expect("a valid request");
    let call = move || {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .timeout_global(Some(PATIENCE))
            .build()
            .into();
        let mut answer = agent.run(request).expect("an answer");
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let text = answer.body_mut().read_to_string().expect("a text body");
        Answer { status, headers, body: serde_json::from_str(&text).unwrap_or_default() }
    };
    tokio::task::spawn_blocking(call).await.expect("no panic inside")
}

async fn grant(gateway: &Gateway, key: &str, body: Value) -> Answer {
    ask(gateway, "POST", Some(&format!("Token {key}")), body.to_string()).await
}

async fn token(gateway: &Gateway, key: &str, body: Value) -> String {
    let answer = grant(gateway, key, body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["access_token"].as_str().expect("a token").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn sdks_swap_their_key() {
    let house = House::embedded().await;
    let key = house.gateway.account("a", 600_000).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let wav = wav_file(folder.path(), "speech.wav", 16_000, &noise_ms(3, 400));
    let mut paid = 0;
    for sdk in Sdk::ALL {
        for more in [&[][..], &["--ttl", "5"], &["--subprotocol-auth"]] {
            if more == ["--subprotocol-auth"] && sdk != Sdk::Node {
                continue;
            }
            let options = [&["--api-key", &key, "--speed", "0", "--grant"][..], more].concat();
            let Some(run) = sdk.stream(&house.gateway.public, &wav, &options).await else { continue };
            assert_eq!((run.status, run.of("grant").len()), (0, 1), "{sdk:?} {more:?}: {run:#?}");
            let life = if more.contains(&"5") { 5.0 } else { 30.0 };
            assert_eq!(run.of("grant")[0]["expires_in"].as_f64(), Some(life), "{run:#?}");
            paid += 400;
        }
        let options = ["--api-key", "nobodys-key", "--grant"];
        let Some(run) = sdk.stream(&house.gateway.public, &wav, &options).await else { continue };
        assert_eq!((run.status, &run.of("rejected")[0]["status"]), (3, &json!(401)), "{sdk:?}: {run:#?}");
    }
    assert_eq!(house.gateway.balance("a").await.settled, paid);
}

/// Expiry limits opening: the stream that is open goes on, the next one is told why it may not.
#[tokio::test(flavor = "multi_thread")]
async fn stream_outlives_its_token() {
    let house = House::embedded().await;
    let key = house.gateway.account("a", 60_000).await;
    let token = house.token(&key, json!({"ttl_seconds": 1})).await;
    let mut running = house.bearer(LINEAR16, &token).await.expect("accepted");
    assert!(running.audio(&noise_ms(1, 100)).await);

    let mut ticks = tokio::time::interval(Duration::from_millis(200));
    let refusal = loop {
        ticks.tick().await;
        match house.bearer(LINEAR16, &token).await {
            Ok(client) => assert_eq!(client.finish().await.code(), 1000),
            Err(refusal) => break refusal,
        }
        assert!(running.text(r#"{"type":"KeepAlive"}"#).await);
    };

    assert_eq!((refusal.status, &refusal.body["err_code"]), (401, &json!("INVALID_AUTH")));
    assert!(refusal.body["err_msg"].as_str().is_some_and(|text| text.contains("expired")), "{refusal:?}");
    assert!(running.audio(&noise_ms(2, 100)).await);
    let heard = running.finish().await;
    assert_eq!((heard.code(), heard.metadata_ms()), (1000, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn browser_offers_bearer() {
    let house = House::embedded().await;
    let key = house.gateway.account("a", 60_000).await;
    let token = house.token(&key, json!({})).await;
    for (scheme, own) in [("bearer", false), ("Bearer", false), ("bearer", true)] {
        let offer = format!("{scheme}, {token}");
        let origin = if own { format!("http://{}", house.gateway.public) } else { String::new() };
        let mut extra = vec![("Sec-WebSocket-Protocol", offer.as_str())];
        if own {
            extra.push(("Origin", &origin));
        }
        let opened = Client::open_with(&house.gateway.public, LINEAR16, Credential::Nothing, &extra).await;
        let client = opened.expect("accepted");
        assert_eq!(client.headers.get("sec-websocket-protocol").map(String::as_str), Some(scheme));
        assert_eq!(client.finish().await.code(), 1000);
    }
    let lower = [("Authorization", format!("bearer {token}"))];
    let lower = [(lower[0].0, lower[0].1.as_str())];
    let opened = Client::open_with(&house.gateway.public, LINEAR16, Credential::Nothing, &lower).await;
    assert_eq!(opened.expect("accepted").finish().await.code(), 1000);
    assert!(!house.gateway.log().contains(&token), "a token is in the log");
    assert!(!house.gateway.log().contains(&key), "a key is in the log");
}

/// To the unit, however often the browser comes back.
#[tokio::test(flavor = "multi_thread")]
async fn session_cap_holds_over_reconnects() {
    let house = House::embedded().await;
    let key = house.gateway.account("a", 60_000).await;
    let minted = grant(&house.gateway, &key, json!({"session_cap_units": 901})).await;
    let token = minted.body["access_token"].as_str().expect("a token");
    let session = minted.body["session_id"].as_str().expect("a capped token names its session");
    for (n, (sent, paid, code)) in
        [(300, 300, 1000), (300, 300, 1000), (600, 301, 1008)].into_iter().enumerate()
    {
        let mut client = house.bearer(LINEAR16, token).await.expect("accepted");
        assert_eq!(client.headers.get("voxgate-session-id").map(String::as_str), Some(session));
        client.stream(&noise_ms(n as u64, sent), CHUNK, Duration::ZERO).await;
        let heard = client.finish().await;
        assert_eq!((heard.code(), heard.metadata_ms()), (code, paid), "{n}: {heard:?}");
    }
    let refusal = house.bearer(LINEAR16, token).await.err().expect("refused");
    assert_eq!(refusal.status, 402, "{refusal:?}");
    let balance = house.gateway.balance("a").await;
    assert_eq!((balance.settled, balance.held), (901, 0));
    assert!(house.worker.visits().iter().map(|visit| visit.audio.len()).sum::<usize>() == 901 * 32);
}

#[tokio::test(flavor = "multi_thread")]
async fn smaller_cap_wins() {
    let house = House::embedded().await;
    house.gateway.account("a", 60_000).await;
    let key = house.gateway.key("a", json!({"session_cap": 450})).await;
    for (cap, paid) in [(600, 450), (333, 333)] {
        let token = house.token(&key, json!({"session_cap_units": cap})).await;
        let mut client = house.bearer(LINEAR16, &token).await.expect("accepted");
        client.stream(&noise_ms(1, 600), CHUNK, Duration::ZERO).await;
        let heard = client.end().await;
        assert_eq!((heard.code(), heard.metadata_ms()), (1008, paid), "{cap}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_narrows_its_key() {
    let house = House::embedded().await;
    house.gateway.account("a", 60_000).await;
    let key = house.gateway.key("a", json!({"models": ["nova-3", "base"]})).await;
    let token = house.token(&key, json!({"session_id": "call-7", "models": ["nova-3"]})).await;
    let base = LINEAR16.replace("nova-3", "base");
    let cases = [
        (LINEAR16.to_owned(), 101),
        (format!("{LINEAR16}&session_id=call-7"), 101),
        (format!("{LINEAR16}&session_id=call-8"), 400),
        (base.clone(), 403),
        (LINEAR16.replace("nova-3", "other"), 403),
    ];
    for (target, status) in cases {
        match house.bearer(&target, &token).await {
            Ok(client) => {
                assert_eq!(status, 101, "{target}");
                assert_eq!(client.headers.get("voxgate-session-id").map(String::as_str), Some("call-7"));
                assert_eq!(client.finish().await.code(), 1000);
            }
            Err(refusal) => assert_eq!(refusal.status, status, "{target}: {refusal:?}"),
        }
    }
    let wide = grant(&house.gateway, &key, json!({"models": ["other"]})).await;
    assert_eq!((wide.status, &wide.body["err_code"]), (403, &json!("FORBIDDEN")));
    assert!(house.gateway.open(&base, &key).await.is_ok(), "the key itself may");
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_refuses_by_name() {
    let house = House::embedded().await;
    let gateway = &house.gateway;
    let key = gateway.account("a", 60_000).await;
    let frozen = gateway.account_with("frozen", 60_000, json!({"frozen": true})).await;
    let token = house.token(&key, json!({})).await;
    let (with_key, with_token) = (format!("Token {key}"), format!("Bearer {token}"));
    let with_frozen = format!("Token {frozen}");
    let huge = format!("{{\"ttl_seconds\":30{}}}", " ".repeat(5_000));
    for (method, authorization, body, status) in [
        ("POST", None, "{}", 401),
        ("POST", Some("Token nobodys-key"), "{}", 401),
        ("POST", Some("Bearer eyJ.eyJ.x"), "{}", 401),
        ("POST", Some(with_token.as_str()), "{}", 403),
        ("POST", Some(with_frozen.as_str()), "{}", 403),
        ("POST", Some(with_key.as_str()), r#"{"ttl_seconds":3601}"#, 400),
        ("POST", Some(with_key.as_str()), r#"{"scope":"x"}"#, 400),
        ("POST", Some(with_key.as_str()), "nonsense", 400),
        ("POST", Some(with_key.as_str()), huge.as_str(), 400),
        ("PUT", Some(with_key.as_str()), "{}", 405),
        ("POST", Some(with_key.as_str()), "", 200),
    ] {
        let answer = ask(gateway, method, authorization, body.to_owned()).await;
        let what = format!("{method} {body:.40}: {}", answer.body);
        assert_eq!(answer.status, status, "{what}");
        assert!(answer.headers.contains_key("dg-request-id"), "{what}");
        assert_eq!(answer.headers.contains_key("dg-error"), status != 200, "{what}");
        assert_eq!(answer.body["err_code"].is_string(), status != 200, "{what}");
    }
}

/// A body that never comes is given up, and its connection with it.
#[tokio::test(flavor = "multi_thread")]
async fn slow_body_is_given_up() {
    let house = House::embedded().await;
    let key = house.gateway.account("a", 60_000).await;
    let mut stream = TcpStream::connect(&house.gateway.public).await.expect("the gateway listens");
    let head = format!("POST /v1/auth/grant HTTP/1.1\r\nHost: x\r\nAuthorization: Token {key}\r\n");
    stream
        .write_all(format!("{head}Content-Length: 20\r\n\r\n{{").as_bytes())
        .await
        .expect("the gateway reads");
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
    read.expect("an end in time").expect("a readable answer");
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("REQUEST_TIMEOUT"), "{answer}");
}

/// One secret for all gateways of a store, however many start at once; the key rules over its tokens on each.
#[tokio::test(flavor = "multi_thread")]
async fn gateways_share_tokens_and_revocation() {
    let redis = RedisServer::start(redis(), &[]);
    let worker = ScriptedWorker::start(Script::default()).await;
    let setup = Setup::on(&redis.url(), &[worker.url()]);
    let (one, two) = tokio::join!(Gateway::start(&setup), Gateway::start(&setup));
    let key = one.account("a", 60_000).await;
    let (from_one, from_two) = tokio::join!(token(&one, &key, json!({})), token(&two, &key, json!({})));
    for (gateway, token) in [(&one, &from_two), (&two, &from_one), (&one, &from_one), (&two, &from_two)] {
        let client = Client::open(&gateway.public, LINEAR16, Credential::Bearer(token)).await;
        assert_eq!(client.expect("accepted").finish().await.code(), 1000);
    }

    let digest = voxgate::quota::keys::secret_digest(&key);
    let books = Quota::new(Store::open(&redis.url()).expect("a store"), Settings::default());
    books.command(&["HSET", &format!("vox:key:{digest}"), "revoked", "1"]).await.expect("stored");
    let mut ticks = tokio::time::interval(Duration::from_millis(200));
    let refused = async {
        loop {
            ticks.tick().await;
            match Client::open(&two.public, LINEAR16, Credential::Bearer(&from_one)).await {
                Ok(client) => assert_eq!(client.finish().await.code(), 1000),
                Err(refusal) => break refusal,
            }
        }
    };
    let refusal = tokio::time::timeout(PATIENCE, refused).await.expect("revoked in time");
    assert_eq!((refusal.status, &refusal.body["err_msg"]), (401, &json!("Invalid credentials.")));
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_secrets_rotate() {
    const OLD: &str = "the-old-secret-of-more-than-32-bytes";
    const NEW: &str = "the-new-secret-of-more-than-32-bytes";
    let redis = RedisServer::start(redis(), &[]);
    let worker = ScriptedWorker::start(Script::default()).await;
    let with = |secrets: &[&str]| {
        let more = format!("[tokens]\nsecrets = {secrets:?}\n");
        Setup::on(&redis.url(), &[worker.url()]).more(&more)
    };
    let (before, both, after) = (with(&[OLD]), with(&[NEW, OLD]), with(&[NEW]));
    let (before, both, after) =
        tokio::join!(Gateway::start(&before), Gateway::start(&both), Gateway::start(&after));
    let key = before.account("a", 60_000).await;
    let (old, new) = (token(&before, &key, json!({})).await, token(&both, &key, json!({})).await);
    for (gateway, token, opens) in
        [(&both, &old, true), (&both, &new, true), (&after, &new, true), (&after, &old, false)]
    {
        let client = Client::open(&gateway.public, LINEAR16, Credential::Bearer(token)).await;
        assert_eq!(client.is_ok(), opens);
    }
    assert!(!both.log().contains(OLD) && !both.log().contains(NEW), "a secret is in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn made_up_tokens_open_nothing() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let house = House::embedded().await;
    let key = house.gateway.account("a", 60_000).await;
    let real = house.token(&key, json!({})).await;
    for _ in 0..100 {
        let mut text = real.clone().into_bytes();
        if random.bool() {
            text.truncate(random.usize(1..real.len()));
        } else {
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..text.len() - 1);
                text[at] = *random.choice(b"AZaz09-_.").expect("not empty");
            }
        }
        let text = String::from_utf8(text).expect("ASCII");
        if text == real {
            continue;
        }
        let refusal = house.bearer(LINEAR16, &text).await.err().expect("refused");
        assert_eq!(refusal.status, 401, "{text}");
    }
    let huge = "eyJ.".repeat(1_000);
    assert_eq!(house.bearer(LINEAR16, &huge).await.err().expect("refused").status, 401);
    assert_eq!(house.bearer(LINEAR16, &real).await.expect("accepted").finish().await.code(), 1000);
    assert!(!house.gateway.log().contains("panicked"));
}
