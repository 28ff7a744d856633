//! The ledger, the audit and the rebuild, as facts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use voxgate::ending::Ending;
use voxgate::quota::audit::Mismatch;
use voxgate::quota::export;
use voxgate::quota::ledger::{Cursor, How, Totals};
use voxgate::quota::rebuild::{RebuildError, Rebuilt};
use voxgate::quota::store::Store;
use voxgate::quota::store::embedded::{Clock, Embedded};
use voxgate::quota::store::faults::{Faults, Rates};
use voxgate::quota::store::redis::RedisStore;
use voxgate::quota::{Account, OpenError, Refusal};
use voxgate::units::Units;

use super::books::{self, Backup, command};
use super::house::{House, a_key, draw, name, units};
use crate::harness::redis_server::{RedisServer, redis};

/// An exporter whose file and cursor are stored together, or not at all.
#[derive(Default)]
struct File {
    lines: Vec<String>,
    saved: usize,
    cursor: Option<String>,
}

impl File {
    /// One run: pages until there is no more, or until it is killed between writing a page and saving its cursor.
    async fn run(&mut self, house: &House, kill_at: Option<usize>) {
        self.lines.truncate(self.saved);
        let mut cursor = self.cursor.as_deref().map(|text| Cursor::parse(text).unwrap());
        for page in 0.. {
            let read = house.quota.ledger_page(&house.id, cursor.as_ref(), 3).await.unwrap();
            self.lines.extend(read.rows.iter().map(|row| export::json_line(&house.id, row)));
            if kill_at == Some(page) {
                return;
            }
            cursor = read.cursor;
            (self.saved, self.cursor) = (self.lines.len(), cursor.as_ref().map(ToString::to_string));
            if !read.more {
                return;
            }
        }
    }
}

/// Killed at 20 points, while leases close late into periods that are over: every row once, sums equal.
#[tokio::test(start_paused = true)]
async fn killed_export_is_exactly_once() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let (house, mut rng, mut file) = (House::new().await, fastrand::Rng::with_seed(seed), File::default());
    let account = Account { cap: units(10_000_000), ..house.account().await };
    house.quota.put_account(&account).await.unwrap();
    let mut open = Vec::new();
    for round in 0..20 {
        for i in 0..rng.usize(2..12) {
            let lease = house.stream(&format!("s{round}.{i}"), rng.u32(1..50)).await;
            open.push(lease);
        }
        while open.len() > 4 {
            let lease = open.swap_remove(rng.usize(0..open.len()));
            assert!(lease.settle(Ending::ClientDone, "w1").await.done);
        }
        file.run(&house, Some(rng.usize(0..6))).await;
        house.pass(rng.u64(5..25));
    }
    for lease in open {
        assert!(lease.settle(Ending::ClientDone, "w1").await.done);
    }
    file.run(&house, None).await;
    let books = books::read(&house.store, "vox:", &house.id).await;
    books.check(10_000_000).unwrap();
    let rows: Vec<serde_json::Value> =
        file.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: BTreeSet<String> =
        rows.iter().map(|row| format!("{} {} {}", row["key"], row["session"], row["lease"])).collect();
    let charged: i64 = rows.iter().map(|row| row["charged"].as_i64().unwrap()).sum();
    assert_eq!(names.len(), rows.len(), "no row twice");
    assert_eq!(rows.len() as i64, books.hows.values().sum::<i64>());
    assert_eq!(charged, books.charged());
    assert!(books.periods.len() > 5, "{} periods", books.periods.len());
}

/// A row says who, what and why.
#[tokio::test(start_paused = true)]
async fn row_names_session_worker_and_ending() {
    let house = House::new().await;
    assert_eq!(house.quota.ledger_page(&house.id, None, 10).await.unwrap().cursor, None);
    house.bill("call-7", 420).await;
    let page = house.quota.ledger_page(&house.id, None, 10).await.unwrap();
    let row = &page.rows[0];
    assert_eq!((&*row.session, &*row.key, row.lease), ("call-7", &*house.key.fingerprint, 1));
    assert_eq!((row.charged, row.granted, row.how), (units(420), units(10_000), How::Settled));
    assert_eq!((&*row.model, row.units_per_second, &*row.tags), ("m", 1000, "t"));
    assert_eq!((&*row.ending, &*row.worker), ("client_done", "w1"));
    assert!(!page.more);
    let again = house.quota.ledger_page(&house.id, page.cursor.as_ref(), 10).await.unwrap();
    assert_eq!((again.rows.len(), again.cursor), (0, page.cursor), "the cursor waits for new rows");
}

/// Totals of all pages are what the budgets say.
#[tokio::test(start_paused = true)]
async fn ledger_totals_equal_the_budget() {
    let house = House::new().await;
    for i in 0..7 {
        house.bill(&format!("s{i}"), 10 + i).await;
    }
    let (mut totals, mut cursor) = (Totals::default(), None);
    loop {
        let page = house.quota.ledger_page(&house.id, cursor.as_ref(), 2).await.unwrap();
        page.rows.iter().for_each(|row| totals.add(row));
        cursor = page.cursor;
        if !page.more {
            break;
        }
    }
    let books = house.quota.books(&house.id, &house.period().await).await.unwrap().unwrap();
    assert_eq!((totals.charged, totals.rows), (books.settled, books.rows));
    let deep = house.quota.audit_deep(&house.id).await.unwrap();
    assert_eq!((deep.len(), deep[0].totals, deep[0].mismatches.len()), (1, totals, 0));
}

