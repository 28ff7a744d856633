//! `lua/settle.lua`, `lua/reap.lua`, `lua/topup.lua`: how leases end and caps rise.

use voxgate::quota::answer::{Admitted, Bill, Raised, Reaped, Reserved, Settled};
use voxgate::quota::script::{Reserve, Settle};
use voxgate::quota::store::StoreError;
use voxgate::units::Units;

use super::bench::{Bench, Stores, ask, leave, units};

fn bill(charged: u32, returned: u32) -> Bill {
    Bill { charged: units(charged), returned: units(returned), excess: Units::ZERO }
}

async fn rows(bench: &Bench) -> i64 {
    bench.int(&["XLEN", &bench.keys.ledger(&bench.account, "d1")]).await
}

/// What was not handed over returns; a replay says the same and moves nothing; other numbers are a conflict.
#[tokio::test]
async fn settle_repeats_its_first_answer() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        bench.admit(700).await;
        assert_eq!(
            bench.settle(&leave(700)).await,
            (Settled::Closed(bill(700, 300)), false),
            "on {}",
            bench.name
        );
        for _ in 0..3 {
            assert_eq!(
                bench.settle(&leave(700)).await,
                (Settled::Closed(bill(700, 300)), true),
                "on {}",
                bench.name
            );
        }
        assert_eq!(bench.settle(&leave(600)).await.0, Settled::Conflict, "on {}", bench.name);
        assert_eq!((bench.sums().await, rows(&bench).await), ((700, 0, 700), 1), "on {}", bench.name);
        assert_eq!(bench.admit(1).await, Admitted::Lapse, "on {}", bench.name);
        assert!(matches!(bench.reserve(&ask()).await, Reserved::Closed { n: 1, .. }), "on {}", bench.name);
    }
}

/// The last one out closes; before that a leaver's numbers are only kept.
#[tokio::test]
async fn last_one_out_closes() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        bench.enter(&Reserve { attachment: "b1".into(), stream: "g.2".into(), ..ask() }).await;
        assert_eq!(bench.settle(&leave(300)).await, (Settled::Left, false), "on {}", bench.name);
        assert_eq!(bench.settle(&leave(300)).await, (Settled::Left, true), "on {}", bench.name);
        assert_eq!((bench.sums().await, rows(&bench).await), ((1000, 1000, 0), 0), "on {}", bench.name);
        let last = Settle { attachment: "b1".into(), ..leave(500) };
        assert_eq!(bench.settle(&last).await.0, Settled::Closed(bill(800, 200)), "on {}", bench.name);
        assert_eq!((bench.sums().await, rows(&bench).await), ((800, 0, 800), 1), "on {}", bench.name);
    }
}

/// Exactly authorised plus epsilon is accepted, one more is an overrun, and the lease stays open.
#[tokio::test]
async fn overrun_is_refused() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        let over = |tally| Settle { epsilon: units(5), ..leave(tally) };
        let closed = Settled::Closed(bill(1005, 0));
        assert_eq!(bench.settle(&over(1005)).await.0, closed, "on {}", bench.name);
        assert_eq!(bench.sums().await, (1005, 0, 1005), "on {}", bench.name);
    }
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        let over = Settle { epsilon: units(5), ..leave(1006) };
        for _ in 0..2 {
            assert_eq!(bench.settle(&over).await.0, Settled::Overrun, "on {}", bench.name);
        }
        assert_eq!(bench.sums().await, (1000, 1000, 0), "on {}", bench.name);
        let closed = Reaped::Closed { how: "forced".into(), bill: bill(1000, 0) };
        assert_eq!(bench.reap(true).await, closed, "what was overrun is charged in full, on {}", bench.name);
    }
}

/// Nobody ever adds to a quota: one that holds more than was granted is damaged, and nothing is given away for it.
#[tokio::test]
async fn swollen_quota_goes_to_quarantine() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        bench.command(&["SET", &bench.quota_key(), "1001", "KEEPTTL"]).await;
        assert_eq!(bench.reap(true).await, Reaped::Corrupt(bench.quota_key()), "on {}", bench.name);
        assert_eq!(bench.sums().await, (1000, 1000, 0), "on {}", bench.name);
    }
}

/// Ownership and period are compared in the script; who was never there is unknown.
#[tokio::test]
async fn strangers_settle_nothing() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        let other = Settle { owner: "x".into(), ..leave(1) };
        assert_eq!(bench.settle(&other).await.0, Settled::NotYours, "on {}", bench.name);
        let other = Settle { period: "d0".into(), ..leave(1) };
        assert_eq!(bench.settle(&other).await.0, Settled::WrongPeriod("d1".into()), "on {}", bench.name);
        for other in [Settle { attachment: "zz".into(), ..leave(1) }, Settle { n: 2, ..leave(1) }] {
            assert_eq!(bench.settle(&other).await.0, Settled::Unknown, "on {}", bench.name);
        }
        assert_eq!(bench.sums().await, (1000, 1000, 0), "on {}", bench.name);
    }
}

