//! The ledger's export, killed again and again: every row in the file exactly once, in both formats.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;
use voxgate::ending::Ending;
use voxgate::quota::store::{Reply, Store};
use voxgate::quota::{Admission, Name, Quota, Settings, Terms};
use voxgate::units::Units;

use crate::harness::PATIENCE;
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::redis_server::{RedisServer, redis};

const TOKEN: &str = "test-admin-token-0123456789";
const KILLS: usize = 20;

/// Closes that many leases, over as many periods as it takes.
async fn bill(quota: &Quota, secret: &str, sessions: std::ops::Range<u32>) {
    let key = Arc::new(quota.key(secret).await.expect("an answer").expect("a key"));
    for n in sessions {
        let account = Arc::new(quota.account(&key.account).await.expect("an answer").expect("an account"));
        let terms = Terms {
            account,
            key: key.clone(),
            session: Name::parse(&format!("s{n}")),
            model: "m".into(),
            units_per_second: 1000,
            tags: if n % 3 == 0 { "=a,\"b".into() } else { String::new() },
        };
        let mut lease = quota.open(terms).await.expect("budget enough");
        let cost = Units::from(1 + n % 97);
        assert_eq!(lease.admit(cost).await, Ok(Admission::Grant));
        lease.tally(cost);
        assert!(lease.settle(Ending::ClientDone, "w").await.done);
    }
}

/// Period and id of every row, with its charge, straight from the streams.
async fn rows_of(quota: &Quota, account: &str) -> BTreeMap<(String, String), u64> {
    let Reply::List(keys) =
        quota.command(&["KEYS", &format!("vox:ledger:{{{account}}}:*")]).await.expect("keys")
    else {
        panic!("no list");
    };
    let text = |reply: &Reply| match reply {
        Reply::Bulk(bytes) => String::from_utf8(bytes.clone()).expect("text"),
        other => panic!("{other:?}"),
    };
    let mut rows = BTreeMap::new();
    for key in keys.iter().map(text) {
        let Reply::List(all) = quota.command(&["XRANGE", &key, "-", "+"]).await.expect("rows") else {
            panic!("no list");
        };
        let period = key.rsplit_once(':').expect("a period").1.to_owned();
        for row in &all {
            let Reply::List(parts) = row else { panic!("{row:?}") };
            let Reply::List(fields) = &parts[1] else { panic!("{row:?}") };
            let fields: Vec<String> = fields.iter().map(text).collect();
            let at = fields.iter().position(|field| field == "charged").expect("a charge");
            rows.insert((period.clone(), text(&parts[0])), fields[at + 1].parse().expect("a number"));
        }
    }
    rows
}

fn read(format: &str, text: &str) -> BTreeMap<(String, String), u64> {
    assert!(text.ends_with('\n'), "the last line is whole");
    let mut lines = text.lines();
    if format == "csv" {
        assert!(lines.next().is_some_and(|line| line.starts_with("account,period,id,")), "{text:.200}");
    }
    let mut rows = BTreeMap::new();
    for line in lines {
        let (period, id, charged) = if format == "csv" {
            let cells: Vec<&str> = line.split(',').collect();
            (cells[1].to_owned(), cells[2].to_owned(), cells[9].parse().expect("a number"))
        } else {
            let row: Value = serde_json::from_str(line).expect("a line of JSON");
            let word = |name: &str| row[name].as_str().expect("text").to_owned();
            (word("period"), word("id"), row["charged"].as_u64().expect("a number"))
        };
        assert_eq!(rows.insert((period, id), charged), None, "twice: {line}");
    }
    rows
}

fn export(gateway: &Gateway, format: &str, folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_voxgate"));
    command
        .args(["ledger", "export", "acme", "--page", "3", "--format", format, "--out"])
        .arg(folder.join(format))
        .arg("--cursor")
        .arg(folder.join(format!("{format}.cursor")))
        .env("VOXGATE_ADMIN", format!("http://{}", gateway.admin))
        .env("VOXGATE_ADMIN_TOKEN", TOKEN)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command
}

/// What a power cut may leave behind the last cursor: less than was written, or something else.
fn tear(format: &str, folder: &Path, random: &mut fastrand::Rng) {
    let kept = std::fs::read_to_string(folder.join(format!("{format}.cursor"))).unwrap_or_default();
    let safe =
        serde_json::from_str::<Value>(&kept).ok().and_then(|state| state["bytes"].as_u64()).unwrap_or(0);
    let Ok(text) = std::fs::read(folder.join(format)) else { return };
    let keep = random.u64(safe..=text.len() as u64) as usize;
    let mut torn = text[..keep].to_vec();
    if random.bool() {
        torn.extend(std::iter::repeat_n(0, random.usize(..100)));
    }
    std::fs::write(folder.join(format), torn).expect("a writable folder");
}

