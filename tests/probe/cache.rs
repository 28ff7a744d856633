//! The set of scripts in the store never grows with use, and comes back from wherever it was lost.

use std::time::Duration;

use redis::Value;
use voxgate::quota::answer::Admitted;
use voxgate::quota::script;
use voxgate::quota::store::redis::RedisStore;
use voxgate::quota::store::{Reply, StoreError};

use super::plain::Plain;
use crate::harness::audio::noise_ms;
use crate::harness::client::LINEAR16;
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::redis_server::{RedisServer, store_binaries};
use crate::harness::scripted_worker::{Script, ScriptedWorker};

/// Sessions, streams, refills and settles pass values as arguments: the server knows as many scripts behind them as before.
#[tokio::test(flavor = "multi_thread")]
async fn script_cache_stays_constant() {
    for binary in store_binaries() {
        let server = RedisServer::start(binary, &[]);
        let worker = ScriptedWorker::start(Script::default()).await;
        let more = "[quota]\nenvelope_first = \"1s\"\nenvelope_longest = \"2s\"\n";
        let gateway = Gateway::start(&Setup::on(&server.url(), &[worker.url()]).more(more)).await;
        let mut plain = Plain::to(&server);
        let mut sizes = Vec::new();
        for round in 0..4 {
            let key = gateway.account(&format!("a{round}"), 600_000).await;
            for seed in 0..3 {
                let target = format!("{LINEAR16}&session_id=s{round}.{seed}&tag=t{round}{seed}");
                let mut client = gateway.open(&target, &key).await.expect("accepted");
                assert!(client.stream(&noise_ms(seed, 6000), 3200, Duration::ZERO).await);
                assert_eq!(client.finish().await.metadata_ms(), 6000);
            }
            sizes.push(plain.info("memory", "number_of_cached_scripts"));
        }
        assert!(plain.own("evalsha").0 > 60, "there was use");
        // And one that asks for permissions at the start.
        let own = script::all().len() as u64 + 1;
        assert_eq!(sizes[3], sizes[0], "{sizes:?} on {server}");
        assert!(sizes[3] <= own, "{sizes:?} of {own} on {server}");
        assert_eq!(plain.own("eval").0, 0, "a script's text went to {server} by EVAL");
        assert_eq!(plain.info("stats", "evicted_scripts"), 0);
    }
}

const KEY: &str = "vox:quota:{a}:k.s:1";

async fn admit(store: &RedisStore) -> Result<Admitted, StoreError> {
    Admitted::read(&store.run(&script::ADMIT, &[KEY], &["1"]).await?)
}

fn granted(answer: &Result<Admitted, StoreError>) -> bool {
    matches!(answer, Ok(Admitted::Grant(_)))
}

/// 520 scripts of somebody else, each with a text of its own.
fn crowd(plain: &mut Plain) {
    for n in 0..520 {
        assert_eq!(plain.call::<u64>(&["EVAL", &format!("return {n}"), "0"]), n);
    }
}

/// Lost by a flush, a restart, or pushed out by other clients' scripts: loaded once more, and nothing is charged twice.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_come_back_from_every_loss() {
    for binary in store_binaries() {
        let debug = ["--enable-debug-command", "local"];
        let server = RedisServer::start(&binary, &debug);
        let evicts = evicts(&server);
        let store = RedisStore::new(&server.url()).expect("a URL");
        let mut plain = Plain::to(&server);
        let _: Value = plain.call(&["SET", KEY, "100", "PX", "600000"]);
        assert!(granted(&admit(&store).await));
        assert_eq!(loads(&mut plain), 1, "on {server}");

        // What came by SCRIPT LOAD stays, however many others come by EVAL.
        crowd(&mut plain);
        assert!(granted(&admit(&store).await));
        assert_eq!(loads(&mut plain), 1, "on {server}");
        assert_eq!(plain.info("stats", "evicted_scripts") > 0, evicts, "on {server}");

        let _: Value = plain.call(&["SCRIPT", "FLUSH"]);
        assert!(granted(&admit(&store).await));
        assert_eq!(loads(&mut plain), 2, "flushed, on {server}");

        // Somebody has sent our text by EVAL: that copy can be pushed out, under our feet.
        let _: Value = plain.call(&["SCRIPT", "FLUSH"]);
        let _: Value = plain.call(&["EVAL", &script::ADMIT.text, "1", KEY, "1"]);
        assert!(granted(&admit(&store).await));
        assert_eq!(loads(&mut plain), 2, "it was there, on {server}");
        crowd(&mut plain);
        assert!(granted(&admit(&store).await));
        assert_eq!(loads(&mut plain), if evicts { 3 } else { 2 }, "pushed out, on {server}");
        assert_eq!(plain.call::<u64>(&["GET", KEY]), 94, "each of the six took one, on {server}");

        let _ = plain.try_call::<Value>(&["DEBUG", "RESTART"]);
        let answer = back(&store).await;
        assert_eq!(answer, Ok(Admitted::Lapse), "nothing was on disk: the key is gone, not made anew");
        assert_eq!(loads(&mut Plain::to(&server)), 1, "started anew, on {server}");
        assert_eq!(store.command(&[b"EXISTS", KEY.as_bytes()]).await, Ok(Reply::Int(0)));
    }
}

/// How often a script was loaded, as the server counts.
fn loads(plain: &mut Plain) -> u64 {
    plain.own("script|load").0
}

/// Redis 7.4 and Valkey keep 500 scripts that came by EVAL; older ones keep all.
fn evicts(server: &RedisServer) -> bool {
    let text: String = Plain::to(server).call(&["INFO", "stats"]);
    text.contains("evicted_scripts:")
}

/// Asks until the restarted server answers.
async fn back(store: &RedisStore) -> Result<Admitted, StoreError> {
    let until = tokio::time::Instant::now() + crate::harness::PATIENCE;
    loop {
        match admit(store).await {
            Err(error) if tokio::time::Instant::now() < until => {
                assert!(["lost", "unreachable", "loading"].contains(&error.word()), "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await; // polling a foreign process
            }
            answer => return answer,
        }
    }
}
