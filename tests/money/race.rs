//! Races for the same money: many sockets on one session, many opens on one budget, through two gateways at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::Barrier;
use voxgate::ending::Ending;
use voxgate::quota::answer::Admitted;
use voxgate::quota::store::redis::RedisStore;
use voxgate::quota::store::{Reply, Store};
use voxgate::quota::{
    Account, Admission, Key, Lease, Name, OpenError, Quota, Refusal, Settings, Terms, script,
};
use voxgate::units::Units;

use super::books;
use crate::harness::redis_server::{RedisServer, redis};

const PREFIX: &str = "vox:";

/// Two gateways with connections of their own to one server.
async fn gateways(server: &RedisServer) -> (Store, Vec<Quota>) {
    let store = || -> Store { RedisStore::new(&server.url()).unwrap().into() };
    let settings = || Settings { floor: Duration::from_millis(100), ..Settings::default() };
    (store(), vec![Quota::new(store(), settings()), Quota::new(store(), settings())])
}

async fn terms(quota: &Quota, cap: u32, share: u32, session: Option<&str>) -> Terms {
    let mut account = Account::new(Name::parse("acme").unwrap(), Units::from(cap));
    account.share = share;
    quota.put_account(&account).await.unwrap();
    let key = Key {
        fingerprint: String::new(),
        account: account.id.clone(),
        label: "race".into(),
        cap: None,
        session_cap: None,
        streams_max: 1000,
        models: Vec::new(),
        revoked: false,
    };
    let (_, key) = quota.add_key(key).await.unwrap();
    Terms {
        account: Arc::new(account),
        key: Arc::new(key),
        session: session.and_then(Name::parse),
        model: "m".into(),
        units_per_second: 1000,
        tags: String::new(),
    }
}

/// Draws until nothing is left; gives the units that were granted.
async fn drain(mut lease: Lease, cost: Units) -> i64 {
    let (mut granted, mut cost) = (0, cost);
    loop {
        match lease.admit(cost).await.expect("the store answers") {
            Admission::Grant => {
                lease.tally(cost);
                granted += cost.get() as i64;
            }
            Admission::Refuse { left, .. } if !left.is_zero() => cost = left,
            Admission::Refuse { .. } => break,
            Admission::Lapse => panic!("lapsed"),
        }
    }
    lease.settle(Ending::BudgetSpent, "w1").await;
    granted
}

/// 64 sockets of one session on two gateways, chunks at the same instants: the quota to the unit, never more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_session_never_oversells() {
    let server = RedisServer::start(redis(), &[]);
    let (store, gateways) = gateways(&server).await;
    let cap = 50_021;
    let terms = terms(&gateways[0], cap, 1, Some("shared")).await;
    let barrier = Arc::new(Barrier::new(64));
    let sockets = (0..64).map(|i| {
        let (quota, terms, barrier) = (gateways[i % 2].clone(), terms.clone(), barrier.clone());
        tokio::spawn(async move {
            let lease = quota.open(terms).await.expect("there is budget");
            barrier.wait().await;
            drain(lease, Units::from(20)).await
        })
    });
    let mut granted = 0;
    for socket in sockets.collect::<Vec<_>>() {
        granted += socket.await.unwrap();
    }
    for quota in &gateways {
        assert_eq!(quota.drain(Duration::from_secs(10)).await, 0);
    }
    let books = books::read(&store, PREFIX, &terms.account.id).await;
    books.check(i64::from(cap)).unwrap();
    assert_eq!(
        (granted, books.charged(), books.leases.len()),
        (i64::from(cap), i64::from(cap), 0),
        "{books:?}"
    );
    println!("64 sockets, 2 gateways, 1 session: {granted} of {cap} units admitted, {:?} leases", books.hows);
}

/// The same race with a client that reads, compares and writes: it must oversell, or the test above proves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn naive_check_then_take_oversells() {
    let server = RedisServer::start(redis(), &[]);
    let (store, _) = gateways(&server).await;
    books::command(&store, &["SET", "naive", "2000"]).await;
    let (barrier, taken) = (Arc::new(Barrier::new(64)), Arc::new(AtomicI64::new(0)));
    let sockets = (0..64).map(|_| {
        let (store, barrier, taken) =
            (RedisStore::new(&server.url()).unwrap(), barrier.clone(), taken.clone());
        let store: Store = store.into();
        tokio::spawn(async move {
            barrier.wait().await;
            while let Reply::Bulk(left) = books::command(&store, &["GET", "naive"]).await {
                if String::from_utf8(left).unwrap().parse::<i64>().unwrap() < 20 {
                    break;
                }
                books::command(&store, &["DECRBY", "naive", "20"]).await;
                taken.fetch_add(20, Ordering::SeqCst);
            }
        })
    });
    for socket in sockets.collect::<Vec<_>>() {
        socket.await.unwrap();
    }
    let taken = taken.load(Ordering::SeqCst);
    println!("naive GET, compare, DECRBY: {taken} of 2000 units");
    assert!(taken > 2000, "64 callers did not oversell: {taken}");
}

