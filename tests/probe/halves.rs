//! Nobody sees half a script: whoever reads while others reserve and settle finds books that agree.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::Value;
use voxgate::quota::store::Store;
use voxgate::quota::{Quota, Settings};

use super::plain::Plain;
use crate::harness::redis_server::{RedisServer, redis, store_binaries};

/// Reads the sums of all budgets of probes until `stop`; gives how many reads met one, and those that disagreed.
fn read_until(plain: &mut Plain, budgets: &[String], stop: &AtomicBool) -> (u32, Vec<String>) {
    let (mut met, mut torn) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        for budget in budgets {
            let sums: Vec<Option<i64>> = plain.call(&["HMGET", budget, "taken", "held", "settled"]);
            let [Some(taken), Some(held), Some(settled)] = sums[..] else { continue };
            met += 1;
            if taken != held + settled {
                torn.push(format!("{budget}: {taken} != {held} + {settled}"));
            }
        }
    }
    (met, torn)
}

/// The budgets that the probes of this gateway use, as MONITOR names them.
async fn budgets(server: &RedisServer, quota: &Quota) -> Vec<String> {
    let mut monitor = Plain::to(server);
    monitor.call::<Value>(&["MONITOR"]);
    let shard = quota.shards().await.expect("it answers").remove(0);
    quota.probe_scripts(&shard, false).await.unwrap_or_else(|error| panic!("{error}"));
    let budgets = tokio::task::spawn_blocking(move || {
        loop {
            let Ok(Value::SimpleString(line)) = monitor.receive() else { panic!("MONITOR ended") };
            let words = line.split('"').filter(|word| word.starts_with("vox:probe:budget:"));
            let found: Vec<String> = words.map(str::to_owned).collect();
            // The call that lays out the keys names all three.
            if found.len() >= 3 {
                return found;
            }
        }
    });
    budgets.await.expect("no panic")
}

/// What the same reader sees when the same steps are commands of their own, so that the test below can fail.
#[test]
fn reader_sees_half_of_single_steps() {
    let server = RedisServer::start(redis(), &[]);
    let (mut plain, mut steps, stop) =
        (Plain::to(&server), Plain::to(&server), Arc::new(AtomicBool::new(false)));
    let _: Value = steps.call(&["HSET", "b", "taken", "100000", "held", "100000", "settled", "0"]);
    let until = stop.clone();
    let reader = std::thread::spawn(move || read_until(&mut plain, &["b".to_owned()], &until));
    for _ in 0..2000 {
        let _: Value = steps.call(&["HINCRBY", "b", "held", "-1"]);
        let _: Value = steps.call(&["HINCRBY", "b", "settled", "1"]);
    }
    stop.store(true, Ordering::Relaxed);
    let (met, torn) = reader.join().expect("no panic");
    println!("{} of {met} reads saw half", torn.len());
    assert!(!torn.is_empty(), "none of {met} reads saw half");
}

#[tokio::test(flavor = "multi_thread")]
async fn reader_never_sees_half_a_script() {
    for binary in store_binaries() {
        let server = RedisServer::start(binary, &[]);
        let quota = Quota::new(Store::open(&server.url()).expect("a URL"), Settings::default());
        let (budgets, stop) = (budgets(&server, &quota).await, Arc::new(AtomicBool::new(false)));
        let (mut plain, until) = (Plain::to(&server), stop.clone());
        let reader = tokio::task::spawn_blocking(move || read_until(&mut plain, &budgets, &until));
        let shard = quota.shards().await.expect("it answers").remove(0);
        for _ in 0..150 {
            // Each makes budgets, moves units between their fields, and removes them.
            quota.probe_scripts(&shard, false).await.unwrap_or_else(|error| panic!("{error}"));
        }
        stop.store(true, Ordering::Relaxed);
        let (met, torn) = reader.await.expect("no panic");
        println!("{server}: {met} reads met a budget");
        assert!(met > 50, "the reader was there only {met} times on {server}");
        assert_eq!(torn, Vec::<String>::new(), "on {server}");
    }
}
