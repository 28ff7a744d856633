//! The breaker's states, by hand and on a clock that stands still.

use super::*;
use crate::quota::Settings;
use crate::quota::store::Store;

fn quota() -> Quota {
    Quota::new(Store::open("embedded").unwrap(), Settings::default())
}

fn fail(quota: &Quota, lane: Lane) {
    quota.0.breaker.begin(lane).done::<()>(&Err(StoreError::Busy));
}

fn work(quota: &Quota, lane: Lane) {
    quota.0.breaker.begin(lane).done(&Ok(()));
}

async fn fail_for_a_while(quota: &Quota, lane: Lane) {
    for _ in 0..BREAKER_FAILURES {
        fail(quota, lane);
        tokio::time::advance(BREAKER_AFTER / (BREAKER_FAILURES - 1)).await;
    }
}

async fn passes(gate: &mut Gate) -> bool {
    gate.pass(std::future::ready(())).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn one_lost_connection_opens_nothing() {
    let quota = quota();
    for _ in 0..100 {
        fail(&quota, Lane::Admit);
    }
    work(&quota, Lane::Admit);
    tokio::time::advance(BREAKER_AFTER).await;
    fail(&quota, Lane::Admit);
    assert!(passes(&mut quota.gate()).await);
}

#[tokio::test(start_paused = true)]
async fn moving_slot_opens_nothing() {
    let quota = quota();
    for _ in 0..=BREAKER_FAILURES {
        let moving = StoreError::from_text("TRYAGAIN Multiple keys request during rehashing of slot");
        quota.0.breaker.begin(Lane::Reserve).done::<()>(&Err(moving));
        tokio::time::advance(BREAKER_AFTER).await;
    }
    assert!(passes(&mut quota.gate()).await);
}

#[tokio::test(start_paused = true)]
async fn failing_verb_opens_and_closes() {
    let quota = quota();
    fail_for_a_while(&quota, Lane::Reserve).await;
    assert_eq!(quota.gate().pass(std::future::pending::<()>()).await, Err(Unasked::Shut));
    work(&quota, Lane::Admit);
    work(&quota, Lane::Command);
    assert!(!passes(&mut quota.gate()).await, "admits work, reserves need not");
    work(&quota, Lane::Reserve);
    assert!(passes(&mut quota.gate()).await);
}

/// The probe reserves nothing: where it always was well, one new stream at a time tries.
#[tokio::test(start_paused = true)]
async fn blind_probe_lets_one_trial_through() {
    let quota = quota();
    fail_for_a_while(&quota, Lane::Reserve).await;
    quota.0.breaker.probed(true);
    let (mut trial, mut other) = (quota.stream_gate(), quota.stream_gate());
    assert!(passes(&mut trial).await && !passes(&mut other).await && passes(&mut trial).await);
    drop(trial);
    assert!(passes(&mut other).await, "the next trial");
    quota.0.breaker.probed(false);
    assert!(!passes(&mut quota.stream_gate()).await, "open again");
    quota.0.breaker.probed(true);
    assert!(passes(&mut quota.gate()).await, "a probe that failed and works again is enough");
}

#[tokio::test(start_paused = true)]
async fn silence_opens_and_wakes_who_waits() {
    let quota = quota();
    let breaker = &quota.0.breaker;
    let pending = breaker.begin(Lane::Other);
    tokio::time::advance(BREAKER_SLOW / 2).await;
    breaker.look();
    let mut gate = quota.gate();
    let watch = async {
        assert!(!breaker.broken.load(Ordering::Relaxed), "too early");
        tokio::time::sleep(BREAKER_SLOW / 2 + Duration::from_millis(2)).await;
        breaker.look();
    };
    let (answer, ()) = tokio::join!(gate.pass(std::future::pending::<()>()), watch);
    assert_eq!(answer, Err(Unasked::Shut));
    assert!(gate.until > Instant::now(), "woken, not timed out");
    assert!(breaker.broken.load(Ordering::Relaxed));
    pending.done(&Ok(()));
    assert!(breaker.broken.load(Ordering::Relaxed), "that answer was late");
    work(&quota, Lane::Reserve);
    assert!(!breaker.broken.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn new_work_waits_one_patience() {
    let quota = quota();
    let (start, mut gate) = (Instant::now(), quota.gate());
    assert!(gate.pass(tokio::time::sleep(STORE_PATIENCE / 2)).await.is_ok());
    assert!(gate.pass(std::future::pending::<()>()).await.is_err());
    assert_eq!(start.elapsed().as_millis(), STORE_PATIENCE.as_millis());
}

/// They reserve nothing, so they could only keep streams from trying; and a token comes before its stream.
#[tokio::test(start_paused = true)]
async fn look_ups_are_never_the_trial() {
    let quota = quota();
    fail_for_a_while(&quota, Lane::Reserve).await;
    assert!(!passes(&mut quota.gate()).await, "open for all");
    quota.0.breaker.probed(true);
    let mut look_ups = [quota.gate(), quota.gate()];
    for gate in &mut look_ups {
        assert!(passes(gate).await && passes(gate).await);
    }
    let (mut trial, mut other) = (quota.stream_gate(), quota.stream_gate());
    assert!(passes(&mut trial).await && !passes(&mut other).await);
    drop(look_ups);
    assert!(!passes(&mut other).await, "nobody else's gate ends the trial");
}

#[tokio::test(start_paused = true)]
async fn remembered_primaries_are_no_answer() {
    let quota = quota();
    for _ in 0..BREAKER_FAILURES {
        fail(&quota, Lane::Command);
        assert_eq!(quota.shards().await.map(|shards| shards.len()), Ok(1));
        tokio::time::advance(BREAKER_AFTER).await;
    }
    assert!(!passes(&mut quota.gate()).await);
}

#[tokio::test(start_paused = true)]
async fn first_sign_calls_for_probes() {
    let quota = quota();
    let breaker = &quota.0.breaker;
    fail(&quota, Lane::Reserve);
    assert!(!breaker.suspects(), "no probe could tell that reserves work again");
    fail(&quota, Lane::Command);
    assert!(breaker.suspects());
    quota.probe().await.unwrap();
    assert!(!breaker.suspects(), "a good probe is a good answer");
    let pending = breaker.begin(Lane::Other);
    tokio::time::advance(BREAKER_SLOW / 2 + Duration::from_millis(2)).await;
    assert!(breaker.suspects() && !breaker.silent_for(BREAKER_SLOW));
    drop(pending);
    assert!(!breaker.suspects());
}

/// Readiness probes once a second: its first failure is enough to look closer, before anybody wants a stream.
#[tokio::test]
async fn one_failed_probe_finds_the_outage() {
    let quota = Quota::new(Store::open("redis://127.0.0.1:1").unwrap(), Settings::default());
    let shard = quota.shards().await.unwrap().remove(0);
    quota.probe_on(&shard).await.unwrap_err();
    assert!(passes(&mut quota.gate()).await, "one failure opens nothing");
    let mut shut = quota.0.breaker.shut.subscribe();
    let opened = async {
        tokio::select! {
            () = quota.mend_until(CancellationToken::new()) => {}
            opened = shut.wait_for(|shut| *shut) => assert!(opened.is_ok()),
        }
    };
    tokio::time::timeout(Duration::from_secs(20), opened).await.unwrap();
    assert!(!passes(&mut quota.stream_gate()).await);
}
