//! What an operator reads: metrics after real streams, and the table of `check`.

use std::process::Command;

use serde_json::Value;

use crate::harness::audio::noise_ms;
use crate::harness::client::LINEAR16;
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::redis_server::{RedisServer, redis};
use crate::harness::scripted_worker::{Script, ScriptedWorker};

/// The whole admit call and its probe at the largest input are histograms on `/metrics`, beside what was decided.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_admissions_and_probe() {
    let store = RedisServer::start(redis(), &[]);
    let worker = ScriptedWorker::start(Script::default()).await;
    let gateway = Gateway::start(&Setup::on(&store.url(), &[worker.url()])).await;
    let key = gateway.account("a", 600_000).await;
    let mut client = gateway.open(LINEAR16, &key).await.expect("accepted");
    for chunk in 0..10 {
        assert!(client.audio(&noise_ms(chunk, 100)).await);
    }
    assert_eq!(client.finish().await.metadata_ms(), 1000);

    let at_most = async |name: &str, le: &str| gateway.metric(name, &[le]).await;
    let admits = gateway.metric("voxgate_admit_seconds_count", &[]).await;
    assert!((1.0..=10.0).contains(&admits), "waiting chunks go together: {admits}");
    assert_eq!(at_most("voxgate_admit_seconds_bucket", "le=\"+Inf\"").await, admits);
    assert!(gateway.metric("voxgate_probe_seconds_count", &["script=\"admit\""]).await >= 1.0);
    assert_eq!(gateway.metric("voxgate_chunks_total", &["decision=\"admitted\""]).await, 10.0);
    assert_eq!(gateway.metric("voxgate_audio_seconds_total", &["stage=\"admitted\""]).await, 1.0);
    assert_eq!(gateway.metric("voxgate_streams_open", &[]).await, 0.0);
    assert_eq!(gateway.metric("voxgate_leases_open", &[]).await, 0.0);
    assert_eq!(gateway.metric("voxgate_settles_pending", &[]).await, 0.0);
    let text = gateway.metrics().await;
    assert!(!text.contains(&key) && !text.contains("{a}"), "no key and no account on /metrics");
}

/// `check` says of each thing whether it passes, and prints the script's latency.
#[tokio::test(flavor = "multi_thread")]
async fn check_prints_the_latency_table() {
    let store = RedisServer::start(redis(), &[]);
    let worker = ScriptedWorker::start(Script::default()).await;
    let check = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_voxgate"));
        command.args(["check", "--store", &store.url(), "--worker", &worker.url()]).args(more);
        tokio::task::spawn_blocking(move || command.output().expect("it runs"))
    };
    let human = check(&[]).await.expect("no panic");
    let text = String::from_utf8_lossy(&human.stdout).into_owned();
    assert!(text.contains("admit") && text.contains("P99 MS"), "{text}");
    let json = check(&["--json"]).await.expect("no panic");
    let value: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert!(value.to_string().contains("p99"), "{value}");
}

/// Whatever callers send in paths, methods, models, keys and agents, `/metrics` does not grow with it.
#[tokio::test(flavor = "multi_thread")]
async fn callers_mint_no_series() {
    let worker = ScriptedWorker::start(Script::default()).await;
    let gateway = Gateway::start(&Setup::embedded(&[worker.url()])).await;
    let key = gateway.account("a", 600_000).await;
    let flood = async |round: u64| {
        let (public, key) = (gateway.public.clone(), key.clone());
        let send = move || {
            let mut dice = fastrand::Rng::with_seed(round);
            for _ in 0..300 {
                let word: String = (0..12).map(|_| dice.alphanumeric()).collect();
                let path = match dice.u32(0..3) {
                    0 => format!("/{word}"),
                    1 => format!("/v1/listen?model={word}&encoding={word}&sample_rate=8000"),
                    _ => format!("/v1/listen?model={word}&encoding=linear16&sample_rate=16000"),
                };
                let secret = if dice.bool() { &key } else { &word };
                let request = http::Request::builder()
                    .uri(format!("http://{public}{path}"))
                    .header("authorization", format!("Token {secret}"))
                    .header("user-agent", &word);
                let agent: ureq::Agent =
                    ureq::Agent::config_builder().http_status_as_error(false).build().into();
                let _ = agent.run(request.body(()).expect("a request"));
            }
        };
        tokio::task::spawn_blocking(send).await.expect("no panic");
        gateway.metrics().await.lines().filter(|line| !line.starts_with('#')).count()
    };
    let before = flood(1).await;
    let after = flood(2).await;
    assert!(after <= before + 40, "{before} series before, {after} after 300 more odd requests");
}
