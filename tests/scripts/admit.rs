//! `lua/admit.lua`: one chunk, one key.

use voxgate::quota::answer::Admitted;
use voxgate::quota::store::StoreError;

use super::bench::{Bench, Stores, ask, units};

async fn quota(bench: &Bench, value: &str) {
    bench.command(&["SET", &bench.quota_key(), value, "PX", "600000"]).await;
}

/// A refusal is only a read, and says what is really left.
#[tokio::test]
async fn refused_chunk_takes_nothing() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        quota(&bench, "2").await;
        assert_eq!(bench.admit(5).await, Admitted::Refuse(units(2)), "on {}", bench.name);
        assert_eq!(bench.admit(1).await, Admitted::Grant(units(1)), "on {}", bench.name);
        assert_eq!(bench.admit(1).await, Admitted::Grant(units(0)), "on {}", bench.name);
        assert_eq!(bench.admit(1).await, Admitted::Refuse(units(0)), "on {}", bench.name);
    }
}

/// A bare decrement would make the key at minus the cost, for ever.
#[tokio::test]
async fn missing_key_lapses_uncreated() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        assert_eq!(bench.admit(5).await, Admitted::Lapse, "on {}", bench.name);
        assert_eq!(bench.int(&["EXISTS", &bench.quota_key()]).await, 0, "on {}", bench.name);
    }
}

/// `tonumber` alone would take most of these.
#[tokio::test]
async fn only_plain_costs_are_taken() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        quota(&bench, "9007199254740991").await;
        for cost in [
            "0",
            "-1",
            "+1",
            "01",
            "1.5",
            "0x10",
            "1e3",
            " 7",
            "7 ",
            "7\n",
            "nan",
            "inf",
            "",
            "9007199254740992",
            "9007199254740993",
            "9223372036854775807",
            "9223372036854775808",
            "18446744073709551616",
        ] {
            let answer = bench.admit_text("k.s", 1, cost).await;
            assert!(matches!(answer, Err(StoreError::Odd(_))), "{cost:?} on {}: {answer:?}", bench.name);
        }
        let left = bench.text(&["GET", &bench.quota_key()]).await;
        assert_eq!(left.as_deref(), Some("9007199254740991"), "on {}", bench.name);
    }
}

/// The largest amount goes through exactly; a Lua number on the way would round it.
#[tokio::test]
async fn largest_cost_is_exact() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        quota(&bench, "9007199254740991").await;
        let answer = bench.admit_text("k.s", 1, "9007199254740990").await.unwrap();
        assert_eq!(answer, Admitted::Grant(units(1)), "on {}", bench.name);
    }
}

/// What no script of ours writes is never an amount.
#[tokio::test]
async fn corrupt_quota_is_not_drawn_on() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        for value in ["-5", "abc", "1.5", "", "007", "9007199254740992"] {
            quota(&bench, value).await;
            assert_eq!(bench.admit(1).await, Admitted::Corrupt, "{value:?} on {}", bench.name);
            assert_eq!(
                bench.text(&["GET", &bench.quota_key()]).await.as_deref(),
                Some(value),
                "on {}",
                bench.name
            );
        }
        bench.command(&["DEL", &bench.quota_key()]).await;
        bench.command(&["HSET", &bench.quota_key(), "a", "1"]).await;
        let answer = bench.admit_text("k.s", 1, "1").await;
        assert!(matches!(answer, Err(StoreError::Corrupt(_))), "on {}: {answer:?}", bench.name);
    }
}

/// Taking units leaves the key's time to live alone.
#[tokio::test]
async fn admit_keeps_the_ttl() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        let before = bench.int(&["PTTL", &bench.quota_key()]).await;
        assert_eq!(bench.admit(400).await, Admitted::Grant(units(600)), "on {}", bench.name);
        let after = bench.int(&["PTTL", &bench.quota_key()]).await;
        assert!(
            after > 0 && after <= before && before - after < 60_000,
            "{before} -> {after} on {}",
            bench.name
        );
    }
}
