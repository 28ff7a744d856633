//! What a server in a bad moment answers to a script, and that nothing was taken then.

use voxgate::quota::answer::Admitted;
use voxgate::quota::script;
use voxgate::quota::store::redis::RedisStore;
use voxgate::quota::store::{Charge, Script, Store, StoreError};

use super::bench::units;
use crate::harness::redis_server::{RedisServer, redis, store_binaries};

const KEY: &str = "vox:quota:{acme}:s:1";

async fn admit(store: &Store) -> Result<Admitted, StoreError> {
    Admitted::read(&store.run(&script::ADMIT, &[KEY], &["5"]).await?)
}

/// A replica decides nothing, not even a refusal: its data may be old.
#[tokio::test]
async fn replicas_decide_nothing() {
    let primary = RedisServer::start(redis(), &[]);
    let of = format!("127.0.0.1 {}", primary.port);
    let replica = RedisServer::start(redis(), &["--replicaof", &of]);
    let store: Store = RedisStore::new(&replica.url()).unwrap().into();
    for script in script::all().into_iter().filter(|script| script.name != "audit") {
        let error = store.run(script, &[KEY], &["5"]).await.unwrap_err();
        assert!(matches!(error, StoreError::Away(_)), "{}: {error}", script.name);
        assert_eq!(error.charge(), Charge::None);
    }
}

/// A long script is not ended by the store: others hear BUSY meanwhile, and nothing of theirs has run.
#[tokio::test]
async fn busy_store_took_nothing() {
    for binary in store_binaries() {
        let server = RedisServer::start(binary, &["--busy-reply-threshold", "10"]);
        let (store, other): (Store, Store) =
            (RedisStore::new(&server.url()).unwrap().into(), RedisStore::new(&server.url()).unwrap().into());
        store.command(&["SET", KEY, "100"]).await.unwrap();
        assert_eq!(admit(&store).await, Ok(Admitted::Grant(units(95))));
        let spin = Script::new("spin", "for i = 1, 50000000 do end return 1".to_owned());
        let spinning = tokio::spawn(async move { other.run(&spin, &[], &[]).await });
        let (mut granted, mut busy) = (1, 0);
        while !spinning.is_finished() {
            match admit(&store).await {
                Ok(Admitted::Grant(_)) => granted += 1,
                Ok(Admitted::Refuse(_)) => break,
                Err(StoreError::Busy) => busy += 1,
                other => panic!("on {server}: {other:?}"),
            }
        }
        let _ = spinning.await;
        let left = store.run(&script::ADMIT, &[KEY], &["1"]).await.map(|reply| Admitted::read(&reply));
        println!("{server}: {busy} times BUSY, {granted} grants");
        let expected = units(100 - 5 * granted);
        let exact =
            matches!(left, Ok(Ok(Admitted::Grant(left))) if left.saturating_add(units(1)) == expected);
        assert!(exact || expected == units(0), "on {server}: {left:?}, {granted} grants");
    }
}