/// Drift has a sign, and the deep audit names what differs.
#[tokio::test(start_paused = true)]
async fn drift_is_signed_and_named() {
    let house = House::new().await;
    let lease = house.stream("s", 40).await;
    let budget = house.budget().await;
    for (change, drift) in [("7", 7), ("-12", -5)] {
        command(&house.store, &["HINCRBY", &budget, "taken", change]).await;
        assert_eq!(house.quota.audit(&house.id).await.unwrap().drift, drift);
        assert_eq!(house.quota.audit_round().await.unwrap().drift, drift);
    }
    let deep = house.quota.audit_deep(&house.id).await.unwrap();
    let expected = Mismatch::Sum { field: "taken", says: Some(units(9_995)), counted: units(10_000) };
    assert_eq!(deep[0].mismatches, [expected]);
    drop(lease);
}

/// Outstanding money: how much, since when, and what is stuck.
#[tokio::test(start_paused = true)]
async fn audit_counts_outstanding_leases() {
    let house = House::new().await;
    let leases = [house.stream("a", 10).await, house.stream("b", 10).await];
    house.pass(7);
    let audit = house.quota.audit(&house.id).await.unwrap().outstanding;
    assert_eq!((audit.leases, audit.units, audit.quarantined), (2, units(20_000), 0));
    assert!((7_000..8_000).contains(&audit.oldest_ms), "{audit:?}");
    command(&house.store, &["SET", &house.keys.quota(&house.id, &house.sid("a"), 1), "x"]).await;
    house.pass(60);
    house.quota.reap_round().await.unwrap();
    let round = house.quota.audit_round().await.unwrap();
    let all = round.outstanding;
    assert_eq!((all.leases, all.quarantined, all.quarantined_units), (1, 1, units(10_000)));
    assert_eq!((round.accounts, round.drift, all.oldest_ms), (1, 0, 0));
    drop(leases);
}

/// A lost budget refuses, is seen, comes back from rows and leases, and everything goes on with drift 0.
#[tokio::test(start_paused = true)]
async fn rebuild_brings_a_lost_budget_back() {
    let house = House::new().await;
    house.bill("a", 300).await;
    let mut lease = house.stream("b", 40).await;
    let period = house.period().await;
    assert_eq!(house.quota.rebuild(&house.id, &period, false).await, Ok(Rebuilt::Agreed));
    command(&house.store, &["DEL", &house.budget().await]).await;
    let refused = house.open("c").await.err();
    assert_eq!(refused, Some(OpenError::Refused(Refusal::Lost)));
    assert_eq!(house.quota.audit_round().await.unwrap().lost, 1);
    assert_eq!(house.quota.audit_deep(&house.id).await.unwrap()[0].mismatches, [Mismatch::Lost]);
    let (taken, held, settled) = (units(10_300), units(10_000), units(300));
    let written = Rebuilt::Written { taken, held, settled, rows: 1, was: vec![Mismatch::Lost] };
    assert_eq!(house.quota.rebuild(&house.id, &period, false).await, Ok(written));
    draw(&mut lease, 5).await;
    assert!(lease.settle(Ending::ClientDone, "w1").await.done);
    house.bill("c", 1).await;
    let books = books::read(&house.store, "vox:", &house.id).await;
    books.check(100_000).unwrap();
    assert_eq!((books.charged(), books.drift()), (346, 0));
}

/// A budget from an old copy gives money back; by force it is taken again. Without force nothing is written.
#[tokio::test(start_paused = true)]
async fn rebuild_takes_given_money_again() {
    let house = House::new().await;
    house.bill("a", 300).await;
    let (period, budget) = (house.period().await, house.budget().await);
    for (field, value) in [("taken", "10"), ("settled", "10"), ("held", "0"), ("rows", "0")] {
        command(&house.store, &["HSET", &budget, field, value]).await;
    }
    let refused = house.quota.rebuild(&house.id, &period, false).await;
    assert!(matches!(refused, Err(RebuildError::Differs(ref wrong)) if wrong.len() == 3), "{refused:?}");
    let Ok(Rebuilt::Written { taken, rows, was, .. }) = house.quota.rebuild(&house.id, &period, true).await
    else {
        panic!("not written")
    };
    assert_eq!((taken, rows, was.len()), (units(300), 1, 3));
    assert_eq!(house.quota.audit_deep(&house.id).await.unwrap()[0].mismatches, []);
    command(&house.store, &["DEL", &budget, &house.keys.ledger(&house.id, &period)]).await;
    assert_eq!(house.quota.rebuild(&house.id, &period, false).await, Err(RebuildError::Nothing));
}