fn length(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |meta| meta.len())
}

/// Waits until another process has written so much.
async fn reaches(file: &Path, bytes: u64) {
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    while length(file) < bytes {
        ticks.tick().await;
    }
}

/// SIGKILL at random moments, torn ends, new rows meanwhile: rows and sums are the streams'.
#[tokio::test(flavor = "multi_thread")]
async fn killed_export_has_every_row_once() {
    let seed =
        std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let store = RedisServer::start(redis(), &[]);
    let gateway = Gateway::start(&Setup::on(&store.url(), &[])).await;
    let secret = gateway.account_with("acme", 9_000_000_000, json!({"period": "2s"})).await;
    let quota = Quota::new(Store::open(&store.url()).expect("a store"), Settings::default());
    let folder = tempfile::tempdir().expect("a temporary folder");
    bill(&quota, &secret, 0..600).await;
    for format in ["jsonl", "csv"] {
        let (mut killed, mut next) = (0, 600);
        for _ in 0..KILLS {
            let out = folder.path().join(format);
            let more = length(&out) + random.u64(1..9_000);
            let mut child = export(&gateway, format, folder.path()).spawn().expect("it starts");
            let moment = async {
                match random.bool() {
                    true => reaches(&out, more).await,
                    false => tokio::time::sleep(Duration::from_millis(random.u64(1..30))).await,
                }
            };
            let ended = tokio::select! { _ = child.wait() => true, () = moment => false };
            if !ended {
                child.kill().await.expect("killed");
                killed += 1;
            }
            tear(format, folder.path(), &mut random);
            bill(&quota, &secret, next..next + 10).await;
            next += 10;
        }
        let whole = export(&gateway, format, folder.path()).status();
        let status =
            tokio::time::timeout(3 * PATIENCE, whole).await.expect("an end in time").expect("it starts");
        assert!(status.success());
        let text = std::fs::read_to_string(folder.path().join(format)).expect("text");
        let (told, stored) = (read(format, &text), rows_of(&quota, "acme").await);
        assert_eq!(told, stored, "{format}");
        assert!(killed >= KILLS / 2, "{killed} kills met a running export");
        println!("{format}: {killed} kills, {} rows, {} units", told.len(), told.values().sum::<u64>());
        let again = export(&gateway, format, folder.path()).status().await.expect("it starts");
        assert!(again.success());
        assert_eq!(std::fs::read_to_string(folder.path().join(format)).expect("text"), text, "nothing new");
    }
}

/// What is not this export's own is never cut or written over.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_files_are_left_alone() {
    let store = RedisServer::start(redis(), &[]);
    let gateway = Gateway::start(&Setup::on(&store.url(), &[])).await;
    let secret = gateway.account("acme", 9_000_000).await;
    let quota = Quota::new(Store::open(&store.url()).expect("a store"), Settings::default());
    bill(&quota, &secret, 0..20).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (out, cursor) = (folder.path().join("jsonl"), folder.path().join("jsonl.cursor"));
    let run = async || export(&gateway, "jsonl", folder.path()).status().await.expect("it starts").code();

    std::fs::write(&out, "mine").expect("writable");
    assert_eq!(run().await, Some(1), "output without a cursor");
    assert_eq!(std::fs::read_to_string(&out).expect("text"), "mine");
    std::fs::remove_file(&out).expect("removable");
    assert_eq!(run().await, Some(0));
    let whole = std::fs::read_to_string(&out).expect("text");
    assert_eq!(whole.lines().count(), 20);
    std::fs::write(&out, &whole[..10]).expect("writable");
    assert_eq!(run().await, Some(1), "rows are missing");
    std::fs::write(&out, &whole).expect("writable");
    let state = std::fs::read_to_string(&cursor).expect("text");
    std::fs::write(&cursor, state.replace("acme", "other")).expect("writable");
    assert_eq!(run().await, Some(1), "the cursor of another account");
    std::fs::write(&cursor, "nonsense").expect("writable");
    assert_eq!(run().await, Some(1), "no cursor at all");
    assert_eq!(std::fs::read_to_string(&out).expect("text"), whole);
}
