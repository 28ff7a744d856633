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

    /// As [`Quota::command`], tried once: where others wait behind it.
    pub(super) async fn command_once(&self, words: &[&str]) -> Result<Reply, StoreError> {
        let pending = self.0.breaker.begin(Lane::Command);
        let answer = self.0.store.command(words).await;
        pending.done(&answer);
        answer
    }

    /// The primaries of the store, see [`Store::shards`](super::store::Store::shards).
    pub async fn shards(&self) -> Result<Vec<Shard>, StoreError> {
        self.repeated(|| self.shards_now()).await
    }

    /// Runs one command that names no key on one primary.
    pub async fn command_on(&self, shard: &Shard, words: &[&str]) -> Result<Reply, StoreError> {
        self.patiently(|| self.0.store.command_on(shard, words)).await
    }

    /// Tries again, for at most [`Settings::hold`](super::Settings::hold), what certainly never ran. Moves the breaker.
    pub(super) async fn patiently<T, F>(&self, mut call: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        self.repeated(|| {
            let (pending, call) = (self.0.breaker.begin(Lane::Command), call());
            async move {
                let answer = call.await;
                pending.done(&answer);
                answer
            }
        })
        .await
    }

    async fn repeated<T, F>(&self, mut call: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut pause = Pause::new();
        let until = Instant::now() + self.0.settings.hold;
        loop {
            match call().await {
                Err(error) if pauses(&error) && Instant::now() < until => pause.wait().await,
                answer => return answer,
            }
        }
    }
}
