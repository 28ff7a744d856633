//! The embedded store against real servers: the same random calls must get the same replies and leave the same keys.
//!
//! `VOXGATE_SEEDS` says how many seeds to run and `VOXGATE_SEED` which one comes first.

use std::{fmt::Debug, time::SystemTime};

use redis::{Connection, RedisError, Value};
use voxgate::quota::store::{
    Reply, Script, StoreError,
    embedded::{Clock, Embedded},
};

pub(crate) mod calls;

use calls::{Call, Calls};

use crate::harness::redis_server;

/// Every server that this run can use (Redis 7.0, 7.4, Valkey) answers as the embedded store does.
#[test]
fn embedded_equals_real_servers() {
    let seeds = number("VOXGATE_SEED").unwrap_or(0);
    let seeds = seeds..seeds + number("VOXGATE_SEEDS").unwrap_or(SEEDS);
    for server in redis_server::stores() {
        let client = redis::Client::open(server.url()).unwrap();
        let mut real = client.get_connection().unwrap();
        for seed in seeds.clone() {
            redis::cmd("FLUSHALL").query::<()>(&mut real).unwrap();
            one_seed(seed, &mut real);
        }
        println!("embedded equals {server}: seeds {seeds:?}, {STEPS} calls each");
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn one_seed(seed: u64, real: &mut Connection) {
    let embedded = Embedded::new(Clock::System).unwrap();
    let mut calls = Calls::new(seed, now_ms());
    for step in 0..STEPS {
        let call = calls.draw();
        let (ours, theirs) = (on_embedded(&embedded, &call), on_server(real, &call));
        let slack = call.slack_ms();
        assert!(
            near(&ours, &theirs, slack),
            "seed {seed} step {step}: {call:?}\n ours {ours:?}\n real {theirs:?}"
        );
    }
    let (ours, theirs) =
        (contents(|call| on_embedded(&embedded, call)), contents(|call| on_server(real, call)));
    assert_eq!(ours.len(), theirs.len(), "seed {seed}: {ours:?} {theirs:?}");
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours.0, theirs.0, "seed {seed}");
        assert!(near(&ours.1, &theirs.1, 0), "seed {seed} {}: {ours:?} {theirs:?}", ours.0);
        assert!(near(&ours.2, &theirs.2, SLACK_MS), "seed {seed} {}: {ours:?} {theirs:?}", ours.0);
    }
}

/// A reply, or the text of an error.
type Answer = Result<Reply, String>;

/// Every key with its value and its deadline.
fn contents(mut ask: impl FnMut(&Call) -> Answer) -> Vec<(String, Answer, Answer)> {
    let mut ask = |line: &str| ask(&Call::plain(line));
    let Ok(Reply::List(names)) = ask("KEYS *") else { panic!("KEYS failed") };
    let mut names: Vec<String> = names.iter().map(text).collect();
    names.sort();
    let read = |key: String| {
        let kind = ask(&format!("TYPE {key}")).unwrap();
        let value = match text(&kind).as_str() {
            "string" => ask(&format!("GET {key}")),
            "hash" => ask(&format!("HGETALL {key}")),
            "zset" => ask(&format!("ZRANGE {key} 0 -1 WITHSCORES")),
            "stream" => ask(&format!("XRANGE {key} - +")),
            other => panic!("{key} is a {other}"),
        };
        let deadline = ask(&format!("PEXPIRETIME {key}"));
        (format!("{key} ({})", text(&kind)), value, deadline)
    };
    names.into_iter().map(read).collect()
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Status(text) => text.clone(),
        Reply::Nil | Reply::Int(_) | Reply::List(_) => panic!("no text: {reply:?}"),
    }
}

/// Equal, but for times that two clocks read `slack` apart.
fn near<E: PartialEq + Debug>(ours: &Result<Reply, E>, theirs: &Result<Reply, E>, slack: i64) -> bool {
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => close(ours, theirs, slack),
        _ => ours == theirs,
    }
}

/// The same, but that positive integers may differ by `slack`: times are read at two instants.
fn close(ours: &Reply, theirs: &Reply, slack: i64) -> bool {
    match (ours, theirs) {
        (Reply::Int(ours), Reply::Int(theirs)) => {
            ours == theirs || (*ours > 0 && *theirs > 0 && ours.abs_diff(*theirs) <= slack.unsigned_abs())
        }
        (Reply::List(ours), Reply::List(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().zip(theirs).all(|(ours, theirs)| close(ours, theirs, slack))
        }
        _ => ours == theirs,
    }
}

fn on_embedded(store: &Embedded, call: &Call) -> Answer {
    let answer = match call {
        Call::Command(words) => store.command(&words.iter().map(String::as_bytes).collect::<Vec<_>>()),
        Call::Script { text, keys, args } => {
            let script = Script::new("random", (*text).to_owned());
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            store.run(&script, &keys, &args)
        }
    };
    answer.map_err(|error| match error {
        StoreError::Away(text)
        | StoreError::Refuses(text)
        | StoreError::Corrupt(text)
        | StoreError::Denied(text)
        | StoreError::Odd(text) => text.trim_end().to_owned(),
        StoreError::Busy | StoreError::Late(_) | StoreError::Lost(_) | StoreError::Thin { .. } => {
            panic!("{error}")
        }
    })
}

fn on_server(real: &mut Connection, call: &Call) -> Answer {
    let words = match call {
        Call::Command(words) => words.clone(),
        Call::Script { text, keys, args } => {
            let count = keys.len().to_string();
            let head = ["EVAL".to_owned(), (*text).to_owned(), count];
            head.into_iter().chain(keys.iter().cloned()).chain(args.iter().cloned()).collect()
        }
    };
    let mut command = redis::Cmd::new();
    for word in &words {
        command.arg(word.as_str());
    }
    command.query::<Value>(real).map(reply).map_err(|error| error_text(call, &error))
}

fn reply(value: Value) -> Reply {
    match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Reply::Bulk(one_wording(&text).into_bytes()),
            Err(error) => Reply::Bulk(error.into_bytes()),
        },
        Value::Array(list) => Reply::List(list.into_iter().map(reply).collect()),
        Value::SimpleString(text) => Reply::Status(text),
        Value::Okay => Reply::Status("OK".to_owned()),
        other => panic!("not RESP2: {other:?}"),
    }
}

fn error_text(call: &Call, error: &RedisError) -> String {
    let code = error.code().unwrap_or_else(|| panic!("no reply to {call:?}: {error:?}"));
    let text = format!("{code} {}", error.detail().unwrap_or_default());
    let end = text.rfind(" script: ").unwrap_or(text.len()); // where it happened; only Redis says so
    one_wording(text[..end].trim_end())
}

/// Valkey's words for what Redis calls otherwise.
fn one_wording(text: &str) -> String {
    text.replace("Unknown command called", "Unknown Redis command called")
        .replace("args calling command from", "args calling Redis command from")
        .replace("ERR Command arguments must", "ERR Lua redis lib command arguments must")
        .replace("argument for this call", "argument for this redis lib call")
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

const SEEDS: u64 = 200;
const STEPS: usize = 300;
/// How far two servers' deadlines may be apart, on a loaded machine.
const SLACK_MS: i64 = 5_000;
