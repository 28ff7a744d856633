//! Leaving in order: what SIGTERM promises to streams, to money and to whoever started the program.

use std::collections::BTreeMap;

use crate::harness::audio::noise_ms;
use crate::harness::client::{Client, LINEAR16};
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::redis_server::{RedisServer, redis};
use crate::harness::scripted_worker::{Script, ScriptedWorker};

const STREAMS: usize = 20;

struct Drain {
    store: RedisServer,
    worker: ScriptedWorker,
    gateway: Gateway,
    clients: Vec<Client>,
}

impl Drain {
    /// Twenty live streams, each with half a second of audio behind it.
    async fn with_live_streams() -> Self {
        let store = RedisServer::start(redis(), &[]);
        let worker = ScriptedWorker::start(Script::default()).await;
        let setup = Setup::on(&store.url(), &[worker.url()]).more("[limits]\ndrain = \"2s\"\n");
        let gateway = Gateway::start(&setup).await;
        gateway.account("a", 3_600_000).await;
        let key = gateway.key("a", serde_json::json!({"streams_max": 64})).await;
        let mut clients = Vec::new();
        for seed in 0..STREAMS {
            let mut client = gateway.open(LINEAR16, &key).await.expect("accepted");
            assert!(client.audio(&noise_ms(seed as u64, 500)).await);
            client.until("results", |heard| !heard.messages.is_empty()).await;
            clients.push(client);
        }
        Self { store, worker, gateway, clients }
    }

    /// The account's hash of the running period, its open leases, and its quota keys.
    async fn books(&self) -> (BTreeMap<String, String>, usize, usize) {
        let server = ::redis::Client::open(self.store.url()).expect("a valid URL");
        let mut link = server.get_multiplexed_async_connection().await.expect("the store listens");
        let budgets: Vec<String> =
            ::redis::cmd("KEYS").arg("vox:budget:{a}:*").query_async(&mut link).await.expect("keys");
        assert_eq!(budgets.len(), 1, "{budgets:?}");
        let budget = ::redis::cmd("HGETALL").arg(&budgets[0]).query_async(&mut link).await.expect("a hash");
        let leases =
            ::redis::cmd("ZCARD").arg("vox:leases:{a}").query_async(&mut link).await.expect("a count");
        let quotas: Vec<String> =
            ::redis::cmd("KEYS").arg("vox:quota:{a}:*").query_async(&mut link).await.expect("keys");
        (budget, leases, quotas.len())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_settles_every_stream() {
    let mut drain = Drain::with_live_streams().await;

    drain.gateway.sigterm();

    // Half of the clients end by themselves in the time they are given, half never do.
    let clients = std::mem::take(&mut drain.clients);
    let ends = clients.into_iter().enumerate().map(async |(number, client)| {
        if number % 2 == 0 { (1000, client.finish().await) } else { (1012, client.end().await) }
    });
    for (code, heard) in futures_util::future::join_all(ends).await {
        assert_eq!((heard.code(), heard.metadata_ms()), (code, 500), "{heard:?}");
        assert!(heard.of("Results").iter().any(|result| result["speech_final"] == true), "{heard:?}");
    }
    let status = drain.gateway.wait().await;
    assert_eq!(status.code(), Some(0), "{}", drain.gateway.log());
    let (budget, leases, quotas) = drain.books().await;
    let paid = (STREAMS * 500).to_string();
    let amount = |name: &str| budget.get(name).map(String::as_str);
    assert_eq!((amount("settled"), amount("taken"), amount("held")), (Some(&*paid), Some(&*paid), Some("0")));
    assert_eq!((leases, quotas), (0, 0));
    assert_eq!(drain.worker.audio_bytes(), STREAMS * 500 * 32);
}

#[tokio::test(flavor = "multi_thread")]
async fn second_sigterm_settles_at_once() {
    let mut drain = Drain::with_live_streams().await;

    drain.gateway.sigterm();
    drain.gateway.sigterm();

    let clients = std::mem::take(&mut drain.clients);
    futures_util::future::join_all(clients.into_iter().map(Client::end)).await;
    drain.gateway.wait().await;
    let (budget, leases, _) = drain.books().await;
    assert_eq!((budget.get("held").map(String::as_str), leases), (Some("0"), 0));
    assert_eq!(budget.get("settled"), Some(&(STREAMS * 500).to_string()));
}

/// No new streams while leaving; readiness says so before the listener goes.
#[tokio::test(flavor = "multi_thread")]
async fn draining_gateway_takes_no_streams() {
    let drain = Drain::with_live_streams().await;
    let key = drain.gateway.key("a", serde_json::json!({})).await;
    assert_eq!(drain.gateway.status("/readyz").await, 200);

    drain.gateway.sigterm();
    let mut status = 200;
    while status == 200 {
        status = drain.gateway.status("/readyz").await;
    }

    assert_eq!(status, 503);
    // Readiness goes first, the door a moment later; whoever slips in between is served and cut like the rest.
    let refused = loop {
        match drain.gateway.open(LINEAR16, &key).await {
            Ok(_) => {}
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refused.status, 503);
}
