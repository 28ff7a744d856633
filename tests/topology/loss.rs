//! What a failover may forget: writes that no replica had yet. Told to the unit, or kept from happening by waiting.

use std::time::Duration;

use voxgate::quota::store::Store;
use voxgate::quota::{Quota, Settings};

use super::crowd::Stage;
use super::shapes::books_on;
use crate::harness::polled;
use crate::harness::redis_server::{RedisServer, redis};
use crate::harness::sentinel::Sentinel;
use crate::money::house::name;

const STREAMS: usize = 20;
/// Small envelopes: each stream reserves anew about every second.
const SMALL: &str = "[quota]\nenvelope_first = \"1s\"\nenvelope_longest = \"1s\"\n";

/// A lease that only the dead primary knew is gone; who asks for the next one may meet numbers that are taken back, and
/// gives up after a few.
const FORGOTTEN: [&str; 2] = ["QUOTA-0003", "QUOTA-0002"];

/// The primary freezes, is replaced, and wakes up still believing: what it answers then moves nobody's money.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_primary_is_replaced() {
    let watched = Sentinel::start(&redis()).await;
    let stage = Stage::on(&watched.url(), SMALL).await;
    let key = stage.account("a").await;
    let crowd = stage.crowd(&key, STREAMS, 9000).await;
    polled("audio on its way", async || (stage.forwarded() >= 20_000).then_some(())).await;

    let old = watched.primary().await;
    watched.data[old].sigstop();
    watched.failed_over(old).await;
    let failovers = async || stage.gateway.metric("voxgate_store_failovers_total", &[]).await;
    polled("the new primary", async || (failovers().await > 0.0).then_some(())).await;
    watched.data[old].sigcont();
    let after = crowd.over().await;

    println!(
        "frozen: ended {:?}, {} doubts",
        after.ends,
        stage.gateway.metric("voxgate_doubts_total", &[]).await
    );
    after.check();
    stage.settled("a").await;
    let new = watched.primary().await;
    stage.check(after.admitted, &[books_on(&watched.data[new], "a").await]).await;
    watched.follows(old).await;
}

/// Replicas are thrown out and can't come back: what is written from now on only this server has.
async fn deafen_replicas(primary: &mut RedisServer) {
    primary.tell::<()>(&["CONFIG", "SET", "requirepass", "secret"]).await;
    primary.login = Some(":secret".to_owned());
    primary.tell::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]).await;
}

/// Units that a failover took with it.
#[derive(Debug, PartialEq, Eq)]
struct Forgotten {
    /// Counted as unrecoverable.
    told: i64,
    /// In leases that were opened and closed where no replica heard of it.
    untold: i64,
    /// Forwarded since just before no replica heard anything: there was no more to forget.
    most: i64,
}

/// Replicas hear nothing for a while, then the primary dies.
async fn cut_off(store_more: &str) -> Forgotten {
    let mut watched = Sentinel::start(&redis()).await;
    let stage = Stage::with(&watched.url(), store_more, SMALL).await;
    let key = stage.account("a").await;
    let crowd = stage.crowd(&key, STREAMS, 9000).await;
    polled("audio on its way", async || (stage.forwarded() >= 20_000).then_some(())).await;

    let old = watched.primary().await;
    let heard = stage.forwarded();
    deafen_replicas(&mut watched.data[old]).await;
    let taken = watched.data[old].calls("decrby").await;
    tokio::time::sleep(Duration::from_millis(1500)).await; // how long the replicas are deaf
    let unheard = watched.data[old].calls("decrby").await - taken;
    watched.data[old].kill();
    watched.failed_over(old).await;
    let after = crowd.over().await;

    println!("cut off ({store_more:?}): {unheard} admits that no replica heard; ended {:?}", after.ends);
    assert!(unheard > 0, "something was there to be lost");
    after.check_but_for(&FORGOTTEN);
    let pending = async || stage.gateway.metric("voxgate_settles_pending", &[]).await;
    polled("answered settles", async || (pending().await == 0.0).then_some(())).await;
    let new = watched.primary().await;
    reap_now(&watched.data[new]).await;
    let untold = stage.untold(after.admitted, &[books_on(&watched.data[new], "a").await]).await;
    let most = (stage.forwarded() - heard) as i64;
    Forgotten { told: stage.unrecoverable().await as i64, untold, most }
}

/// What the reaper does after a lease's deadline, which is longer than a test may take: leases whose settle only the dead
/// primary knew are closed by what is known of them.
async fn reap_now(server: &RedisServer) {
    let quota = Quota::new(Store::open(&server.url()).expect("a valid URL"), Settings::default());
    for lease in quota.open_leases(&name("a")).await.expect("a list") {
        quota.force_settle(&name("a"), &lease.member).await.expect("closed");
    }
}

/// A failover forgets no more than what was forwarded while no replica heard of it; where a replica is waited for, it
/// forgets nothing, and no stream ends.
#[tokio::test(flavor = "multi_thread")]
async fn forgotten_writes_are_bounded() {
    let (bare, safe) = tokio::join!(cut_off(""), cut_off("wait_replicas = 1\n"));
    println!("{bare:?} without waiting, {safe:?} with one replica waited for");
    assert!(bare.told >= 0 && bare.untold >= 0 && bare.told + bare.untold <= bare.most, "{bare:?}");
    assert_eq!((safe.told, safe.untold), (0, 0), "a reserve or settle that no replica had did not count");
}
