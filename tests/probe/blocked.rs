//! What a long script does to everybody else, what may end it, and why ours can't become one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use redis::Value;
use voxgate::quota::answer::Admitted;
use voxgate::quota::script;
use voxgate::quota::store::Store;

use super::plain::{Plain, is_error, until_true};
use crate::harness::redis_server::{RedisServer, redis, store_binaries};

/// Reads an unrelated key over and over; gives the longest that one read took.
fn reading(server: &RedisServer, stop: &Arc<AtomicBool>) -> JoinHandle<Duration> {
    let (mut plain, stop) = (Plain::to(server), stop.clone());
    std::thread::spawn(move || {
        let mut longest = Duration::ZERO;
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            let _: Value = plain.call(&["GET", "unrelated"]);
            longest = longest.max(start.elapsed());
        }
        longest
    })
}

/// Runs a script beside a reader of an unrelated key; gives the server's own time for it, and the reader's longest wait.
fn beside_a_reader(server: &RedisServer, text: &str, key: &str) -> (Duration, Duration) {
    let (mut plain, stop) = (Plain::to(server), Arc::new(AtomicBool::new(false)));
    let reader = reading(server, &stop);
    until_true("the reader reads", || plain.own("get").0 > 10);
    plain.count_anew();
    let _: Value = plain.call(&["EVAL", text, "1", key]);
    let (calls, own) = plain.own("eval");
    stop.store(true, Ordering::Relaxed);
    assert_eq!(calls, 1);
    (own, reader.join().expect("no panic"))
}

/// Runs a script beside a reader until one read has waited for nine tenths of it: a reader that was not asking just when
/// the script began has waited less.
fn holds_up(server: &RedisServer, text: &str, key: &str) {
    let mut shares = Vec::new();
    for _ in 0..RUNS_MAX {
        let (own, waited) = beside_a_reader(server, text, key);
        println!("{server}: script {own:?}, an unrelated read waited {waited:?}");
        shares.push(waited.as_secs_f64() / own.as_secs_f64());
        if shares.last().is_some_and(|share| *share > 0.9) {
            return;
        }
    }
    panic!("unrelated reads waited for {shares:?} of the script on {server}");
}

const RUNS_MAX: u32 = 20;

/// A script of somebody else holds up a read of an unrelated key by its own length.
#[test]
fn script_holds_up_unrelated_keys() {
    for binary in store_binaries() {
        holds_up(&RedisServer::start(binary, &[]), "for i = 1, 10000000 do end return 1", "k");
    }
}

/// A loop over what is pending costs more the more is pending, and all wait for it; ours costs the same whatever is stored.
#[test]
fn loop_over_pending_stalls_others() {
    let pending = "local n = 0 for _, chunk in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do \
                   n = n + #chunk redis.call('INCRBY', KEYS[1] .. ':n', #chunk) end return n";
    let server = RedisServer::start(redis(), &[]);
    let mut plain = Plain::to(&server);
    for n in [100_u64, 2_000, 40_000] {
        let fill =
            "redis.call('DEL', KEYS[1]) for i = 1, ARGV[1] do redis.call('RPUSH', KEYS[1], 'chunk') end";
        let _: Value = plain.call(&["EVAL", fill, "1", "pending", &n.to_string()]);
        plain.count_anew();
        let _: Value = plain.call(&["EVAL", pending, "1", "pending"]);
        assert_eq!(plain.own("incrby").0, n, "commands of the loop");
        // Ours, with as much stored beside it and under its own account.
        let quota = "vox:quota:{a}:k.s:1";
        let _: Value = plain.call(&["SET", quota, "1000000", "PX", "60000"]);
        plain.count_anew();
        let _: Value = plain.call(&["EVAL", &script::ADMIT.text, "1", quota, "1"]);
        assert_eq!(plain.own("get").0 + plain.own("decrby").0, 2, "commands of admit, {n} pending");
    }
    holds_up(&server, pending, "pending");
}

/// A script that has written nothing can be killed and leaves nothing; one that has written can't, and ends by itself.
#[test]
fn scripts_die_only_before_a_write() {
    for binary in store_binaries() {
        let server = RedisServer::start(binary, &["--busy-reply-threshold", "10"]);
        let (mut killer, mut slow) = (Plain::to(&server), Plain::to(&server));
        slow.send(&["EVAL", "while true do end redis.call('SET', KEYS[1], 1)", "1", "k"]);
        until_true("BUSY", || killer.try_call::<Value>(&["PING"]) == Err("BUSY".to_owned()));
        assert_eq!(killer.try_call::<String>(&["SCRIPT", "KILL"]).as_deref(), Ok("OK"), "on {server}");
        assert!(is_error(slow.receive()), "killed on {server}");
        assert_eq!(killer.call::<u64>(&["EXISTS", "k"]), 0, "on {server}");

        let writes = "redis.call('SET', KEYS[1], 1) for i = 1, 30000000 do end return 'its own end'";
        slow.send(&["EVAL", writes, "1", "k"]);
        until_true("BUSY", || killer.try_call::<Value>(&["PING"]) == Err("BUSY".to_owned()));
        let killed = killer.try_call::<Value>(&["SCRIPT", "KILL"]);
        assert_eq!(killed, Err("UNKILLABLE".to_owned()), "on {server}");
        let ended = slow.receive().expect("an answer");
        assert_eq!(ended, Value::BulkString(b"its own end".to_vec()), "on {server}");
    }
}

/// While a script that has written holds the server, admits hear BUSY and take nothing; what was refused is counted there.
#[tokio::test(flavor = "multi_thread")]
async fn unkillable_script_refuses_admits() {
    for binary in store_binaries() {
        let server = RedisServer::start(binary, &["--busy-reply-threshold", "10"]);
        let (mut plain, mut slow) = (Plain::to(&server), Plain::to(&server));
        let (store, key) = (Store::open(&server.url()).expect("a URL"), "vox:quota:{a}:k.s:1");
        let _: Value = plain.call(&["SET", key, "100", "PX", "60000"]);
        let admit = async || match store.run(&script::ADMIT, &[key], &["1"]).await {
            Ok(reply) => Admitted::read(&reply).map_err(|error| error.word()),
            Err(error) => Err(error.word()),
        };
        assert!(matches!(admit().await, Ok(Admitted::Grant(_))));
        slow.send(&["EVAL", "redis.call('SET', 'k', 1) for i = 1, 30000000 do end", "0"]);
        until_true("BUSY", || plain.try_call::<Value>(&["PING"]) == Err("BUSY".to_owned()));
        let (mut busy, mut granted) = (0, 1);
        while busy < 3 {
            match admit().await {
                Err("busy") => busy += 1,
                Ok(Admitted::Grant(_)) => granted += 1,
                other => panic!("{other:?} on {server}"),
            }
            assert!(granted < 20, "never BUSY on {server}");
        }
        slow.receive().expect("its own end");
        assert_eq!(plain.call::<u64>(&["GET", key]), 100 - granted, "BUSY took nothing on {server}");
        let refused: String = plain.call(&["INFO", "errorstats"]);
        assert!(refused.contains("errorstat_BUSY:count="), "{refused}");
    }
}
