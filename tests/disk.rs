//! The embedded store in a directory: what a restart, a kill, a second process, a full disk and a damaged file leave.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use voxgate::quota::store::embedded::{Clock, Embedded};
use voxgate::quota::store::{Reply, Script, Store, StoreError};
use voxgate::quota::{Name, Quota, Settings};

use crate::differential::calls::{Call, Calls};
use crate::harness::audio::noise_ms;
use crate::harness::client::LINEAR16;
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::scripted_worker::{Got, Script as Play, ScriptedWorker};
use crate::money::books;

const START: u64 = 1_764_460_800_000_000;

fn open(folder: &Path) -> Result<Embedded, StoreError> {
    Embedded::open(folder, Clock::Manual(Arc::new(AtomicU64::new(START))))
}

fn ask(store: &Embedded, line: &str) -> Result<Reply, StoreError> {
    store.command(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Reply::Status(text) => text.clone(),
        other => panic!("no text: {other:?}"),
    }
}

/// Every key: type, value (a hash in the order of its fields) and deadline.
fn contents(store: &Embedded) -> BTreeMap<String, (String, Reply, Reply)> {
    let Ok(Reply::List(names)) = ask(store, "KEYS *") else { panic!("KEYS failed") };
    let read = |name: &Reply| {
        let key = text(name);
        let kind = text(&ask(store, &format!("TYPE {key}")).unwrap());
        let value = match kind.as_str() {
            "string" => ask(store, &format!("GET {key}")),
            "hash" => ask(store, &format!("HGETALL {key}")).map(sorted),
            "zset" => ask(store, &format!("ZRANGE {key} 0 -1 WITHSCORES")),
            _ => ask(store, &format!("XRANGE {key} - +")),
        };
        (key.clone(), (kind, value.unwrap(), ask(store, &format!("PEXPIRETIME {key}")).unwrap()))
    };
    names.iter().map(read).collect()
}

fn sorted(pairs: Reply) -> Reply {
    let Reply::List(pairs) = pairs else { panic!("no pairs") };
    let pairs: BTreeMap<_, _> = pairs.chunks(2).map(|pair| (text(&pair[0]), pair[1].clone())).collect();
    Reply::List(pairs.into_iter().flat_map(|(name, value)| [Reply::Bulk(name.into_bytes()), value]).collect())
}

fn run(store: &Embedded, call: &Call) {
    _ = match call {
        Call::Command(words) => store.command(&words.iter().map(String::as_bytes).collect::<Vec<_>>()),
        Call::Script { text, keys, args } => {
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            store.run(&Script::new("random", (*text).to_owned()), &keys, &args)
        }
    };
}

/// Random calls, with flushes and reopens in between: after each reopen every key, value and deadline is there.
#[test]
fn reopened_store_is_the_same() {
    for seed in 0..30 {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(AtomicU64::new(START));
        let open = || Embedded::open(folder.path(), Clock::Manual(Arc::clone(&clock))).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut calls = Calls::new(seed, (START / 1000) as i64);
        let mut store = open();
        for _ in 0..4 {
            for _ in 0..random.usize(1..250) {
                run(&store, &calls.draw());
                clock.fetch_add(random.u64(0..20_000), Ordering::SeqCst);
                if random.u8(0..60) == 0 {
                    store.flush().unwrap();
                }
            }
            let before = contents(&store);
            if random.bool() {
                store.close().unwrap();
            }
            drop(store);
            store = open();
            assert_eq!(contents(&store), before, "seed {seed}");
        }
    }
}

/// Times to live go on while nobody runs; what fell due meanwhile is gone from the disk too.
#[test]
fn keys_fall_due_while_closed() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(AtomicU64::new(START));
    let open = || Embedded::open(folder.path(), Clock::Manual(Arc::clone(&clock))).unwrap();
    let store = open();
    for line in ["SET short 1 PX 1000", "SET long 1 PX 5000", "HSET h f v", "PEXPIRE h 1000"] {
        ask(&store, line).unwrap();
    }
    drop(store);

    clock.fetch_add(1_500_000, Ordering::SeqCst);
    let store = open();
    assert_eq!(contents(&store).into_keys().collect::<Vec<_>>(), ["long"]);
    assert_eq!(ask(&store, "PTTL long"), Ok(Reply::Int(3500)));
    drop(store);

    clock.store(START, Ordering::SeqCst); // even for a clock that goes back
    assert_eq!(contents(&open()).into_keys().collect::<Vec<_>>(), ["long"]);
}

