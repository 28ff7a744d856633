//! What operators and backends do, and when it takes hold.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use voxgate::ending::Ending;
use voxgate::quota::answer::Reaped;
use voxgate::quota::{
    Admission, Made, OpenError, PeriodRule, Quota, Refusal, SCHEMA, SchemaError, TopupError,
};

use super::books::{self, command};
use super::house::{House, MIDNIGHT, a_key, draw, name, settings, units};

/// Ended: nothing new, and the live stream lapses at its next chunk; what it had admitted is charged.
#[tokio::test(start_paused = true)]
async fn ended_session_lapses_at_the_next_chunk() {
    let house = House::new().await;
    let mut lease = house.stream("s", 40).await;
    let ended = house.quota.end_session(&house.id, &house.sid("s")).await.unwrap().unwrap();
    assert_eq!((ended.closed, ended.charged, ended.stuck), (1, units(40), 0));
    assert_eq!(lease.admit(units(1)).await.unwrap(), Admission::Lapse);
    assert!(lease.settle(Ending::LeaseLapsed, "w1").await.done);
    assert_eq!(house.open("s").await.err(), Some(OpenError::Refused(Refusal::Ended)));
    assert!(house.quota.session(&house.id, &house.sid("s")).await.unwrap().unwrap().ended);
    assert_eq!(house.quota.end_session(&house.id, "nobody.here").await.unwrap(), None);
    let books = books::read(&house.store, "vox:", &house.id).await;
    books.check(100_000).unwrap();
    assert_eq!(books.charged(), 40);
}

/// A backend makes a session with a cap of its own, and raises it.
#[tokio::test(start_paused = true)]
async fn made_session_keeps_its_cap() {
    let house = House::new().await;
    let (key, session) = (name(&house.key.fingerprint), name("call"));
    let make = |cap| house.quota.create_session(&house.id, &key, &session, Some(units(cap)));
    assert_eq!(make(500).await.unwrap(), Made::Made);
    assert_eq!(make(500).await.unwrap(), Made::Again);
    assert_eq!(make(600).await.unwrap(), Made::Exists);
    let mut lease = house.stream("call", 500).await;
    let refused = lease.admit(units(1)).await.unwrap();
    let why = Refusal::Session { left: units(0) };
    assert_eq!(refused, Admission::Refuse { left: units(0), why });
    assert!(lease.settle(Ending::SessionSpent, "w1").await.done);
    let sid = house.sid("call");
    assert!(house.quota.raise_session_cap(&house.id, &sid, Some(units(700))).await.unwrap());
    house.bill("call", 200).await;
    let seen = house.quota.sessions(&house.id).await.unwrap();
    assert_eq!((seen.len(), seen[0].used, seen[0].cap), (1, units(700), Some(units(700))));
    assert!(!house.quota.raise_session_cap(&house.id, "no.body", None).await.unwrap());
    books::read(&house.store, "vox:", &house.id).await.check(100_000).unwrap();
}

/// The queue of open leases shows who holds what, and one of them can be closed by hand.
#[tokio::test(start_paused = true)]
async fn open_leases_can_be_forced_closed() {
    let house = House::new().await;
    let _lease = house.stream("s", 40).await;
    let leases = house.quota.open_leases(&house.id).await.unwrap();
    assert_eq!((leases.len(), &*leases[0].session, leases[0].held), (1, "s", units(10_000)));
    assert_eq!(leases[0].deadline_ms, Some(MIDNIGHT * 1000 + 45_000));
    let forced = house.quota.force_settle(&house.id, &leases[0].member).await.unwrap();
    assert!(matches!(forced, Reaped::Closed { how, bill } if how == "forced" && bill.charged == units(40)));
    assert_eq!(house.quota.open_leases(&house.id).await.unwrap(), []);
}

/// Quarantine ends once the corrupt key is gone and somebody closes the lease.
#[tokio::test(start_paused = true)]
async fn quarantined_lease_can_be_forced_closed() {
    let house = House::new().await;
    let _lease = house.stream("s", 40).await;
    let quota = house.keys.quota(&house.id, &house.sid("s"), 1);
    command(&house.store, &["SET", &quota, "x"]).await;
    house.pass(60);
    assert_eq!(house.quota.reap_round().await.unwrap().quarantined, 1);
    let leases = house.quota.open_leases(&house.id).await.unwrap();
    assert_eq!(leases[0].deadline_ms, None);
    let still = house.quota.force_settle(&house.id, &leases[0].member).await.unwrap();
    assert_eq!(still, Reaped::Corrupt(quota.clone()));
    command(&house.store, &["DEL", &quota]).await;
    let closed = house.quota.force_settle(&house.id, &leases[0].member).await.unwrap();
    assert!(matches!(closed, Reaped::Closed { how, .. } if how == "blind"));
    books::read(&house.store, "vox:", &house.id).await.check(100_000).unwrap();
}

