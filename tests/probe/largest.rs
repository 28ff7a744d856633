//! Probes do each script's full work on private keys, within its stated bound, and leave nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use voxgate::quota::script;
use voxgate::quota::store::faults::{Faults, Rates};
use voxgate::quota::store::{Reply, Store};
use voxgate::quota::{Quota, Settings};

use super::plain::{Plain, is_error, until_true};
use crate::harness::PATIENCE;
use crate::harness::redis_server::{RedisServer, redis, store_binaries};

/// Scripts that decide; the one that lays out their keys is no verb.
fn verbs() -> BTreeSet<&'static str> {
    script::all().iter().map(|script| script.name).filter(|name| *name != "probe").collect()
}

fn quota(store: Store) -> Quota {
    Quota::new(store, Settings::default())
}

async fn keys(store: &Store) -> Vec<String> {
    let Reply::List(keys) = store.command(&["KEYS", "*"]).await.expect("KEYS") else { panic!("no list") };
    let text = |key: &Reply| match key {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("{other:?}"),
    };
    keys.iter().map(text).collect()
}

/// Fresh servers of every kind, and the store in process.
fn stores() -> (Vec<RedisServer>, Vec<Store>) {
    let servers: Vec<_> = store_binaries().iter().map(|binary| RedisServer::start(binary, &[])).collect();
    let mut stores = vec![Store::open("embedded").expect("it opens")];
    stores.extend(servers.iter().map(|server| Store::open(&server.url()).expect("a valid URL")));
    (servers, stores)
}

#[tokio::test]
async fn every_verb_is_probed_and_gone() {
    let (_servers, stores) = stores();
    for store in stores {
        let quota = quota(store.clone());
        for shard in quota.shards().await.expect("it answers") {
            // Twice: what the first left behind would change the answers of the second.
            for round in 0..2 {
                let times = quota.probe_scripts(&shard, true).await.unwrap_or_else(|error| panic!("{error}"));
                let probed: BTreeSet<_> = times.iter().map(|timed| timed.script).collect();
                assert_eq!(probed, verbs(), "on {}", shard.name);
                for timed in times {
                    assert_eq!(timed.own.is_some(), store.word() == "redis", "{timed:?}");
                    if let Some(own) = timed.own {
                        // The first time the script had to be loaded in between.
                        assert!(own.calls == 1 || round == 0 && own.calls == 2, "{timed:?}");
                        assert!(own.time < timed.took, "the call holds the server's part: {timed:?}");
                    }
                }
            }
            quota.probe_on(&shard).await.expect("a grant");
            quota.probe().await.expect("a grant");
        }
        assert_eq!(keys(&store).await, Vec::<String>::new());
    }
}

