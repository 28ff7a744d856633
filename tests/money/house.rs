//! One account on a fresh store, and short ways to stream, settle and look.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use voxgate::ending::Ending;
use voxgate::quota::keys::Keys;
use voxgate::quota::store::Store;
use voxgate::quota::store::embedded::{Clock, Embedded};
use voxgate::quota::{Account, Admission, Key, Lease, Name, OpenError, PeriodRule, Quota, Settings, Terms};
use voxgate::units::Units;

/// An account of 100,000 units per 20 s on an in-process store whose clock stands still.
pub struct House {
    pub store: Store,
    pub clock: Arc<AtomicU64>,
    pub quota: Quota,
    pub keys: Keys,
    pub id: Name,
    pub key: Arc<Key>,
}

/// A second in which a period of 20 s, an hour and a day begin.
pub const MIDNIGHT: u64 = 1_764_460_800;

pub fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

pub fn units(units: u32) -> Units {
    Units::from(units)
}

pub fn settings() -> Settings {
    Settings { floor: Duration::from_millis(100), ..Settings::default() }
}

pub fn a_key(account: &Name) -> Key {
    Key {
        fingerprint: String::new(),
        account: account.clone(),
        label: "house".into(),
        cap: None,
        session_cap: None,
        streams_max: 1000,
        models: Vec::new(),
        revoked: false,
    }
}

impl House {
    pub async fn new() -> Self {
        let clock = Arc::new(AtomicU64::new(MIDNIGHT * 1_000_000));
        let store: Store = Embedded::new(Clock::Manual(clock.clone())).unwrap().into();
        Self::on(store, clock).await
    }

    pub async fn on(store: Store, clock: Arc<AtomicU64>) -> Self {
        let quota = Quota::new(store.clone(), settings());
        let mut account = Account::new(name("acme"), units(100_000));
        (account.period, account.share) = (PeriodRule::Fixed(20), 1);
        quota.put_account(&account).await.unwrap();
        let key = quota.add_key(a_key(&account.id)).await.unwrap().1;
        Self { store, clock, quota, keys: Keys::new("vox:"), id: account.id, key: Arc::new(key) }
    }

    pub fn pass(&self, seconds: u64) {
        self.clock.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }

    pub async fn account(&self) -> Account {
        self.quota.account(&self.id).await.unwrap().unwrap()
    }

    pub async fn terms(&self, session: &str) -> Terms {
        Terms {
            account: Arc::new(self.account().await),
            key: self.key.clone(),
            session: Some(name(session)),
            model: "m".into(),
            units_per_second: 1000,
            tags: "t".into(),
        }
    }

    pub async fn open(&self, session: &str) -> Result<Lease, OpenError> {
        self.quota.open(self.terms(session).await).await
    }

    /// Opens a stream that has handed over so much.
    pub async fn stream(&self, session: &str, cost: u32) -> Lease {
        let mut lease = self.open(session).await.unwrap();
        draw(&mut lease, cost).await;
        lease
    }

    /// One whole stream.
    pub async fn bill(&self, session: &str, cost: u32) {
        let lease = self.stream(session, cost).await;
        assert!(lease.settle(Ending::ClientDone, "w1").await.done);
    }

    pub fn sid(&self, session: &str) -> String {
        format!("{}.{session}", self.key.fingerprint)
    }

    pub async fn period(&self) -> String {
        self.quota.balance(&self.account().await).await.unwrap().period
    }

    pub async fn budget(&self) -> String {
        self.keys.budget(&self.id, &self.period().await)
    }
}

pub async fn draw(lease: &mut Lease, cost: u32) {
    assert_eq!(lease.admit(units(cost)).await.unwrap(), Admission::Grant);
    lease.tally(units(cost));
}

/// A worker that takes its time: meanwhile the stream hears its background work, beats and would like to rest.
pub async fn deliver_slowly(lease: &mut Lease) {
    lease.beat();
    for _ in 0..20 {
        tokio::select! { biased;
            _ = lease.ended() => return,
            () = tokio::task::yield_now() => {}
        }
    }
    lease.beat();
    assert!(!lease.rest(), "nothing is left under a grant");
}

/// Short times, so that a walk sees many leases end.
pub fn walk_settings(prefix: &str) -> Settings {
    Settings {
        prefix: prefix.into(),
        envelope_first: Duration::from_millis(200),
        envelope_longest: Duration::from_millis(1600),
        floor: Duration::from_millis(50),
        lifetime: Duration::from_millis(400),
        hold: Duration::from_millis(300),
        ..Settings::default()
    }
}