/// A crash is charged what was admitted: granted less left, and not a unit of what was reported as waste.
#[tokio::test]
async fn reap_charges_what_was_admitted() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        bench.enter(&Reserve { attachment: "b1".into(), ..ask() }).await;
        bench.admit(100).await;
        bench.admit(50).await;
        let left = Settle { attachment: "b1".into(), waste: units(50), ..leave(0) };
        assert_eq!(bench.settle(&left).await.0, Settled::Left, "on {}", bench.name);
        assert_eq!(bench.reap(false).await, Reaped::NotDue, "on {}", bench.name);
        let closed = Reaped::Closed { how: "forced".into(), bill: bill(100, 900) };
        assert_eq!(bench.reap(true).await, closed, "on {}", bench.name);
        assert_eq!(bench.reap(true).await, Reaped::Unknown, "on {}", bench.name);
        assert_eq!(bench.settle(&leave(100)).await.0, Settled::Reaped(bill(100, 900)), "on {}", bench.name);
        assert_eq!((bench.sums().await, rows(&bench).await), ((100, 0, 100), 1), "on {}", bench.name);
    }
}

/// Without the quota key the reported tallies count; without the lease nothing can be charged, and that shows.
#[tokio::test]
async fn reap_copes_with_lost_keys() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        bench.enter(&Reserve { attachment: "b1".into(), ..ask() }).await;
        bench.settle(&Settle { attachment: "b1".into(), ..leave(40) }).await;
        bench.command(&["DEL", &bench.quota_key()]).await;
        let blind = Reaped::Closed { how: "blind".into(), bill: bill(40, 960) };
        assert_eq!(bench.reap(true).await, blind, "on {}", bench.name);
    }
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        bench.command(&["DEL", &bench.keys.lease(&bench.account, "k.s", 1)]).await;
        let lost = Reaped::Closed { how: "lost".into(), bill: bill(0, 1000) };
        assert_eq!(bench.reap(true).await, lost, "on {}", bench.name);
        assert_eq!(bench.sums().await, (0, 0, 0), "on {}", bench.name);
    }
}

/// A lease with a value that nobody of ours wrote is set aside, its budget stays held.
#[tokio::test]
async fn corrupt_leases_go_to_quarantine() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        bench.command(&["SET", &bench.quota_key(), "-7"]).await;
        assert_eq!(bench.reap(true).await, Reaped::Corrupt(bench.quota_key()), "on {}", bench.name);
        assert_eq!(bench.reap(false).await, Reaped::NotDue, "on {}", bench.name);
        assert_eq!(bench.sums().await, (1000, 1000, 0), "on {}", bench.name);
        bench.command(&["SET", &bench.quota_key(), "900", "PX", "600000"]).await;
        assert!(matches!(bench.reserve(&ask()).await, Reserved::Corrupt(_)), "not woken, on {}", bench.name);
        let closed = Reaped::Closed { how: "forced".into(), bill: bill(100, 900) };
        assert_eq!(bench.reap(true).await, closed, "an operator can end it, on {}", bench.name);
    }
}

/// A session that expired with a lease unreaped may be made anew under its name: the old lease's end is not booked onto it.
#[tokio::test]
async fn renewed_session_keeps_its_own_sums() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        bench.settle(&leave(100)).await;
        bench.enter(&Reserve { n: 2, attachment: "a2".into(), ..ask() }).await;
        let session = bench.keys.session(&bench.account, "k.s");
        bench.command(&["DEL", &session, &bench.keys.lease(&bench.account, "k.s", 1)]).await;
        bench.enter(&Reserve { attachment: "b1".into(), ..ask() }).await;

        let old = Settle { n: 2, attachment: "a2".into(), ..leave(300) };
        assert_eq!(bench.settle(&old).await.0, Settled::Closed(bill(300, 700)), "on {}", bench.name);

        let field = async |name: &str| bench.text(&["HGET", &session, name]).await;
        assert_eq!(
            (field("held").await.as_deref(), field("open").await.as_deref()),
            (Some("1000"), Some("1")),
            "on {}",
            bench.name
        );
        assert_eq!(
            bench.settle(&Settle { attachment: "b1".into(), ..leave(50) }).await.0,
            Settled::Closed(bill(50, 950))
        );
        assert_eq!(
            (field("used").await.as_deref(), bench.sums().await),
            (Some("50"), (450, 0, 450)),
            "on {}",
            bench.name
        );
    }
}

/// A settle without its budget still leaves the row from which the budget can be rebuilt.
#[tokio::test]
async fn settle_without_budget_keeps_the_row() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        bench.enter(&ask()).await;
        let budget = bench.keys.budget(&bench.account, "d1");
        bench.command(&["DEL", &budget]).await;
        assert_eq!(bench.settle(&leave(10)).await.0, Settled::Closed(bill(10, 990)), "on {}", bench.name);
        assert_eq!((rows(&bench).await, bench.int(&["EXISTS", &budget]).await), (1, 0), "on {}", bench.name);
    }
}

/// A top-up raises the cap once per id.
#[tokio::test]
async fn topup_counts_once_per_id() {
    let stores = Stores::start();
    for bench in stores.benches().await {
        let raised = |sum, replay| Raised::Raised { sum: units(sum), replay };
        assert_eq!(bench.topup("t1", "500").await, Ok(raised(500, false)), "on {}", bench.name);
        assert_eq!(bench.topup("t2", "200").await, Ok(raised(700, false)), "on {}", bench.name);
        assert_eq!(bench.topup("t1", "500").await, Ok(raised(500, true)), "on {}", bench.name);
        assert_eq!(bench.topup("t1", "501").await, Ok(Raised::Conflict), "on {}", bench.name);
        assert_eq!(bench.topup("t3", "9007199254740991").await, Ok(Raised::TooMuch), "on {}", bench.name);
        for amount in ["0", "-1", "1.5", "0x10", "9007199254740992"] {
            let answer = bench.topup("t4", amount).await;
            assert!(matches!(answer, Err(StoreError::Odd(_))), "{amount} on {}: {answer:?}", bench.name);
        }
    }
}
