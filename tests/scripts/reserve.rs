//! `lua/reserve.lua`: envelopes out of a budget.

use voxgate::quota::answer::{Entry, Reserved, Why};
use voxgate::quota::script::{Reserve, Settle};
use voxgate::quota::store::Reply;

use super::bench::{Bench, Stores, ask, leave, units};

fn why(reserved: &Reserved) -> (Why, u64) {
    match reserved {
        Reserved::Refuse { why, left, .. } => (*why, left.get()),
        other => panic!("{other:?}"),
    }
}

/// The same ask takes once, however often it comes; another want under the same attachment is a conflict.
#[tokio::test]
async fn repeated_ask_takes_once() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        assert_eq!(bench.enter(&ask()).await, (Entry::Opened, units(1000)), "on {}", bench.name);
        for _ in 0..2 {
            assert_eq!(bench.enter(&ask()).await, (Entry::Kept, units(1000)), "on {}", bench.name);
        }
        let other = Reserve { want: units(2000), ..ask() };
        assert_eq!(bench.reserve(&other).await, Reserved::Conflict, "on {}", bench.name);
        assert_eq!(bench.sums().await, (1000, 1000, 0), "on {}", bench.name);
    }
}

/// Sockets of one session share one lease, and only the next number makes another.
#[tokio::test]
async fn sockets_join_the_current_lease() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        let second = Reserve { attachment: "b1".into(), stream: "g.2".into(), ..ask() };
        assert_eq!(bench.enter(&second).await, (Entry::Joined, units(1000)), "on {}", bench.name);
        let next = Reserve { n: 2, attachment: "b2".into(), ..second.clone() };
        assert_eq!(bench.enter(&next).await, (Entry::Opened, units(1000)), "on {}", bench.name);
        assert!(matches!(bench.reserve(&ask()).await, Reserved::Moved { n: 2, .. }), "on {}", bench.name);
        let far = Reserve { n: 9, attachment: "b3".into(), ..second };
        assert!(matches!(bench.reserve(&far).await, Reserved::Moved { n: 2, .. }), "on {}", bench.name);
        assert_eq!(bench.sums().await, (2000, 2000, 0), "on {}", bench.name);
    }
}

/// The grant is what the share allows, at least the floor, at most what is free.
#[tokio::test]
async fn grant_follows_share_and_floor() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        let shared = Reserve { share: 8, want: units(5000), ..ask() };
        assert_eq!(bench.enter(&shared).await.1, units(1250), "on {}", bench.name);
        let rest = Reserve { sid: "k.t".into(), want: units(50_000), ..ask() };
        assert_eq!(bench.enter(&rest).await.1, units(8750), "on {}", bench.name);
        let late = Reserve { sid: "k.u".into(), ..ask() };
        assert_eq!(why(&bench.reserve(&late).await), (Why::Held, 0), "on {}", bench.name);
    }
}

/// Small accounts open with what they have; a refusal tells spent from held and leaves nothing behind.
#[tokio::test]
async fn refusal_tells_spent_from_held() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.command(&["HSET", &bench.keys.account(&bench.account), "cap", "600"]).await;
        let small = ask();
        assert_eq!(bench.enter(&small).await.1, units(600), "on {}", bench.name);
        let other = Reserve { sid: "k.t".into(), ..ask() };
        assert_eq!(why(&bench.reserve(&other).await).0, Why::Held, "on {}", bench.name);
        let own = Reserve { n: 2, attachment: "a2".into(), ..small.clone() };
        assert_eq!(why(&bench.reserve(&own).await).0, Why::Budget, "nobody else holds it, on {}", bench.name);
        bench.settle(&leave(600)).await;
        assert_eq!(why(&bench.reserve(&other).await).0, Why::Budget, "on {}", bench.name);
        let session = bench.keys.session(&bench.account, "k.t");
        assert_eq!(bench.int(&["EXISTS", &session]).await, 0, "on {}", bench.name);
        assert_eq!(bench.sums().await, (600, 0, 600), "on {}", bench.name);
    }
}

/// The cap in force is the stored one plus the period's top-ups, whatever an old gateway believes.
#[tokio::test]
async fn stored_cap_binds_old_gateways() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        let account = bench.keys.account(&bench.account);
        bench.command(&["HSET", &account, "cap", "400"]).await;
        assert_eq!(bench.enter(&ask()).await.1, units(400), "on {}", bench.name);
        bench.topup("t1", "300").await.unwrap();
        let other = Reserve { sid: "k.t".into(), ..ask() };
        assert_eq!(bench.enter(&other).await.1, units(300), "on {}", bench.name);
        bench.command(&["HSET", &account, "cap", "20000"]).await;
        let more = Reserve { sid: "k.u".into(), want: units(15_000), ..ask() };
        assert_eq!(bench.enter(&more).await.1, units(15_000), "on {}", bench.name);
    }
}

