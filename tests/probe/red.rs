//! Readiness names the part and the reason; metrics and the log tell what servers say of themselves.

use std::time::Duration;

use redis::Value;
use serde_json::Value as Json;

use super::plain::Plain;
use crate::harness::PATIENCE;
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::redis_server::{RedisServer, redis, store_binaries};
use crate::harness::scripted_worker::{Script, ScriptedWorker};

/// The reason of one part on `/readyz`.
async fn reason(gateway: &Gateway, part: &str) -> String {
    let (status, body) = gateway.call("GET", "/readyz", None).await;
    let value: Json = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status == 200, value["ready"] == true, "{body}");
    let parts = value["parts"].as_array().expect("parts");
    let found =
        parts.iter().find(|found| found["name"] == part).unwrap_or_else(|| panic!("{part} in {body}"));
    found["reason"].as_str().expect("a reason").to_owned()
}

/// Looks until `done`; the gateway probes and looks by itself.
pub(super) async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let look = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        while !done().await {
            ticks.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("not in {PATIENCE:?}: {what}"));
}

pub(super) async fn until_reason(gateway: &Gateway, part: &str, wanted: &str) {
    until(wanted, async || reason(gateway, part).await.starts_with(wanted)).await;
}

/// Each thing that would lose or hold money turns its own part red, by the name that the store gave it, and back.
#[tokio::test(flavor = "multi_thread")]
async fn red_readiness_names_the_reason() {
    let server = RedisServer::start(redis(), &[]);
    let worker = ScriptedWorker::start(Script::default()).await;
    let gateway = Gateway::start(&Setup::on(&server.url(), &[worker.url()])).await;
    let mut plain = Plain::to(&server);
    let mut set = |name: &str, value: &str| plain.call::<Value>(&["CONFIG", "SET", name, value]);
    until("ready", async || gateway.status("/readyz").await == 200).await;

    set("maxmemory-policy", "allkeys-lru");
    until_reason(&gateway, "eviction", "allkeys-lru on 127.0.0.1").await;
    set("maxmemory-policy", "noeviction");
    until_reason(&gateway, "eviction", "ok").await;
    set("maxmemory", "1");
    until_reason(&gateway, "store", "oom on 127.0.0.1").await;
    set("maxmemory", "0");
    until_reason(&gateway, "store", "ok").await;
    set("min-replicas-to-write", "1");
    until_reason(&gateway, "store", "noreplicas on 127.0.0.1").await;
    set("min-replicas-to-write", "0");
    until_reason(&gateway, "store", "ok").await;
    until("ready", async || gateway.status("/readyz").await == 200).await;
    let _: Value = plain.call(&["REPLICAOF", "127.0.0.1", "1"]);
    until_reason(&gateway, "role", "replica on 127.0.0.1").await;
    let _: Value = plain.call(&["REPLICAOF", "NO", "ONE"]);
    until("ready", async || gateway.status("/readyz").await == 200).await;
}

/// A long script of somebody else: readiness says BUSY meanwhile, and it shows in the metrics: refusals on both sides, the
/// slow log, the server's own time. Its text is nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn slow_scripts_and_refusals_are_counted() {
    let server = |binary| RedisServer::start(binary, &["--busy-reply-threshold", "20"]);
    let servers: Vec<_> = store_binaries().into_iter().map(server).collect();
    // Side by side: most of the time goes by between two looks of a gateway.
    futures_util::future::join_all(servers.iter().map(count_one)).await;
}

async fn count_one(server: &RedisServer) {
    let worker = ScriptedWorker::start(Script::default()).await;
    let gateway = Gateway::start(&Setup::on(&server.url(), &[worker.url()])).await;
    until("a first look", async || gateway.metric("voxgate_store_scripts_cached", &[]).await >= 9.0).await;
    let (spinning, mut killer) = (Plain::to(server), Plain::to(server));
    let spin = tokio::task::spawn_blocking(move || {
        let mut spinning = spinning;
        spinning.try_call::<Value>(&["EVAL", "while true do end -- hidden", "0"])
    });
    until_reason(&gateway, "store", "busy on 127.0.0.1").await;
    let _: Value = killer.call(&["SCRIPT", "KILL"]);
    assert!(spin.await.expect("no panic").is_err());
    until_reason(&gateway, "store", "ok").await;

    until("the slow log", async || gateway.metric("voxgate_store_slow_scripts_total", &[]).await >= 1.0)
        .await;
    let busy = gateway.metric("voxgate_store_errors_total", &["kind=\"busy\""]).await;
    assert!(busy >= 1.0, "{busy} refusals on {server}");
    assert!(gateway.metric("voxgate_store_script_calls_total", &[]).await > 0.0);
    let mean = gateway.metric("voxgate_store_script_mean_seconds", &[]).await;
    assert!(mean > 0.0 && mean < 1.0, "{mean} s on {server}");
    assert!(gateway.metric("voxgate_probe_slowest_seconds", &[]).await > 0.0);
    for script in ["reserve", "settle", "reap", "topup", "audit", "rebuild", "account", "session"] {
        let label = format!("script=\"{script}\"");
        assert!(gateway.metric("voxgate_probe_seconds_count", &[&label]).await >= 1.0, "{script}");
    }
    assert!(gateway.log().contains("slow scripts in the store"), "{}", gateway.log());
    assert!(!gateway.log().contains("hidden"), "{}", gateway.log());
}

/// A user that may neither INFO nor SLOWLOG: told once each, everything else works.
#[tokio::test(flavor = "multi_thread")]
async fn missing_permission_is_told_once() {
    let server = RedisServer::start(redis(), &[]);
    let mut plain = Plain::to(&server);
    let user = ["ACL", "SETUSER", "gate", "on", ">pass", "~vox:*", "+@all", "-info", "-slowlog", "-cluster"];
    let _: Value = plain.call(&user);
    let worker = ScriptedWorker::start(Script::default()).await;
    let url = format!("redis://gate:pass@127.0.0.1:{}", server.port);
    let gateway = Gateway::start(&Setup::on(&url, &[worker.url()])).await;
    until("ready", async || gateway.status("/readyz").await == 200).await;
    let denied = |plain: &mut Plain| {
        let text: String = plain.call(&["INFO", "errorstats"]);
        let line = text.lines().find_map(|line| line.strip_prefix("errorstat_NOPERM:count=")).unwrap_or("0");
        line.trim().parse::<u64>().expect("a count")
    };
    let before = denied(&mut plain);
    // A third look at the latest.
    until("more looks", async || denied(&mut plain) >= before + 4).await;
    let told = gateway.log().matches("store does not tell how it is; metrics of it are missing").count();
    assert_eq!(told, 2, "INFO and SLOWLOG, once each:\n{}", gateway.log());
    assert_eq!(gateway.status("/readyz").await, 200);
    assert_eq!(gateway.metric("voxgate_store_scripts_cached", &[]).await, 0.0);
}