/// More keys than one call writes.
#[tokio::test(start_paused = true)]
async fn rebuild_restores_every_key_sum() {
    let mut house = House::new().await;
    for _ in 0..150 {
        house.key = Arc::new(house.quota.add_key(a_key(&house.id)).await.unwrap().1);
        house.bill("s", 7).await;
    }
    let (period, budget) = (house.period().await, house.budget().await);
    command(&house.store, &["DEL", &budget]).await;
    house.quota.rebuild(&house.id, &period, false).await.unwrap();
    assert_eq!(house.quota.audit_deep(&house.id).await.unwrap()[0].mismatches, []);
    let field = format!("key:{}", house.key.fingerprint);
    assert_eq!(books::text_of(&house.store, &["HGET", &budget, &field]).await.as_deref(), Some("7"));
    books::read(&house.store, "vox:", &house.id).await.check(100_000).unwrap();
}

/// A failover that forgets the latest writes: what was handed over beyond the old grant shows in the row, to the unit.
#[tokio::test(start_paused = true)]
async fn failover_shows_what_was_lost() {
    let house = House::new().await;
    let (mut a, mut b) = (house.stream("s", 3_000).await, house.stream("s", 3_000).await);
    let replica = Backup::take(&house.store).await;
    draw(&mut a, 1_000).await;
    replica.restore(&house.store).await;
    draw(&mut b, 4_000).await; // the replica does not know of the 1,000
    for lease in [a, b] {
        assert!(lease.settle(Ending::ClientDone, "w1").await.done);
    }
    let books = books::read(&house.store, "vox:", &house.id).await;
    books.check_but(100_000, &[]).unwrap();
    assert_eq!((books.charged(), books.excess, books.drift()), (10_000, 1_000, 0));
}

/// A failover has forgotten who joined, and the store is hard to reach while that is found out: the audio is charged.
#[tokio::test(start_paused = true)]
async fn forgotten_joiner_is_charged_over_a_bad_line() {
    for seed in 0..8 {
        let (clock, faults) = (Arc::default(), Arc::new(Faults::new(seed, Rates::default())));
        let store: Store = Embedded::new(Clock::Manual(Arc::clone(&clock))).unwrap().into();
        let house = House::on(store.with_faults(faults.clone()), clock).await;
        let first = house.stream("s", 1_000).await;
        let replica = Backup::take(&house.store).await;
        let joiner = house.stream("s", 3_000).await;
        replica.restore(&house.store).await;
        faults.set(Rates { before: 700, ..Rates::default() });
        joiner.settle(Ending::ClientDone, "w1").await;
        house.quota.drain(Duration::from_secs(60)).await;
        faults.set(Rates::default());
        assert!(first.settle(Ending::ClientDone, "w1").await.done);
        let books = books::read(&house.store, "vox:", &house.id).await;
        assert_eq!((books.charged(), books.leases.len()), (4_000, 0), "seed {seed}");
    }
}

/// One stream alone that comes to more than its lease ever held is refused: the reaper charges what the store knows.
#[tokio::test(start_paused = true)]
async fn overrun_after_failover_is_reaped() {
    let house = House::new().await;
    let mut lease = house.stream("s", 6_000).await;
    let replica = Backup::take(&house.store).await;
    draw(&mut lease, 1_000).await;
    replica.restore(&house.store).await;
    draw(&mut lease, 4_000).await;
    assert_eq!(lease.settle(Ending::ClientDone, "w1").await.tally, units(11_000));
    house.pass(60);
    house.quota.reap_round().await.unwrap();
    let books = books::read(&house.store, "vox:", &house.id).await;
    books.check(100_000).unwrap();
    assert_eq!((books.charged(), books.leases.len()), (10_000, 0));
}

/// Counting and rebuilding while 16 streams open, draw and close: nothing differs, nothing is given away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_audit_is_steady_under_traffic() {
    let server = RedisServer::start(redis(), &[]);
    let store = RedisStore::new(&server.url()).unwrap().into();
    let house = Arc::new(House::on(store, Arc::default()).await);
    let mut account = house.account().await;
    (account.cap, account.share) = (Units::MAX, 8);
    house.quota.put_account(&account).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let streams = (0..16).map(|i| {
        let (house, stop) = (house.clone(), stop.clone());
        tokio::spawn(async move {
            for round in 0.. {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                house.bill(&format!("s{i}.{round}"), 10).await;
                tokio::time::sleep(Duration::from_millis(20)).await; // a pace, not a race
            }
        })
    });
    let streams: Vec<_> = streams.collect();
    let mut rows = 0;
    for _ in 0..10 {
        for period in house.quota.audit_deep(&house.id).await.unwrap() {
            assert_eq!(period.mismatches, [], "{}", period.period);
            rows = rows.max(period.totals.rows);
        }
        let period = house.period().await;
        assert!(house.quota.rebuild(&house.id, &period, true).await.is_ok());
    }
    stop.store(true, Ordering::SeqCst);
    for stream in streams {
        stream.await.unwrap();
    }
    assert!(rows > 0);
    assert_eq!(name("acme"), house.id);
}
