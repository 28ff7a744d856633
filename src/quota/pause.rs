//! When a call that never ran is tried again, and how long that waits.

use std::time::Duration;

use super::store::StoreError;

/// Whether an error is worth another try: it never ran, and time may mend it.
pub(super) fn pauses(error: &StoreError) -> bool {
    matches!(error, StoreError::Busy | StoreError::Away(_) | StoreError::Refuses(_))
}

/// Growing waits with jitter between tries of one call.
pub(super) struct Pause(Duration);

impl Pause {
    const FIRST: Duration = Duration::from_millis(5);
    const MOST: Duration = Duration::from_millis(250);
    const THIN_MOST: Duration = Duration::from_secs(2);

    pub(super) const fn new() -> Self {
        Self(Self::FIRST)
    }

    /// As [`Pause::wait`]; grows further while replicas are missing, since waiting for them holds up who waits behind.
    pub(super) async fn after(&mut self, error: &StoreError) {
        let thin = matches!(error, StoreError::Thin { .. });
        let most = if thin { Self::THIN_MOST } else { Self::MOST };
        self.sleep().await;
        self.0 = (self.0 * 2).min(most);
    }

    pub(super) async fn wait(&mut self) {
        self.sleep().await;
        self.0 = (self.0 * 2).min(Self::MOST);
    }

    async fn sleep(&self) {
        tokio::time::sleep(self.0 / 2 + self.0.mul_f64(fastrand::f64() / 2.0)).await;
    }
}