/// Frozen: nothing new; thawed: as before.
#[tokio::test(start_paused = true)]
async fn frozen_account_thaws() {
    let house = House::new().await;
    assert!(house.quota.set_frozen(&house.id, true).await.unwrap());
    assert_eq!(house.open("s").await.err(), Some(OpenError::Refused(Refusal::Frozen)));
    assert!(house.quota.set_frozen(&house.id, false).await.unwrap());
    house.bill("s", 1).await;
    assert!(!house.quota.set_frozen(&name("nobody"), true).await.unwrap());
    assert_eq!(house.quota.account(&name("nobody")).await.unwrap(), None, "a flag makes no account");
}

/// A revoked key ends its live streams with their next heartbeat.
#[tokio::test(start_paused = true)]
async fn revoked_key_ends_live_streams() {
    let house = House::new().await;
    let mut lease = house.stream("s", 40).await;
    assert!(house.quota.revoke_key(&house.id, &name(&house.key.fingerprint)).await.unwrap());
    assert!(!house.quota.revoke_key(&house.id, &name("0123456789abcdef")).await.unwrap());
    lease.beat();
    assert_eq!(lease.ended().await, Ending::Revoked);
    assert!(lease.settle(Ending::Revoked, "w1").await.done);
    assert_eq!(books::read(&house.store, "vox:", &house.id).await.charged(), 40);
}

/// Deleted with a live stream: it lapses, the ledger stays; the name's next account is clean, but spends no cap twice.
#[tokio::test(start_paused = true)]
async fn deleted_account_leaves_only_its_books() {
    let mut house = House::new().await;
    let mut lease = house.stream("s", 40).await;
    let account = house.account().await;
    house.quota.topup(&house.id, &name("t1"), units(50), None).await.unwrap();
    let deleted = house.quota.delete_account(&house.id).await.unwrap().unwrap();
    assert_eq!((deleted.closed, deleted.charged, deleted.stuck), (1, units(40), 0));
    assert_eq!(lease.admit(units(1)).await.unwrap(), Admission::Lapse);
    lease.beat();
    assert_eq!(lease.ended().await, Ending::Revoked);
    assert!(lease.settle(Ending::Revoked, "w1").await.done);
    assert_eq!(house.quota.account(&house.id).await.unwrap(), None);
    assert_eq!(house.quota.delete_account(&house.id).await.unwrap(), None);
    house.quota.put_account(&account).await.unwrap();
    assert_eq!(house.quota.keys(&house.id).await.unwrap(), []);
    assert_eq!(house.quota.sessions(&house.id).await.unwrap(), []);
    let balance = house.quota.balance(&house.account().await).await.unwrap();
    assert_eq!((balance.cap, balance.taken, balance.leases), (units(100_000), units(40), 0));
    house.key = std::sync::Arc::new(house.quota.add_key(a_key(&house.id)).await.unwrap().1);
    house.bill("s", 5).await;
    let books = books::read(&house.store, "vox:", &house.id).await;
    books.check(100_000).unwrap();
    assert_eq!(books.charged(), 45);
}

/// Once per id, for the running period or the next one.
#[tokio::test(start_paused = true)]
async fn topup_raises_one_period_once() {
    let house = House::new().await;
    let (running, next) = (house.period().await, format!("s20.{}", MIDNIGHT + 20));
    let topup = async |id, amount, period| {
        let topup = house.quota.topup(&house.id, &name(id), units(amount), period).await;
        topup.map(|topup| (topup.period, topup.sum, topup.replay))
    };
    assert_eq!(topup("a", 50, None).await, Ok((running.clone(), units(50), false)));
    assert_eq!(topup("a", 50, None).await, Ok((running.clone(), units(50), true)));
    assert_eq!(topup("a", 51, None).await, Err(TopupError::Conflict));
    assert_eq!(topup("b", 7, Some(&next)).await, Ok((next.clone(), units(7), false)));
    assert_eq!(topup("c", 7, Some("d1")).await, Err(TopupError::Period("d1".into())));
    assert_eq!(topup("c", 0, None).await, Err(TopupError::Amount));
    let cap = async || house.quota.balance(&house.account().await).await.unwrap().cap;
    assert_eq!(cap().await, units(100_050));
    house.bill("s", 1).await;
    house.pass(20);
    house.bill("t", 1).await;
    assert_eq!(cap().await, units(100_007));
}