/// A session's cap holds over all its leases, and over what it used before.
#[tokio::test]
async fn session_cap_survives_leases() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        let capped = Reserve { session_cap: Some(units(1500)), ..ask() };
        bench.enter(&capped).await;
        bench.settle(&leave(900)).await;
        let second = Reserve { n: 2, attachment: "a2".into(), ..capped };
        assert_eq!(bench.enter(&second).await.1, units(600), "on {}", bench.name);
        let third = Reserve { n: 3, attachment: "a3".into(), ..second };
        assert_eq!(why(&bench.reserve(&third).await), (Why::Session, 0), "on {}", bench.name);
    }
}

/// A key's own cap for the period holds beside the account's.
#[tokio::test]
async fn key_cap_holds_per_period() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        let capped = Reserve { key_cap: Some(units(1200)), ..ask() };
        bench.enter(&capped).await;
        bench.settle(&leave(1000)).await;
        let other = Reserve { sid: "k.t".into(), least: units(100), floor: units(100), ..capped };
        assert_eq!(bench.enter(&other).await.1, units(200), "on {}", bench.name);
        let third = Reserve { sid: "k.u".into(), ..other.clone() };
        assert_eq!(why(&bench.reserve(&third).await).0, Why::Held, "200 are held, on {}", bench.name);
        bench.settle(&Settle { sid: "k.t".into(), ..leave(200) }).await;
        assert_eq!(why(&bench.reserve(&third).await).0, Why::Key, "now they are spent, on {}", bench.name);
        let elsewhere = Reserve { sid: "j.u".into(), owner: "j".into(), ..other };
        assert_eq!(bench.enter(&elsewhere).await.0, Entry::Opened, "on {}", bench.name);
    }
}

/// A slot is freed by settle, by the deadline, and by nothing else.
#[tokio::test]
async fn streams_cap_frees_dead_slots() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        let nth = |i: u32| Reserve {
            sid: format!("k.{i}"),
            stream: format!("g.{i}"),
            streams_max: 2,
            floor: units(10),
            least: units(10),
            ..ask()
        };
        bench.enter(&nth(1)).await;
        bench.enter(&nth(2)).await;
        assert_eq!(why(&bench.reserve(&nth(3)).await), (Why::Streams, 2), "on {}", bench.name);
        let join = Reserve { stream: "g.4".into(), attachment: "b1".into(), ..nth(1) };
        assert_eq!(why(&bench.reserve(&join).await).0, Why::Streams, "on {}", bench.name);
        let streams = bench.keys.streams(&bench.account, "k");
        bench.command(&["ZADD", &streams, "1", "g.1"]).await;
        assert_eq!(bench.enter(&nth(3)).await.0, Entry::Opened, "on {}", bench.name);
        assert_eq!(bench.int(&["ZCARD", &streams]).await, 2, "the dead entry went, on {}", bench.name);
    }
}

/// Only the store's clock says which period runs, and only when a lease is made.
#[tokio::test]
async fn stale_periods_are_turned_away() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        let past = Reserve { end: 1_000_000_000, ..ask() };
        let Reserved::StalePeriod { now_ms } = bench.reserve(&past).await else {
            panic!("on {}", bench.name)
        };
        assert!(now_ms > 1_700_000_000_000, "on {}", bench.name);
        let future = Reserve { start: 3_900_000_000, ..ask() };
        assert!(matches!(bench.reserve(&future).await, Reserved::StalePeriod { .. }), "on {}", bench.name);
        bench.enter(&ask()).await;
        let join = Reserve { attachment: "b1".into(), period: "d0".into(), end: 1_000_000_000, ..ask() };
        let Reserved::In { period, free, .. } = bench.reserve(&join).await else {
            panic!("on {}", bench.name)
        };
        assert_eq!((period.as_str(), free), ("d1", None), "the lease's own period, on {}", bench.name);
    }
}

