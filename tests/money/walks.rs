//! Many random walks, on both stores; what a walk that goes wrong comes down to; and proof that damage is noticed.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use voxgate::quota::script;
use voxgate::quota::store::embedded::{Clock, Embedded};
use voxgate::quota::store::redis::RedisStore;
use voxgate::quota::store::{Script, Store};

use super::walk::{Ground, Outcome, Step, Walk, steps};
use crate::harness::redis_server::{RedisServer, redis};

const STEPS: u32 = 700;
const SEEDS_AT_ONCE: usize = 12;
/// Tries to make a wrong walk shorter.
const SHRINK_TRIES_MAX: usize = 300;

/// `VOXGATE_SEEDS` many from `VOXGATE_SEED` on, or the usual ones.
pub fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("VOXGATE_SEED").unwrap_or(0);
    let count = number("VOXGATE_SEEDS").unwrap_or(if number("VOXGATE_SEED").is_some() { 1 } else { usual });
    first..first + count
}

fn embedded() -> Ground {
    let clock = Arc::new(AtomicU64::new(1_764_460_800_000_000));
    let store = Embedded::new(Clock::Manual(clock.clone())).unwrap().into();
    Ground { store, clock: Some(clock), prefix: "vox:".into(), folder: None }
}

fn on_disk() -> Ground {
    let clock = Arc::new(AtomicU64::new(1_764_460_800_000_000));
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(folder.path(), Clock::Manual(clock.clone())).unwrap().into();
    Ground { store, clock: Some(clock), prefix: "vox:".into(), folder: Some(folder) }
}

/// One walk on the in-process store; time stands still but for the walk's own steps. `trail` gets what was done.
fn walk_embedded(
    seed: u64,
    damaged: Option<&Script>,
    steps: &[Step],
    trail: &mut Vec<&'static str>,
) -> Result<Outcome, String> {
    let again = |script: &Script| Script::new(script.name, script.text.clone());
    let walk = AssertUnwindSafe(|| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime
            .block_on(async { Walk::new(seed, embedded(), damaged.map(again)).await.run(steps, trail).await })
    });
    std::panic::catch_unwind(walk).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
        Err(format!("panicked: {text}"))
    })
}

/// Leaves parts out as long as it still goes wrong: halves first, then ever smaller ones.
pub fn shrink<T: Clone>(parts: Vec<T>, wrong: impl Fn(&[T]) -> bool) -> Vec<T> {
    let (mut kept, mut size, mut tries) = (parts, 0, 0);
    size += kept.len() / 2;
    while size > 0 && tries < SHRINK_TRIES_MAX {
        let (mut at, mut less) = (0, false);
        while at < kept.len() && tries < SHRINK_TRIES_MAX {
            let mut fewer = kept.clone();
            fewer.drain(at..(at + size).min(kept.len()));
            tries += 1;
            if wrong(&fewer) {
                (kept, less) = (fewer, true);
            } else {
                at += size;
            }
        }
        size = if less { size.min(kept.len()) } else { size / 2 };
    }
    kept
}

/// The shortest walk found that goes wrong, step by step, and how.
fn story(seed: u64, damaged: Option<&Script>) -> String {
    let wrong = |fewer: &[Step]| walk_embedded(seed, damaged, fewer, &mut Vec::new()).is_err();
    let steps = shrink(steps(seed, STEPS), wrong);
    let mut trail = Vec::new();
    let wrong = walk_embedded(seed, damaged, &steps, &mut trail).err().unwrap_or_else(|| "not again".into());
    let told: Vec<String> = steps
        .iter()
        .zip(trail.iter().chain(std::iter::repeat(&"went wrong")))
        .map(|(step, what)| format!("  {:3} {:016x} {what}", step.roll, step.dice))
        .collect();
    format!("{} of {STEPS} steps are enough:\n{}\n{wrong}", steps.len(), told.join("\n"))
}

/// The embedded store keeps every invariant under lost answers, crashes, operators, clock steps and failovers.
#[test]
fn walks_keep_the_books_embedded() {
    let (mut rows, mut failovers, mut rebuilt, mut recuts) = (0, 0, 0, 0);
    let mut hows = BTreeMap::new();
    for seed in seeds(60) {
        match walk_embedded(seed, None, &steps(seed, STEPS), &mut Vec::new()) {
            Ok(outcome) => {
                for (how, count) in outcome.books.hows {
                    rows += count;
                    *hows.entry(how).or_insert(0) += count;
                }
                failovers += outcome.failovers;
                rebuilt += outcome.rebuilt;
                recuts += outcome.recuts;
            }
            Err(wrong) => panic!("VOXGATE_SEED={seed} replays it: {wrong}\n{}", story(seed, None)),
        }
    }
    println!(
        "embedded: seeds {:?}, {STEPS} steps each, 0 violations: {rows} ledger rows {hows:?}, {failovers} failovers, {rebuilt} rebuilds, {recuts} plan changes",
        seeds(60)
    );
    assert!(rows > 0);
}