/// A live stream on a gateway that only knows the old plan: no second is paid from two budgets.
#[tokio::test(start_paused = true)]
async fn live_streams_follow_a_new_plan() {
    let house = House::new().await;
    let stale = house.terms("old").await;
    let mut lease = house.stream("s", 9_000).await;
    let mut account = house.account().await;
    (account.period, account.zone, account.cap) = (PeriodRule::Hour, "Asia/Kolkata".into(), units(40_000));
    house.quota.put_account(&account).await.unwrap();
    let balance = house.quota.balance(&house.account().await).await.unwrap();
    assert_eq!((&*balance.period, balance.cap), (&*format!("s20.{MIDNIGHT}"), units(100_000)));
    house.pass(25);
    let other = Quota::new(house.store.clone(), settings());
    let second = other.open(stale).await.unwrap();
    for _ in 0..3 {
        draw(&mut lease, 900).await;
    }
    assert!(second.settle(Ending::ClientDone, "w1").await.done);
    assert!(lease.settle(Ending::ClientDone, "w1").await.done);
    let balance = house.quota.balance(&house.account().await).await.unwrap();
    let (period, end) = (format!("h{}", MIDNIGHT + 20), i64::try_from(MIDNIGHT).unwrap() + 1800);
    assert_eq!((&*balance.period, balance.ends_at, balance.cap), (&*period, end, units(40_000)));
    let books = books::read(&house.store, "vox:", &house.id).await;
    books.check(100_000).unwrap();
    assert_eq!(books.periods.keys().collect::<Vec<_>>(), [&period, &format!("s20.{MIDNIGHT}")]);
    assert_eq!(books.charged(), 11_700);
}

/// Written once; a newer or foreign one is refused.
#[tokio::test(start_paused = true)]
async fn newer_schema_is_refused() {
    let house = House::new().await;
    assert_eq!(house.quota.check_schema().await, Ok(SCHEMA));
    assert_eq!(house.quota.check_schema().await, Ok(SCHEMA));
    command(&house.store, &["SET", "vox:schema", "99"]).await;
    assert_eq!(house.quota.check_schema().await, Err(SchemaError::Newer { found: 99 }));
    command(&house.store, &["SET", "vox:schema", "hello"]).await;
    let foreign = house.quota.check_schema().await;
    assert!(
        matches!(foreign, Err(SchemaError::Foreign { ref found, .. }) if found == "hello"),
        "{foreign:?}"
    );
    assert_eq!(books::text_of(&house.store, &["GET", "vox:schema"]).await.as_deref(), Some("hello"));
}

/// Gateways whose own clocks are years off agree with the store, and so with each other, on the period.
#[tokio::test(start_paused = true)]
async fn skewed_gateways_agree_on_the_period() {
    let house = House::new().await;
    for years in [0, 20, 40] {
        house.clock.store((MIDNIGHT + years * 365 * 86_400) * 1_000_000, std::sync::atomic::Ordering::SeqCst);
        let terms = house.terms("s").await;
        for _ in 0..2 {
            let gateway = Quota::new(house.store.clone(), settings());
            let lease = gateway.open(terms.clone()).await.unwrap();
            let balance = gateway.balance(&terms.account).await.unwrap();
            assert_eq!(balance.period, format!("s20.{}", MIDNIGHT + years * 365 * 86_400));
            assert!(lease.settle(Ending::ClientDone, "w1").await.done);
        }
    }
    books::read(&house.store, "vox:", &house.id).await.check(100_000).unwrap();
}

/// An account that a failover forgot among the active ones is still reaped by the gateway that served it.
#[tokio::test(start_paused = true)]
async fn forgotten_active_account_is_reaped() {
    let house = House::new().await;
    let _lease = house.stream("s", 40).await;
    let [active, ..] = house.keys.active_places(&house.id);
    command(&house.store, &["DEL", &active]).await;
    house.pass(60);
    assert_eq!(house.quota.reap_round().await.unwrap().closed, 1);
    assert!(books::text_of(&house.store, &["ZSCORE", &active, "acme"]).await.is_some(), "entered again");
}

/// The store's clock jumps an hour: living streams renew before anybody reaps them, dead ones are reaped after.
#[tokio::test(start_paused = true)]
async fn clock_jump_reaps_no_living_stream() {
    let house = House::new().await;
    let (mut living, _dead) = (house.stream("living", 40).await, house.stream("dead", 40).await);
    let stop = CancellationToken::new();
    let reaper = tokio::spawn({
        let (quota, stop) = (house.quota.clone(), stop.clone());
        async move { quota.reap_until(stop).await }
    });
    for second in 0..120 {
        house.pass(if second == 30 { 3600 } else { 1 });
        // Time is paused: this only lets the reaper and heartbeats run.
        assert!(tokio::time::timeout(Duration::from_secs(1), living.ended()).await.is_err());
        if second % 10 == 0 {
            living.beat();
        }
    }
    stop.cancel();
    reaper.await.unwrap();
    draw(&mut living, 5).await;
    let leases = house.quota.open_leases(&house.id).await.unwrap();
    assert_eq!(leases.iter().map(|lease| &*lease.session).collect::<Vec<_>>(), ["living"]);
    assert!(living.settle(Ending::ClientDone, "w1").await.done);
    assert_eq!(books::read(&house.store, "vox:", &house.id).await.charged(), 85);
}
