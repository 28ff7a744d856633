//! The store's clock, as this process knows it: what it last told, carried on by our monotonic clock. A wrong or
//! jumping wall clock never shows in it. Decides nothing about money.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::Quota;
use super::accounts::text;
use super::store::{Reply, StoreError};
use crate::limits;

/// What the store last told of its time.
#[derive(Debug, Default)]
pub(super) struct Clock(Mutex<Option<(Instant, u64)>>);

impl Clock {
    /// Takes over what an answer of the store says, in unix milliseconds.
    pub(super) fn heard(&self, now_ms: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), now_ms));
    }

    /// The store's time, unless it was told too long ago.
    fn now_ms(&self) -> Option<u64> {
        let (at, told) = (*self.0.lock().unwrap_or_else(PoisonError::into_inner))?;
        let since = at.elapsed();
        (since < limits::STORE_TIME_AGE).then(|| told.saturating_add(super::ms(since)))
    }
}

impl Quota {
    /// The store's time, unix milliseconds: the same for all gateways on one store, whatever their own clocks say.
    /// Asks the store when it has not been heard for [`limits::STORE_TIME_AGE`].
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn store_now_ms(&self) -> Result<u64, StoreError> {
        if let Some(now) = self.0.clock.now_ms() {
            return Ok(now);
        }
        let reply = self.command(&["TIME"]).await?;
        let now = micros(&reply).ok_or_else(|| StoreError::Odd("TIME".into()))? / 1000;
        self.heard(now);
        Ok(now)
    }
}

fn micros(reply: &Reply) -> Option<u64> {
    let Reply::List(parts) = reply else { return None };
    let [seconds, micros] = parts.as_slice() else { return None };
    let part = |reply| text(reply)?.parse::<u64>().ok();
    part(seconds)?.checked_mul(1_000_000)?.checked_add(part(micros)?)
}

#[cfg(test)]
mod tests {
    use super::Clock;
    use crate::limits::STORE_TIME_AGE;
    use crate::quota::store::embedded::{self, Embedded};
    use crate::quota::{Quota, Settings};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    /// Gateways take the store's time for theirs, however wrong one of the two is.
    #[tokio::test]
    async fn store_rules_over_our_clock() {
        let micros = Arc::new(AtomicU64::new(1_000_000_000_000_000));
        let store = Embedded::new(embedded::Clock::Manual(micros)).unwrap();
        for _ in 0..2 {
            let quota = Quota::new(store.clone().into(), Settings::default());
            let now = quota.store_now_ms().await.unwrap();
            assert!((1_000_000_000_000..1_000_000_060_000).contains(&now), "{now}");
            assert_eq!(quota.now_ms() / 100_000, 10_000_000, "learned on the way");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn told_time_runs_on_and_ages() {
        let clock = Clock::default();
        assert_eq!(clock.now_ms(), None);
        clock.heard(5_000);
        tokio::time::advance(Duration::from_millis(1_500)).await;
        assert_eq!(clock.now_ms(), Some(6_500));
        tokio::time::advance(STORE_TIME_AGE).await;
        assert_eq!(clock.now_ms(), None);
    }
}