/// A budget that is gone though its period was opened is lost data, never a fresh allowance.
#[tokio::test]
async fn lost_budget_is_not_renewed() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        bench.command(&["DEL", &bench.keys.budget(&bench.account, "d1")]).await;
        let other = Reserve { sid: "k.t".into(), ..ask() };
        assert_eq!(bench.reserve(&other).await, Reserved::Lost, "on {}", bench.name);
        bench.command(&["DEL", &bench.keys.session(&bench.account, "k.s")]).await;
        let next = Reserve { n: 2, attachment: "a2".into(), ..ask() };
        assert_eq!(bench.reserve(&next).await, Reserved::Lost, "on {}", bench.name);
    }
}

async fn refused_with(bench: &Bench, field: [&str; 2], expected: Why) {
    let account = bench.keys.account(&bench.account);
    bench.command(&["HSET", &account, field[0], field[1]]).await;
    assert_eq!(why(&bench.reserve(&ask()).await).0, expected, "on {}", bench.name);
}

/// Flags are read when a lease is made; a heartbeat of one that is open goes on.
#[tokio::test]
async fn frozen_accounts_open_nothing() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        refused_with(&bench, ["frozen", "1"], Why::Frozen).await;
        bench.command(&["HSET", &bench.keys.account(&bench.account), "frozen", "0"]).await;
        bench.enter(&ask()).await;
        bench.command(&["HSET", &bench.keys.account(&bench.account), "frozen", "1"]).await;
        assert_eq!(bench.enter(&ask()).await.0, Entry::Kept, "on {}", bench.name);
        let join = Reserve { attachment: "b1".into(), ..ask() };
        assert_eq!(why(&bench.reserve(&join).await).0, Why::Frozen, "on {}", bench.name);
        bench.command(&["DEL", &bench.keys.account(&bench.account)]).await;
        assert_eq!(why(&bench.reserve(&join).await).0, Why::Account, "on {}", bench.name);
    }
}

/// Another owner, other terms, an ended session: each has its own word, and nothing moves.
#[tokio::test]
async fn sessions_belong_to_their_owner() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        let thief = Reserve { owner: "x".into(), attachment: "x1".into(), ..ask() };
        assert_eq!(bench.reserve(&thief).await, Reserved::NotYours, "on {}", bench.name);
        let other = Reserve { terms: "n|1000|".into(), attachment: "b1".into(), ..ask() };
        assert_eq!(bench.reserve(&other).await, Reserved::Conflict, "on {}", bench.name);
        bench.command(&["HSET", &bench.keys.session(&bench.account, "k.s"), "ended", "1"]).await;
        assert_eq!(bench.reserve(&ask()).await, Reserved::Ended, "on {}", bench.name);
        assert_eq!(bench.sums().await, (1000, 1000, 0), "on {}", bench.name);
    }
}

/// At most four open leases a session.
#[tokio::test]
async fn open_leases_are_bounded() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        for n in 1..=4 {
            bench.enter(&Reserve { n, attachment: format!("a{n}"), ..ask() }).await;
        }
        let fifth = Reserve { n: 5, attachment: "a5".into(), ..ask() };
        assert_eq!(why(&bench.reserve(&fifth).await), (Why::Leases, 4), "on {}", bench.name);
    }
}

/// Amounts that are none are named by their place, before anything is read.
#[tokio::test]
async fn odd_amounts_are_bad_arguments() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        for (i, text) in
            (9..14).flat_map(|i| ["", "-5", "1.5", "0x10", "9007199254740992"].map(|text| (i, text)))
        {
            let mut args = ask().args();
            args[i] = text.into();
            let reply = bench
                .run(&voxgate::quota::script::RESERVE, &bench.reserve_keys(&ask()), &args)
                .await
                .unwrap();
            let named = Reply::List(vec![Reply::Bulk(b"bad argument".to_vec()), Reply::Int(i as i64 + 1)]);
            assert_eq!(reply, named, "{i} {text:?} on {}", bench.name);
        }
        assert_eq!(bench.books().await, None, "on {}", bench.name);
    }
}

/// Every key's type is touched before the first write: a wrong one changes nothing at all.
#[tokio::test]
async fn wrong_types_change_nothing() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        for (i, key) in bench.reserve_keys(&ask()).iter().enumerate().skip(1) {
            bench.command(&["XADD", key, "*", "odd", "1"]).await;
            assert_eq!(
                bench.reserve(&ask()).await,
                Reserved::Corrupt(key.clone()),
                "key {i} on {}",
                bench.name
            );
            bench.command(&["DEL", key]).await;
        }
        assert_eq!(bench.books().await, None, "on {}", bench.name);
        assert_eq!(bench.int(&["DBSIZE"]).await, 1, "only the account, on {}", bench.name);
    }
}
