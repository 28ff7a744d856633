//! Plain commands: for accounts, lists, `check` and tests. Never on the path of a chunk, and none moves units.

use tokio::time::Instant;

use super::Quota;
use super::breaker::Lane;
use super::pause::{Pause, pauses};
use super::store::{Reply, Shard, StoreError};

impl Quota {
    /// Runs one plain command; for accounts, `check` and tests, never on the path of a chunk.
    pub async fn command(&self, words: &[&str]) -> Result<Reply, StoreError> {
        self.patiently(|| self.0.store.command(words)).await
    }

    /// The primaries of the store, see [`Store::shards`].
    pub async fn shards(&self) -> Result<Vec<Shard>, StoreError> {
        self.patiently(|| self.0.store.shards()).await
    }

    /// Runs one command that names no key on one primary.
    pub async fn command_on(&self, shard: &Shard, words: &[&str]) -> Result<Reply, StoreError> {
        self.patiently(|| self.0.store.command_on(shard, words)).await
    }

    /// Tries again, for at most [`Settings::hold`], what certainly never ran.
    pub(super) async fn patiently<T, F>(&self, mut call: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut pause = Pause::new();
        let until = Instant::now() + self.0.settings.hold;
        loop {
            let pending = self.0.breaker.begin(Lane::Command);
            let answer = call().await;
            pending.done(&answer);
            match answer {
                Err(error) if pauses(&error) && Instant::now() < until => pause.wait().await,
                answer => return answer,
            }
        }
    }
}