#[test]
fn second_opener_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path()).unwrap();

    let refused = open(folder.path()).unwrap_err();

    assert!(
        matches!(&refused, StoreError::Away(text) if text.contains("open in another process")),
        "{refused}"
    );
    drop(first);
    open(folder.path()).unwrap();
}

#[test]
fn closed_store_takes_no_writes() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    ask(&store, "SET a 1").unwrap();

    store.close().unwrap();

    assert!(matches!(ask(&store, "SET a 2"), Err(StoreError::Refuses(_))));
    assert!(matches!(ask(&store, "FLUSHALL"), Err(StoreError::Refuses(_))));
    let script = Script::new("t", "return redis.call('SET', KEYS[1], 3)".into());
    assert!(matches!(store.run(&script, &["a"], &[]), Err(StoreError::Refuses(_))));
    assert_eq!(ask(&store, "GET a"), Ok(Reply::Bulk(b"1".to_vec())));
    assert_eq!(contents(&open(folder.path()).unwrap()), contents(&store));
}

/// Each refusal of a start says what is wrong and what to do, and leaves what it found as it was.
#[test]
fn wrong_directories_are_refused() {
    type Spoil = fn(&Path);
    let spoils: [(&str, Spoil, &str); 6] = [
        ("empty file", |folder| fs::write(folder.join("books.redb"), "").unwrap(), "damaged (it is empty)"),
        (
            "other file",
            |folder| fs::write(folder.join("books.redb"), "not a database").unwrap(),
            "is damaged",
        ),
        ("others' files", |folder| fs::write(folder.join("photo.jpg"), "x").unwrap(), "photo.jpg"),
        ("others' database", other_database, "no store of voxgate"),
        ("newer layout", newer_layout, "layout 9999"),
        ("a directory", |folder| fs::create_dir(folder.join("books.redb")).unwrap(), "books.redb"),
    ];
    for (name, spoil, word) in spoils {
        let folder = tempfile::tempdir().unwrap();
        spoil(folder.path());
        let error = open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(word), "{name}: {error}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = open(&file.path().join("inside")).unwrap_err();
    assert!(matches!(&error, StoreError::Refuses(_)), "{error}");
}

fn other_database(folder: &Path) {
    let database = redb::Database::create(folder.join("books.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(redb::TableDefinition::<u64, u64>::new("theirs")).unwrap();
    transaction.commit().unwrap();
}

fn newer_layout(folder: &Path) {
    drop(open(folder).unwrap());
    let database = redb::Database::open(folder.join("books.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let facts = redb::TableDefinition::<&str, u64>::new("facts");
    transaction.open_table(facts).unwrap().insert("layout", 9999).unwrap();
    transaction.commit().unwrap();
}

/// Flipped bits, cut and overwritten files: the store as it was after one of its last two writes, or a refusal; a
/// damage in what matters is never taken for a state, and nothing ever panics out.
#[test]
fn damaged_file_is_refused_or_whole() {
    let (mut opened, mut refused) = (0, 0);
    let seeds = std::env::var("VOXGATE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    for seed in 0..seeds {
        let folder = tempfile::tempdir().unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        let store = open(folder.path()).unwrap();
        let mut states = vec![contents(&store)];
        for round in 0..6 {
            for key in 0..random.usize(5..40) {
                ask(&store, &format!("SET k{key} {round}")).unwrap();
                ask(&store, &format!("HINCRBY h{key} f{round} {}", random.u16(..))).unwrap();
                ask(&store, &format!("XADD ledger * row {}", random.u64(..))).unwrap();
            }
            store.flush().unwrap();
            states.push(contents(&store));
        }
        drop(store);
        let file = folder.path().join("books.redb");
        let mut bytes = fs::read(&file).unwrap();
        spoil(&mut random, &mut bytes);
        fs::write(&file, &bytes).unwrap();
        match open(folder.path()) {
            Ok(store) => {
                let found = contents(&store);
                let age = states.iter().rev().position(|state| *state == found);
                assert!(age.is_some_and(|age| age <= 1), "seed {seed}: state {age:?} from the last");
                opened += 1;
            }
            Err(StoreError::Corrupt(_) | StoreError::Refuses(_)) => refused += 1,
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    println!("damaged files: {opened} opened whole, {refused} refused");
    assert!(opened > 0 && refused > 0);
}

fn spoil(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    let length = bytes.len();
    match random.u8(0..5) {
        0 => bytes.truncate(random.usize(0..length)),
        1 => {
            let from = random.usize(0..length);
            let to = (from + random.usize(1..8192)).min(length);
            bytes[from..to].iter_mut().for_each(|byte| *byte = random.u8(..));
        }
        2 => (0..random.usize(1..4)).for_each(|_| bytes[random.usize(0..512)] ^= 1 << random.u8(0..8)),
        _ => (0..random.usize(1..200)).for_each(|_| bytes[random.usize(0..length)] ^= 1 << random.u8(0..8)),
    }
}

/// The seam's URL leads there too.
#[tokio::test]
async fn url_names_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", folder.path().join("made/on/the/way").display());
    let store = Store::open(&url).unwrap();
    store.command(&["SET", "a", "1"]).await.unwrap();
    assert_eq!(store.word(), "embedded");
    store.close().unwrap();
    assert_eq!(Store::open(&url).unwrap().command(&["GET", "a"]).await, Ok(Reply::Bulk(b"1".to_vec())));
}

/// Milliseconds of audio that a store says were admitted: charged by closed leases, and taken from open ones' quotas.
fn admitted_ms(store: &Embedded) -> i64 {
    let number = |reply: &Reply| text(reply).parse::<i64>().unwrap();
    let contents = contents(store);
    let field = |value: &Reply, name: &str| match value {
        Reply::List(pairs) => {
            pairs.chunks(2).find(|pair| text(&pair[0]) == name).map_or(0, |pair| number(&pair[1]))
        }
        other => panic!("no hash: {other:?}"),
    };
    let of = |room: &'static str| {
        let ours = contents.iter().filter(move |(key, _)| key.starts_with(room));
        ours.map(|(_, entry)| &entry.1)
    };
    let taken: i64 = of("vox:budget:").map(|value| field(value, "taken")).sum();
    taken - of("vox:quota:").map(number).sum::<i64>()
}

fn audio_bytes(got: &Got) -> usize {
    if got.message.is_binary() { got.message.len() } else { 0 }
}

/// kill -9 with 20 streams in full flow. What was handed to workers up to a second before the kill is in the books,
/// which hold; the reaper charges it; and a new gateway goes on with them, keys and all.
#[tokio::test(flavor = "multi_thread")]
async fn kill_loses_at_most_a_second() {
    for (round, run_ms) in [400, 1_300, 1_777].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let worker = ScriptedWorker::start(Play::default()).await;
        let setup = Setup::on(&format!("embedded:{}", folder.path().display()), &[worker.url()]);
        let mut gateway = Gateway::start(&setup).await;
        gateway.account("a", 3_600_000).await;
        let key = gateway.key("a", serde_json::json!({"streams_max": 64})).await;
        let mut streams = tokio::task::JoinSet::new();
        for seed in 0..20 {
            let mut client = gateway.open(LINEAR16, &key).await.expect("accepted");
            streams.spawn(async move {
                let audio = noise_ms(seed, 20);
                while client.audio(&audio).await {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            });
        }
        let start = Instant::now();
        worker.until("enough audio", |_| start.elapsed() > Duration::from_millis(run_ms)).await;

        gateway.sigkill();
        gateway.wait().await;
        let killed = Instant::now();
        streams.shutdown().await;
        let frames: Vec<_> = worker.visits().into_iter().flat_map(|visit| visit.frames).collect();
        let handed = |until: Instant| -> i64 {
            let bytes = frames.iter().filter(|got| got.at <= until).map(audio_bytes).sum::<usize>();
            i64::try_from(bytes / 32).unwrap()
        };

        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
        let clock = Arc::new(AtomicU64::new(u64::try_from(now).unwrap()));
        let embedded = Embedded::open(folder.path(), Clock::Manual(Arc::clone(&clock))).unwrap();
        let (kept, all, sure) = (
            admitted_ms(&embedded),
            handed(killed),
            handed(killed.checked_sub(Duration::from_secs(1)).unwrap()),
        );
        println!("round {round}: {all} ms handed over, {kept} in the books, {sure} a second before the kill");
        assert!(kept >= sure, "{kept} of {sure}");
        assert!(all > 0);
        let (store, name) = (Store::from(embedded), Name::parse("a").unwrap());
        let found = books::read(&store, "vox:", &name).await;
        found.check(3_600_000).unwrap();

        clock.fetch_add(60_000_000, Ordering::SeqCst); // beyond every lease's deadline
        Quota::new(store.clone(), Settings::default()).reap_round().await.unwrap();
        let reaped = books::read(&store, "vox:", &name).await;
        reaped.check(3_600_000).unwrap();
        assert_eq!((reaped.leases.len(), reaped.charged()), (0, kept));
        store.close().unwrap();
        drop(store);

        let gateway = Gateway::start(&setup).await;
        let balance = gateway.balance("a").await;
        assert_eq!((balance.settled, balance.held), (kept.unsigned_abs(), 0));
        let mut client = gateway.open(LINEAR16, &key).await.expect("the key is known");
        assert!(client.audio(&noise_ms(1, 100)).await);
        assert_eq!(client.finish().await.metadata_ms(), 100);
    }
}

/// SIGTERM brings all of it to disk.
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let worker = ScriptedWorker::start(Play::default()).await;
    let setup = Setup::on(&format!("embedded:{}", folder.path().display()), &[worker.url()]);
    let mut gateway = Gateway::start(&setup.clone().more("[limits]\ndrain = \"1s\"\n")).await;
    let key = gateway.account("a", 3_600_000).await;
    let mut client = gateway.open(LINEAR16, &key).await.expect("accepted");
    assert!(client.audio(&noise_ms(1, 700)).await);
    client.until("results", |heard| !heard.messages.is_empty()).await;

    gateway.sigterm();

    client.end().await;
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.log());
    assert!(gateway.log().contains(&format!("books      {}", folder.path().display())));
    let balance = Gateway::start(&setup).await.balance("a").await;
    assert_eq!((balance.settled, balance.held, balance.leases), (700, 0, 0));
}

/// Units of a file system that is as small as the test wants; nothing where the system does not let us mount one.
struct Tiny(tempfile::TempDir);

impl Tiny {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"]).arg(folder.path()).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(folder))
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        _ = std::process::Command::new("umount").arg(self.0.path()).status();
    }
}

/// A full disk: writes are refused with its reason, reads go on, nothing that was promised is lost; with room again
/// it goes on by itself.
#[test]
fn full_disk_refuses_and_recovers() {
    let Some(tiny) = Tiny::mount() else {
        println!("skipped: mounting a small file system needs root");
        return;
    };
    let folder = tiny.0.path().join("books");
    let store = open(&folder).unwrap();
    ask(&store, "SET safe 1").unwrap();
    store.flush().unwrap();
    let ballast = tiny.0.path().join("ballast");
    _ = fs::write(&ballast, vec![0; 8 << 20]); // fails half way: full

    let word = "x".repeat(4096);
    let mut refusal = None;
    for n in 0..2_000 {
        match ask(&store, &format!("SET k{n} {word}")) {
            Ok(_) => _ = store.flush(),
            Err(error) => {
                refusal = Some(error);
                break;
            }
        }
    }
    let refusal = refusal.expect("refused");
    println!("full disk: {refusal}");
    assert!(matches!(&refusal, StoreError::Refuses(text) if text.contains("make room")), "{refusal}");
    assert_eq!(ask(&store, "GET safe"), Ok(Reply::Bulk(b"1".to_vec())));
    let before = contents(&store);

    fs::remove_file(&ballast).unwrap();
    store.flush().unwrap();

    ask(&store, "SET safe 2").unwrap();
    ask(&store, "SET safe 1").unwrap();
    drop(store);
    assert_eq!(contents(&open(&folder).unwrap()), before);
}

/// A file that was removed or replaced under the store is noticed: nothing more is taken for what nobody keeps.
#[test]
fn removed_file_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    ask(&store, "SET a 1").unwrap();
    store.flush().unwrap();
    let (file, aside) = (folder.path().join("books.redb"), folder.path().join("aside"));
    fs::rename(&file, &aside).unwrap();

    ask(&store, "SET a 2").unwrap();
    let error = store.flush().unwrap_err();
    assert!(matches!(&error, StoreError::Refuses(text) if text.contains("books.redb")), "{error}");
    assert!(matches!(ask(&store, "SET a 3"), Err(StoreError::Refuses(_))));

    fs::rename(&aside, &file).unwrap();
    store.flush().unwrap();
    ask(&store, "SET a 4").unwrap();
    drop(store);
    assert_eq!(ask(&open(folder.path()).unwrap(), "GET a"), Ok(Reply::Bulk(b"4".to_vec())));
}