/// Opens 50 streams at one instant; gives those that opened.
async fn open_together(gateways: &[Quota], terms: &Terms) -> Vec<Lease> {
    let barrier = Arc::new(Barrier::new(50));
    let opens = (0..50).map(|i| {
        let (quota, terms, barrier) = (gateways[i % 2].clone(), terms.clone(), barrier.clone());
        tokio::spawn(async move {
            barrier.wait().await;
            quota.open(terms).await
        })
    });
    let mut open = Vec::new();
    for attempt in opens.collect::<Vec<_>>() {
        match attempt.await.unwrap() {
            Ok(lease) => open.push(lease),
            Err(OpenError::Refused(Refusal::Held { .. } | Refusal::Budget { .. })) => {}
            Err(other) => panic!("{other}"),
        }
    }
    open
}

/// With share 1 every stream takes a whole first envelope (10 s): 10 of them fit, 40 are refused and hold nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opens_fit_the_budget_exactly() {
    let server = RedisServer::start(redis(), &[]);
    let (store, gateways) = gateways(&server).await;
    let terms = terms(&gateways[0], 100_000, 1, None).await;
    let open = open_together(&gateways, &terms).await;
    let books = books::read(&store, PREFIX, &terms.account.id).await;
    books.check(100_000).unwrap();
    assert_eq!((open.len(), books.leases.len(), books.sessions.len()), (10, 10, 10), "{books:?}");
    for lease in open {
        assert!(lease.settle(Ending::ClientGone, "").await.done);
    }
    let books = books::read(&store, PREFIX, &terms.account.id).await;
    assert_eq!((books.charged(), books.leases.len()), (0, 0), "{books:?}");
}

/// With the usual share the grants shrink, and more streams open; never more is granted than there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_let_more_streams_in() {
    let server = RedisServer::start(redis(), &[]);
    let (store, gateways) = gateways(&server).await;
    let terms = terms(&gateways[0], 100_000, 8, None).await;
    let open = open_together(&gateways, &terms).await;
    let books = books::read(&store, PREFIX, &terms.account.id).await;
    books.check(100_000).unwrap();
    assert!(open.len() > 10 && books.leases.len() == open.len(), "{} open, {books:?}", open.len());
}

/// 20 callers at the same instant for one unit: one of them gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_unit_has_one_winner() {
    let server = RedisServer::start(redis(), &[]);
    let (store, gateways) = gateways(&server).await;
    for round in 0..20 {
        let key = format!("vox:quota:{{acme}}:s:{round}");
        books::command(&store, &["SET", &key, "1"]).await;
        let barrier = Arc::new(Barrier::new(20));
        let callers = (0..20).map(|_| {
            let (key, barrier) = (key.clone(), barrier.clone());
            let store: Store = RedisStore::new(&server.url()).unwrap().into();
            tokio::spawn(async move {
                store.command(&["PING"]).await.unwrap();
                barrier.wait().await;
                let reply = store.run(&script::ADMIT, &[&key], &["1"]).await.unwrap();
                Admitted::read(&reply).unwrap() == Admitted::Grant(Units::ZERO)
            })
        });
        let mut winners = 0;
        for caller in callers.collect::<Vec<_>>() {
            winners += usize::from(caller.await.unwrap());
        }
        assert_eq!(winners, 1, "round {round}");
    }
    drop(gateways);
}

/// One script call per verb: a lock would need three.
#[tokio::test]
async fn each_verb_is_one_round_trip() {
    let server = RedisServer::start(redis(), &[]);
    let (store, gateways) = gateways(&server).await;
    let terms = terms(&gateways[0], 100_000, 1, None).await;
    let calls = async || {
        let stats = books::text_of(&store, &["INFO", "commandstats"]).await.unwrap();
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap_or("0,");
        line.split(',').next().unwrap().parse::<u64>().unwrap()
    };
    // Once through, so that every script is loaded.
    let mut lease = gateways[0].open(terms.clone()).await.unwrap();
    assert_eq!(lease.admit(Units::from(20)).await.unwrap(), Admission::Grant);
    lease.settle(Ending::ClientDone, "w1").await;
    let before = calls().await;
    let mut lease = gateways[0].open(terms).await.unwrap();
    assert_eq!(calls().await - before, 1, "reserve");
    for _ in 0..10 {
        assert_eq!(lease.admit(Units::from(20)).await.unwrap(), Admission::Grant);
        lease.tally(Units::from(20));
    }
    assert_eq!(calls().await - before, 11, "admit");
    assert!(lease.settle(Ending::ClientDone, "w1").await.done);
    assert_eq!(calls().await - before, 12, "settle");
}
