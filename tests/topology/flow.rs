//! All that money can do, on every shape of store and every kind of server; odd names through clusters.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::json;
use voxgate::ending::Ending;
use voxgate::quota::answer::Reaped;
use voxgate::quota::rebuild::Rebuilt;
use voxgate::quota::{Name, OpenError, Refusal};

use super::shapes::{CAP, Shape, Till, books_on};
use crate::harness::audio::noise_ms;
use crate::harness::client::LINEAR16;
use crate::harness::cluster::Cluster;
use crate::harness::gateway::{Gateway, Setup};
use crate::harness::polled;
use crate::harness::redis_server::{redis, store_binaries};
use crate::harness::scripted_worker::{Script, ScriptedWorker};
use crate::harness::sentinel::Sentinel;
use crate::money::house::{draw, name, units};

/// Opens, admits, refills, settles, tops up, ends, reaps, audits, rebuilds and lists, and compares every sum.
pub async fn whole_flow(url: &str, account: &str) {
    whole_flow_of(&Till::at(url, account).await).await;
}

/// The same in a room that is there already.
pub async fn whole_flow_of(till: &Till) {
    let (quota, id) = (&till.quota, &till.id);
    quota.check_schema().await.expect("a fresh store");

    let mut lease = till.open("long").await.expect("budget");
    for _ in 0..30 {
        draw(&mut lease, 500).await; // 15,000: more than the first envelope
    }
    lease.beat();
    assert!(lease.settle(Ending::ClientDone, "w").await.done);
    let id_of = name("invoice");
    let raised = quota.topup(id, &id_of, units(7), None).await.expect("raised");
    let again = quota.topup(id, &id_of, units(7), None).await.expect("repeated");
    assert_eq!((raised.sum, again.sum, again.replay), (units(7), units(7), true));
    sessions(till).await;
    let reaped = reaped_leases(till).await;

    let charged = 15_000 + 300 + reaped;
    let balance = quota.balance(&quota.account(id).await.expect("read").expect("there")).await.expect("read");
    assert_eq!((balance.settled, balance.held, balance.cap), (units(charged), units(0), units(CAP + 7)));
    look(till, charged).await;

    let budget = format!("vox:budget:{{{id}}}:{}", balance.period);
    quota.command(&["DEL", &budget]).await.expect("deleted");
    assert_eq!(till.open("x").await.err(), Some(OpenError::Refused(Refusal::Lost)));
    let rebuilt = quota.rebuild(id, &balance.period, false).await.expect("rebuilt");
    assert!(matches!(rebuilt, Rebuilt::Written { .. }), "{rebuilt:?}");
    look(till, charged).await;
    farewell(till).await;
}

/// A session with a cap of its own: made, capped, raised, used, ended.
async fn sessions(till: &Till) {
    let (quota, id) = (&till.quota, &till.id);
    let (key, session) = (name(&till.key.fingerprint), name("call"));
    quota.create_session(id, &key, &session, Some(units(300))).await.expect("made");
    let sid = format!("{key}.call");
    let mut lease = till.open("call").await.expect("budget");
    draw(&mut lease, 300).await;
    let refused = lease.admit(units(1)).await.expect("an answer");
    assert!(matches!(refused, voxgate::quota::Admission::Refuse { .. }), "{refused:?}");
    assert!(quota.raise_session_cap(id, &sid, None).await.expect("raised"));
    assert!(lease.settle(Ending::ClientDone, "w").await.done);
    assert!(quota.end_session(id, &sid).await.expect("ended").is_some());
    assert_eq!(till.open("call").await.err(), Some(OpenError::Refused(Refusal::Ended)));
}

/// A lease that nobody renews is closed by a round of the reaper, another one by force; gives what both were charged.
async fn reaped_leases(till: &Till) -> u32 {
    let hasty = till.hasty();
    let mut lost = hasty.open("lost").await.expect("budget");
    draw(&mut lost, 40).await;
    drop(lost);
    polled("a reaped lease", async || {
        let round = hasty.quota.reap_round().await.expect("a round");
        (round.closed == 1).then_some(())
    })
    .await;
    let mut forced = till.open("forced").await.expect("budget");
    draw(&mut forced, 2).await;
    drop(forced);
    let open = till.quota.open_leases(&till.id).await.expect("read");
    assert_eq!(open.len(), 1, "{open:?}");
    let done = till.quota.force_settle(&till.id, &open[0].member).await.expect("closed");
    assert!(matches!(done, Reaped::Closed { .. }), "{done:?}");
    42
}

