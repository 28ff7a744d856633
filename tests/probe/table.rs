//! `check`: every script on every primary, the complete call beside the server's own time, and what is wrong with a store.

use std::process::Command;

use redis::Value;
use serde_json::Value as Json;
use voxgate::quota::script;

use super::plain::{Plain, is_error, until_true};
use crate::harness::redis_server::{RedisServer, store_binaries};

/// What `check` says about a store, as JSON, and its text for people.
fn check(url: &str) -> (Json, String) {
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_voxgate"));
        let free = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
        let output = command.args(["check", "--store", url]).args(free).args(more).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let json = run(&["--json"]);
    (serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error} in {json}")), run(&[]))
}

fn finding<'a>(checked: &'a Json, name: &str) -> &'a Json {
    let all = checked["findings"].as_array().expect("findings");
    all.iter().find(|finding| finding["name"] == name).unwrap_or_else(|| panic!("{name} in {checked}"))
}

#[test]
fn check_shows_scripts_and_server_time() {
    for binary in store_binaries() {
        let server = RedisServer::start(binary, &["--slowlog-log-slower-than", "10000"]);
        let (checked, text) = check(&server.url());
        let lines = checked["scripts"].as_array().expect("a table");
        let verbs: Vec<_> = script::all().iter().map(|s| s.name).filter(|name| *name != "probe").collect();
        let named: Vec<_> = lines.iter().map(|line| line["script"].as_str().expect("a name")).collect();
        assert_eq!(named, verbs, "{checked}");
        for line in lines {
            let ms = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name} in {line}"));
            assert!(ms("server_ms") > 0.0 && ms("server_ms") < ms("max_ms"), "{line}");
            assert!(ms("p50_ms") <= ms("p99_ms") && ms("p99_ms") <= ms("max_ms"), "{line}");
            assert!(text.contains(line["shard"].as_str().expect("a shard")), "{text}");
        }
        assert!(text.contains("SERVER MS"), "{text}");
        assert_eq!(finding(&checked, "store pressure")["grade"], "pass", "{checked}");
        assert_eq!(finding(&checked, "store replicas")["grade"], "warn", "{checked}");
        println!("{server}\n{text}");
    }
}

#[test]
fn check_finds_slow_and_busy_stores() {
    for binary in store_binaries() {
        let server = RedisServer::start(binary, &["--busy-reply-threshold", "10"]);
        let (mut slow, mut other) = (Plain::to(&server), Plain::to(&server));
        slow.send(&["EVAL", "while true do end", "0"]);
        until_true("BUSY", || other.try_call::<Value>(&["PING"]) == Err("BUSY".to_owned()));
        let _: Value = other.call(&["SCRIPT", "KILL"]);
        assert!(is_error(slow.receive()), "it was killed");
        let _: Value = other.call(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);

        let (checked, _) = check(&server.url());
        let reason = finding(&checked, "store slow log")["reason"].as_str().expect("a reason").to_owned();
        assert!(reason.contains(" in it, 1 of them not ours"), "{reason}");
        let pressure = finding(&checked, "store pressure")["reason"].as_str().expect("a reason").to_owned();
        assert!(pressure.contains("because a script held the server"), "{pressure}");
        assert_eq!(finding(&checked, "store eviction")["grade"], "fail", "{checked}");
    }
}