/// So does a store on disk that is closed and opened again on the way. Even seeds only: a restored backup is a matter of
/// its own there.
#[test]
fn walks_keep_the_books_on_disk() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let mut rows = 0;
    for seed in seeds(25).map(|seed| seed * 2) {
        let steps = steps(seed, STEPS);
        let walk = runtime
            .block_on(async { Walk::new(seed, on_disk(), None).await.run(&steps, &mut Vec::new()).await });
        let outcome = walk.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        rows += outcome.books.hows.values().sum::<i64>();
    }
    println!("disk: {:?}, {STEPS} steps each, {rows} ledger rows, 0 violations", seeds(25));
    assert!(rows > 0);
}

/// A long walk that goes wrong is told by the few steps that matter.
#[test]
fn counterexamples_are_shrunk() {
    let text = script::ADMIT.text.replace("and have >= paid and", "and have + 5 >= paid and");
    let damaged = Script::new("admit", text);
    let wrong =
        |seed: &u64| walk_embedded(*seed, Some(&damaged), &steps(*seed, STEPS), &mut Vec::new()).is_err();
    let seed = (0..20).find(wrong).expect("a damaged admit is noticed");
    let story = story(seed, Some(&damaged));
    println!("{story}");
    assert!(story.lines().count() < 60, "{story}");
}

/// Walks of several seeds at once, each under its own prefix, on one server.
async fn walk_redis(server: &RedisServer, seeds: std::ops::Range<u64>) -> i64 {
    let walks = seeds.map(|seed| {
        let store: Store = RedisStore::new(&server.url()).unwrap().into();
        let ground = Ground { store, clock: None, prefix: format!("s{seed}:"), folder: None };
        tokio::spawn(async move {
            (seed, Walk::new(seed, ground, None).await.run(&steps(seed, STEPS), &mut Vec::new()).await)
        })
    });
    let mut rows = 0;
    for walk in walks.collect::<Vec<_>>() {
        match walk.await.unwrap() {
            (_, Ok(outcome)) => rows += outcome.books.hows.values().sum::<i64>(),
            (seed, Err(wrong)) => panic!("seed {seed} on {server}: {wrong}"),
        }
    }
    rows
}

/// A real server keeps them too.
#[tokio::test]
async fn walks_keep_the_books_on_redis() {
    let all = seeds(60);
    let mut rows = 0;
    for first in all.clone().step_by(SEEDS_AT_ONCE) {
        let server = RedisServer::start(redis(), &[]);
        rows += walk_redis(&server, first..all.end.min(first + SEEDS_AT_ONCE as u64)).await;
    }
    println!("redis: seeds {all:?}, {STEPS} steps each, {rows} ledger rows, 0 violations");
    assert!(rows > 0);
}

/// A check that can't fail proves nothing: each of these one-line damages must be seen.
#[test]
fn damaged_scripts_are_caught() {
    let damages: [(&Script, &str, &str); 7] = [
        (&script::ADMIT, "and have >= paid and", "and have + 5 >= paid and"),
        (
            &script::RESERVE,
            "math.max(floor, math.floor(math.min(free, key_room) / share)), room)",
            "math.max(floor, math.floor(math.min(free, key_room) / share)))",
        ),
        (&script::RESERVE, "redis.call('HINCRBY', KEYS[5], 'held', amount)", ""),
        (&script::RESERVE, "'in', exact(joined + 1)", "'in', exact(joined)"),
        (&script::SETTLE, "redis.call('HINCRBY', key.budget, 'held', exact(-granted))", ""),
        (&script::SETTLE, "if string.sub(mine, 1, 3) ~= 'in:' then", "if false then"),
        (&script::REAP, "granted - left - waste", "granted - waste"),
    ];
    for (script, line, damage) in damages {
        assert!(script.text.contains(line), "{}: {line}", script.name);
        let damaged = Script::new(script.name, script.text.replace(line, damage));
        let caught = (0..80)
            .find_map(|seed| walk_embedded(seed, Some(&damaged), &steps(seed, STEPS), &mut Vec::new()).err());
        let wrong =
            caught.unwrap_or_else(|| panic!("{}: nobody noticed that {line:?} is {damage:?}", script.name));
        println!("{}: {line:?} damaged: {wrong:.100}", script.name);
    }
}