/// Every way to look at the books agrees.
async fn look(till: &Till, charged: u32) {
    let (quota, id) = (&till.quota, &till.id);
    let audit = quota.audit(id).await.expect("an audit");
    assert_eq!((audit.drift, audit.outstanding.leases), (0, 0));
    let deep = quota.audit_deep(id).await.expect("a deep audit");
    assert!(deep.iter().all(|period| period.mismatches.is_empty()), "{deep:?}");
    let page = quota.ledger_page(id, None, 100).await.expect("rows");
    let sum: u64 = page.rows.iter().map(|row| row.charged.get()).sum();
    assert_eq!(sum, u64::from(charged), "{:?}", page.rows);
    assert!(quota.audit_round().await.expect("a round").accounts > 0);
    assert!(quota.probe().await.is_ok());
    assert!(quota.accounts().await.expect("a list").iter().any(|one| one.id == *id));
    assert_eq!(quota.keys(id).await.expect("a list").len(), 1);
    assert_eq!(quota.periods(id).await.expect("a list").len(), 1);
    let sessions = quota.sessions(id).await.expect("a list");
    assert_eq!(sessions.len(), 4, "{sessions:?}");
    assert!(quota.token_secret().await.expect("a secret").len() >= 32);
}

/// Frozen, thawed, its key revoked, deleted.
async fn farewell(till: &Till) {
    let (quota, id) = (&till.quota, &till.id);
    assert!(quota.set_frozen(id, true).await.expect("frozen"));
    assert_eq!(till.open("x").await.err(), Some(OpenError::Refused(Refusal::Frozen)));
    assert!(quota.set_frozen(id, false).await.expect("thawed"));
    assert!(quota.revoke_key(id, &name(&till.key.fingerprint)).await.expect("revoked"));
    assert!(quota.delete_account(id).await.expect("deleted").is_some());
    assert_eq!(quota.account(id).await.expect("an answer"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn money_flows_on_every_shape() {
    for binary in store_binaries() {
        for shape in Shape::all(&binary).await {
            whole_flow(&shape.url, "acme").await;
            println!("{}: {} connections by the proxy", shape.word, shape.proxy.connections());
            assert!(shape.proxy.connections() > 0, "{}: past the proxy", shape.word);
        }
    }
}

async fn on_a_full_cluster(binary: PathBuf) {
    let cluster = Cluster::start(&binary).await;
    let mut used = BTreeSet::new();
    for account in ["acme", "b", "c.d", "-", "_", ".", "..", "e-f", &"x".repeat(64)] {
        whole_flow(cluster.url(), account).await;
        used.insert(cluster.node_of(&format!("vox:ledger:{{{account}}}:d0")).await);
    }
    assert_eq!(used.len(), 3, "accounts lie on every primary");
    for node in &cluster.nodes[..3] {
        let errors = node.tell::<String>(&["INFO", "errorstats"]).await;
        assert!(!errors.contains("CROSSSLOT"), "{errors}");
        assert!(node.calls("evalsha").await > 0, "{node} was asked");
    }
    let watched = Sentinel::start(&binary).await;
    whole_flow(&watched.url(), "acme").await;
}

/// Three Sentinels, and three primaries on which accounts of every allowed name spread.
#[tokio::test(flavor = "multi_thread")]
async fn money_flows_on_full_topologies() {
    futures_util::future::join_all(store_binaries().into_iter().map(on_a_full_cluster)).await;
}

/// Names that could leave their hash tag never reach a store: they are refused at the door, the others share no key.
#[tokio::test(flavor = "multi_thread")]
async fn odd_names_never_cross_slots() {
    let cluster = Cluster::start(&redis()).await;
    let worker = ScriptedWorker::start(Script::default()).await;
    let gateway = Gateway::start(&Setup::on(cluster.url(), &[worker.url()])).await;
    let long = "y".repeat(512);
    let odd = ["a{b}c", "{}", "}{", "a:b", &long, "a\nb", "ä", "", "a b", "{a}"];
    for id in odd {
        let (status, body) =
            gateway.call("POST", "/v1/accounts", Some(json!({"id": id, "cap": 1000, "period": "day"}))).await;
        assert!((400..500).contains(&status), "{id:?}: {status} {body}");
        assert_eq!(Name::parse(id), None);
    }
    let key = gateway.account_with("a", 100_000, json!({"share": 1})).await;
    for session in odd.iter().filter(|session| !session.is_empty()) {
        let coded: String = form_urlencoded::byte_serialize(session.as_bytes()).collect();
        let refused = gateway.open(&format!("{LINEAR16}&session_id={coded}"), &key).await.err();
        assert_eq!(refused.map(|refusal| refusal.status), Some(400), "{session:?}");
    }
    for (number, session) in ["a", "A", "-", ".", "a.a", &"z".repeat(64)].into_iter().enumerate() {
        let mut client =
            gateway.open(&format!("{LINEAR16}&session_id={session}"), &key).await.expect("budget");
        assert!(client.audio(&noise_ms(number as u64, 100 + number)).await);
        assert_eq!(client.finish().await.metadata_ms(), 100 + number as u64, "{session}");
    }
    let books = books_on(&cluster.nodes[cluster.node_of("{a}").await], "a").await;
    books.check(100_000).unwrap();
    assert_eq!((books.sessions.len(), books.charged()), (6, 615));
    for node in &cluster.nodes {
        assert!(!node.tell::<String>(&["INFO", "errorstats"]).await.contains("CROSSSLOT"), "on {node}");
    }
}
