//! `lua/account.lua`, `lua/session.lua`, `lua/rebuild.lua`: their answers, and what they refuse, on every store.

use voxgate::quota::store::{Reply, Script};
use voxgate::quota::{keys::Name, script};

use super::bench::{Bench, Stores, ask, leave};

const ODD: [&str; 12] =
    ["", "-1", "1.5", "0x10", "1e3", " 7", "7 ", "01", "nan", "9007199254740992", "9223372036854775808", "x"];

/// First word of an answer, and the number behind it.
async fn word(bench: &Bench, script: &Script, keys: &[String], args: &[&str]) -> (String, i64) {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    match bench.run(script, keys, &args).await {
        Ok(Reply::List(list)) => match list.as_slice() {
            [Reply::Bulk(word), Reply::Int(number), ..] => (String::from_utf8_lossy(word).into(), *number),
            [Reply::Bulk(word), ..] => (String::from_utf8_lossy(word).into(), -1),
            other => panic!("on {}: {other:?}", bench.name),
        },
        other => panic!("on {}: {other:?}", bench.name),
    }
}

fn says(word: &str, number: i64) -> (String, i64) {
    (word.to_owned(), number)
}

/// Made once, capped and ended; a session that nobody made is not created by a flag.
#[tokio::test]
async fn session_script_creates_only_on_make() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        let key = [bench.keys.session(&bench.account, "k.s")];
        let call = async |args: &[&str]| word(&bench, &script::SESSION, &key, args).await;
        for what in ["cap", "end"] {
            assert_eq!(call(&[what, "", "5", "0"]).await, says("unknown", -1), "on {}", bench.name);
        }
        assert_eq!(bench.int(&["EXISTS", &key[0]]).await, 0, "on {}", bench.name);
        for cap in ODD {
            assert_eq!(call(&["make", "k", cap, "600000"]).await, says("bad argument", 3), "{cap:?}");
            assert_eq!(call(&["make", "k", "5", cap]).await, says("bad argument", 4), "{cap:?}");
        }
        assert_eq!(call(&["make", "k", "500", "600000"]).await, says("made", 0), "on {}", bench.name);
        assert_eq!(call(&["make", "k", "500", "600000"]).await, says("made", 1), "on {}", bench.name);
        assert_eq!(call(&["make", "k", "501", "600000"]).await, says("exists", -1), "on {}", bench.name);
        bench.enter(&ask()).await;
        assert_eq!(
            call(&["cap", "", "9007199254740991", "0"]).await,
            says("capped", 500),
            "on {}",
            bench.name
        );
        assert_eq!(call(&["end", "", "-", "0"]).await, says("ended", 0), "on {}", bench.name);
        assert_eq!(call(&["end", "", "-", "0"]).await, says("ended", 1), "on {}", bench.name);
        assert!(bench.int(&["PTTL", &key[0]]).await > 0, "on {}", bench.name);
    }
}

/// An account is written over what was read, or not at all.
#[tokio::test]
async fn account_script_compares_before_it_writes() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        let other = [bench.keys.account(&Name::parse("other").unwrap())];
        let key = [bench.keys.account(&bench.account)];
        let call = async |key: &[String], args: &[&str]| word(&bench, &script::ACCOUNT, key, args).await.0;
        assert_eq!(call(&other, &["*", "0", "frozen", "1"]).await, "moved", "on {}", bench.name);
        assert_eq!(bench.int(&["EXISTS", &other[0]]).await, 0, "on {}", bench.name);
        assert_eq!(call(&other, &["-", "0", "cap", "5"]).await, "written", "on {}", bench.name);
        assert_eq!(call(&other, &["-", "0", "cap", "6"]).await, "moved", "on {}", bench.name);
        assert_eq!(call(&key, &["7", "0", "plan", "8"]).await, "moved", "on {}", bench.name);
        assert_eq!(call(&key, &["0", "1", "plan", "8"]).await, "late", "on {}", bench.name);
        assert_eq!(call(&key, &["0", "4000000000", "plan", "8"]).await, "written", "on {}", bench.name);
        assert_eq!(call(&key, &["8", "0", "cap"]).await, "bad argument", "on {}", bench.name);
        for from in ODD {
            assert_eq!(call(&key, &["8", from, "cap", "1"]).await, "bad argument", "{from:?}");
        }
    }
}

/// Sums are written only over what was counted, and only plain amounts that fit each other.
#[tokio::test]
async fn rebuild_script_writes_only_what_was_counted() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        bench.settle(&leave(400)).await;
        let keys = [
            bench.keys.budget(&bench.account, "d1"),
            bench.keys.ledger(&bench.account, "d1"),
            bench.keys.leases(&bench.account),
        ];
        let Reply::List(rows) = bench.command(&["XRANGE", &keys[1], "-", "+"]).await else { panic!() };
        let Reply::List(row) = &rows[0] else { panic!() };
        let Reply::Bulk(id) = &row[0] else { panic!() };
        let id = String::from_utf8_lossy(id).into_owned();
        let was = "400:0:400:1";
        let good = ["1", &id, "0", was, "sums", "400", "0", "400", "1", "600000", "k", "400"];
        let call = async |at: usize, with: &str| {
            let mut args = good;
            args[at] = with;
            word(&bench, &script::REBUILD, &keys, &args).await.0
        };
        for (at, with) in [(0, "2"), (1, "0-0"), (2, "1"), (3, "-"), (3, "401:0:401:1")] {
            assert_eq!(call(at, with).await, "moved", "{at} {with} on {}", bench.name);
        }
        for at in [0, 2, 5, 6, 7, 8, 9, 11] {
            for odd in ODD {
                assert_eq!(call(at, odd).await, "bad argument", "{at} {odd:?} on {}", bench.name);
            }
        }
        assert_eq!(call(5, "399").await, "bad argument", "taken is not held + settled, on {}", bench.name);
        assert_eq!(bench.sums().await, (400, 0, 400), "on {}", bench.name);
        bench.command(&["DEL", &keys[0]]).await;
        assert_eq!(call(3, was).await, "moved", "on {}", bench.name);
        assert_eq!(call(3, "-").await, "written", "on {}", bench.name);
        assert_eq!(bench.sums().await, (400, 0, 400), "on {}", bench.name);
        assert!(bench.int(&["PTTL", &keys[0]]).await > 0, "on {}", bench.name);
    }
}

/// A gateway that reckons by an older plan is turned away before anything is created.
#[tokio::test]
async fn stale_plans_are_turned_away() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.command(&["HSET", &bench.keys.account(&bench.account), "plan", "7"]).await;
        let stale = bench.reserve(&ask()).await;
        assert_eq!(stale.word(), "stale_plan", "on {}", bench.name);
        assert_eq!(bench.books().await, None, "on {}", bench.name);
        let fresh = voxgate::quota::script::Reserve { plan: 7, ..ask() };
        bench.enter(&fresh).await;
        assert_eq!(bench.reserve(&ask()).await.word(), "kept", "a replay comes first, on {}", bench.name);
    }
}