/// Probes that die at any step: every key has an end, nobody's list or reaper sees one, and the next probe is good.
#[tokio::test]
async fn probes_cut_short_leave_no_trace() {
    let (_servers, stores) = stores();
    for store in stores {
        let faults = Arc::new(Faults::new(1, Rates { before: 120, after: 60, later: 0 }));
        let quota = quota(store.clone().with_faults(faults.clone()));
        let shard = quota.shards().await.expect("it answers").remove(0);
        let (mut cut_at, mut most) = (BTreeSet::new(), 0);
        for _ in 0..60 {
            if let Err(error) = quota.probe_scripts(&shard, false).await {
                cut_at.insert(error.script);
            }
            let _ = quota.probe_on(&shard).await;
            let left = keys(&store).await;
            most = most.max(left.len());
            for key in left {
                assert!(key.starts_with("vox:probe:"), "{key}");
                let ttl = store.command(&["PTTL", &key]).await.expect("PTTL");
                assert!(matches!(ttl, Reply::Int(1..=3_700_000)), "{key}: {ttl:?}");
            }
            assert_eq!(quota.accounts_and_damaged().await.expect("a list"), []);
            assert_eq!(quota.reap_round().await.expect("a round").accounts, 0);
        }
        assert!(cut_at.len() > 5 && most > 5, "cut at {cut_at:?}, at most {most} keys were left");
        faults.set(Rates::default());
        quota.probe_scripts(&shard, false).await.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// The number of commands that a script's header promises at most.
fn promised(text: &str) -> usize {
    let bound = text.split_once("\n  bound").expect("a bound").1;
    let number = bound.trim_start().trim_start_matches("at most ");
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number of commands in: {number:.60}"))
}

/// What scripts run is counted by the server at the largest input, and held against their headers.
#[tokio::test]
async fn scripts_stay_within_their_bound() {
    for binary in store_binaries() {
        let server = RedisServer::start(binary, &[]);
        let (mut monitor, quota) = (Plain::to(&server), quota(Store::open(&server.url()).expect("a URL")));
        monitor.call::<Value>(&["MONITOR"]);
        let shard = quota.shards().await.expect("it answers").remove(0);
        for _ in 0..2 {
            quota.probe_scripts(&shard, false).await.unwrap_or_else(|error| panic!("{error}"));
        }
        Plain::to(&server).call::<Value>(&["ECHO", "enough"]);
        let commands = tokio::task::spawn_blocking(move || by_script(&mut monitor)).await.expect("no panic");
        for script in script::all() {
            let most = *commands.get(script.name).unwrap_or_else(|| panic!("{} did not run", script.name));
            let promised = promised(&script.text);
            assert!(most <= promised, "{} ran {most} commands of {promised} on {server}", script.name);
            assert!(most * 2 >= promised, "{} promises {promised}, ran {most} on {server}", script.name);
        }
        println!("{server}: commands {commands:?}");
    }
}

/// Most commands of one call, by script, out of what MONITOR told.
fn by_script(monitor: &mut Plain) -> BTreeMap<&'static str, usize> {
    let shas: BTreeMap<String, &'static str> =
        script::all().iter().map(|script| (script.sha.clone(), script.name)).collect();
    let (mut most, mut running, mut count) = (BTreeMap::new(), None::<&'static str>, 0);
    loop {
        let Ok(Value::SimpleString(line)) = monitor.receive() else { panic!("MONITOR ended") };
        if line.contains(" lua] ") {
            count += 1;
            continue;
        }
        if let Some(name) = running.take() {
            let seen = most.entry(name).or_insert(0);
            *seen = count.max(*seen);
        }
        if line.contains("\"enough\"") {
            return most;
        }
        count = 0;
        let sha = line.split('"').nth(3).unwrap_or_default();
        running = shas.get(sha).copied().filter(|_| line.contains("\"EVALSHA\""));
    }
}

/// A probe tells of a bad moment at once: it does not pause and repeat until the moment is over.
#[tokio::test(flavor = "multi_thread")]
async fn probes_do_not_wait_for_better_days() {
    let server = RedisServer::start(redis(), &["--busy-reply-threshold", "10"]);
    let (mut slow, mut killer) = (Plain::to(&server), Plain::to(&server));
    let patient = Settings { hold: Duration::from_secs(3600), ..Settings::default() };
    let quota = Quota::new(Store::open(&server.url()).expect("a URL"), patient);
    let shard = quota.shards().await.expect("it answers").remove(0);
    quota.probe_scripts(&shard, true).await.expect("all is well");
    slow.send(&["EVAL", "while true do end", "0"]);
    until_true("BUSY", || killer.try_call::<Value>(&["PING"]) == Err("BUSY".to_owned()));
    let quick = tokio::time::timeout(PATIENCE, quota.probe()).await.expect("an answer while it is busy");
    assert_eq!(quick.map_err(|error| error.word()), Err("busy"));
    let all = tokio::time::timeout(PATIENCE, quota.probe_scripts(&shard, true));
    let failed = all.await.expect("an answer while it is busy").expect_err("BUSY");
    assert_eq!(failed.error.word(), "busy");
    let _: Value = killer.call(&["SCRIPT", "KILL"]);
    assert!(is_error(slow.receive()), "it was killed");
    quota.probe().await.expect("all is well again");
}
