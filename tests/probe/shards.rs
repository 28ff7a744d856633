//! A store of several primaries: each is probed and watched under its own name, and one that fails is named.

use std::collections::BTreeSet;
use std::net::TcpListener;

use redis::Value;
use voxgate::quota::store::Store;
use voxgate::quota::{Quota, Settings};

use super::plain::{Plain, until_true};
use super::red::{until, until_reason};
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::redis_server::{RedisServer, store_binaries};
use crate::harness::scripted_worker::{Script, ScriptedWorker};

/// Three primaries that share the slots, without replicas.
fn trio(binary: &std::path::Path) -> Vec<RedisServer> {
    let server = |_| {
        let bus =
            TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("an address").port();
        let bus = bus.to_string();
        let more = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--busy-reply-threshold", "20"];
        RedisServer::start(binary, &more)
    };
    let servers: Vec<_> = (0..3).map(server).collect();
    let slots = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];
    for (server, (first, last)) in servers.iter().zip(slots) {
        Plain::to(server).call::<Value>(&["CLUSTER", "ADDSLOTSRANGE", first, last]);
    }
    let mut first = Plain::to(&servers[0]);
    for other in &servers[1..] {
        let bus: u64 = Plain::to(other).call::<Vec<String>>(&["CONFIG", "GET", "cluster-port"])[1]
            .parse()
            .expect("a port");
        let (port, bus) = (other.port.to_string(), bus.to_string());
        first.call::<Value>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
    }
    for server in &servers {
        let mut plain = Plain::to(server);
        until_true("the cluster is whole", || {
            let info: String = plain.call(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains("cluster_size:3")
        });
    }
    servers
}

fn url(servers: &[RedisServer]) -> String {
    format!("redis+cluster://127.0.0.1:{}", servers[0].port)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_primary_is_probed() {
    for binary in store_binaries() {
        let servers = trio(&binary);
        let quota = Quota::new(Store::open(&url(&servers)).expect("a URL"), Settings::default());
        let shards = quota.shards().await.expect("it answers");
        let names: BTreeSet<_> = shards.iter().map(|shard| shard.name.clone()).collect();
        let expected: BTreeSet<_> =
            servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        assert_eq!(names, expected);
        for shard in &shards {
            quota.probe_scripts(shard, true).await.unwrap_or_else(|error| panic!("{}: {error}", shard.name));
        }
        quota.probe().await.expect("a grant on each");
        for server in &servers {
            let mut plain = Plain::to(server);
            let (calls, _) = plain.own("evalsha");
            assert!(calls >= 11, "{calls} scripts on {server}");
            assert!(
                !plain.call::<String>(&["INFO", "errorstats"]).contains("MOVED"),
                "sent there at once: {server}"
            );
            assert_eq!(plain.call::<u64>(&["DBSIZE"]), 0, "nothing is left on {server}");
        }
    }
}

/// One primary in a bad moment turns readiness red under its own name, while the others are well.
#[tokio::test(flavor = "multi_thread")]
async fn sick_primary_is_named() {
    let servers = trio(&store_binaries()[0]);
    let worker = ScriptedWorker::start(Script::default()).await;
    let gateway = Gateway::start(&Setup::on(&url(&servers), &[worker.url()])).await;
    until("ready", async || gateway.status("/readyz").await == 200).await;
    until("each was looked at", async || {
        let metrics = gateway.metrics().await;
        servers.iter().all(|server| {
            let label = format!("{{shard=\"127.0.0.1:{}\"}}", server.port);
            let names = ["voxgate_probe_slowest_seconds", "voxgate_store_memory_bytes"];
            names.iter().all(|name| metrics.contains(&format!("{name}{label}")))
        })
    })
    .await;
    let mut sick = Plain::to(&servers[2]);
    let _: Value = sick.call(&["CONFIG", "SET", "maxmemory", "1"]);
    until_reason(&gateway, "store", &format!("oom on 127.0.0.1:{}", servers[2].port)).await;
    let _: Value = sick.call(&["CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "volatile-ttl"]);
    until_reason(&gateway, "store", "ok").await;
    until_reason(&gateway, "eviction", &format!("volatile-ttl on 127.0.0.1:{}", servers[2].port)).await;
}

/// A primary that is frozen keeps its answers back, and nobody streams: the others still say that there is a store.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_primary_refuses_nobody_else() {
    let servers = trio(&store_binaries()[0]);
    let worker = ScriptedWorker::start(Script::default()).await;
    let gateway = Gateway::start(&Setup::on(&url(&servers), &[worker.url()])).await;
    until("ready", async || gateway.status("/readyz").await == 200).await;
    servers[1].sigstop();
    let opened = async || gateway.metric("voxgate_breaker_opened_total", &[]).await;
    until("down", async || gateway.metric("voxgate_store_up", &[]).await == 0.0).await;
    assert_eq!(opened().await, 0.0, "while its answers are waited for");
    until_reason(&gateway, "store", &format!("unreachable on 127.0.0.1:{}", servers[1].port)).await;
    assert_eq!(opened().await, 0.0, "when it has been given up");
    for server in &servers {
        server.sigstop();
    }
    until("open", async || gateway.metric("voxgate_breaker_open", &[]).await == 1.0).await;
    for server in &servers {
        server.sigcont();
    }
    until("closed", async || gateway.metric("voxgate_breaker_open", &[]).await == 0.0).await;
}
