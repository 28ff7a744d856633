//! From a credential to the key and account behind it, with a short memory, so that a crowd of clients that come
//! back costs one read. Never keeps or shows a secret: it remembers digests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::limits;
use crate::quota::store::StoreError;
use crate::quota::{Account, Key, OpenError, Quota, Refusal as Refused};
use crate::wire::deepgram::{Credential, Refusal};

/// Who is let in.
#[derive(Debug, Default)]
pub(super) struct Auth {
    known: Mutex<HashMap<[u8; 32], Known>>,
    /// Refusals for lack of budget, by fingerprint of the key.
    denied: Mutex<HashMap<String, Denied>>,
}

/// Whom a credential stands for.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) account: Arc<Account>,
    pub(super) key: Arc<Key>,
}

impl Auth {
    /// The key and account behind a credential.
    ///
    /// # Errors
    /// 401 for what is unknown, revoked or no key; 403 for a frozen account; 503 when the store gives no answer.
    pub(super) async fn holder(&self, quota: &Quota, credential: &Credential) -> Result<Holder, Refusal> {
        // SDKs that know no other scheme send a key as bearer. Signed tokens, which have dots, get their place here.
        let (Credential::Key(secret) | Credential::Token(secret)) = credential;
        let digest: [u8; 32] = Sha256::digest(secret.expose()).into();
        let holder = match self.remembered(&digest) {
            Some(holder) => holder,
            None => {
                let holder = read(quota, secret.expose()).await.map_err(|error| away(&error))?;
                let holder = holder.ok_or_else(Refusal::invalid_auth)?;
                self.remember(digest, holder.clone());
                holder
            }
        };
        if holder.key.revoked {
            return Err(Refusal::invalid_auth());
        }
        if holder.account.frozen {
            return Err(Refusal::forbidden("The account is frozen."));
        }
        Ok(holder)
    }

    /// The answer that this key got a moment ago for lack of budget.
    pub(super) fn denied(&self, key: &Key) -> Option<Refusal> {
        let mut denied = lock(&self.denied);
        let found = denied.get(&key.fingerprint)?;
        if found.until > Instant::now() {
            return Some(found.refusal.clone());
        }
        denied.remove(&key.fingerprint);
        None
    }

    /// Notes that a stream was refused, if asking again at once would be answered the same.
    pub(super) fn refused(&self, key: &Key, error: &OpenError, refusal: &Refusal) {
        let OpenError::Refused(Refused::Budget { .. } | Refused::Held { .. } | Refused::Key { .. }) = error
        else {
            return;
        };
        let until = Instant::now() + limits::REFUSAL_AGE;
        let mut denied = lock(&self.denied);
        make_room(&mut denied, |denied| denied.until > Instant::now());
        denied.insert(key.fingerprint.clone(), Denied { refusal: refusal.clone(), until });
    }

    fn remembered(&self, digest: &[u8; 32]) -> Option<Holder> {
        let known = lock(&self.known);
        known.get(digest).filter(|known| known.fresh()).map(|known| known.holder.clone())
    }

    fn remember(&self, digest: [u8; 32], holder: Holder) {
        let mut known = lock(&self.known);
        make_room(&mut known, Known::fresh);
        known.insert(digest, Known { holder, since: Instant::now() });
    }
}

#[derive(Debug)]
struct Known {
    holder: Holder,
    since: Instant,
}

impl Known {
    fn fresh(&self) -> bool {
        self.since.elapsed() < limits::CREDENTIAL_AGE
    }
}

#[derive(Debug)]
struct Denied {
    refusal: Refusal,
    until: Instant,
}

async fn read(quota: &Quota, secret: &str) -> Result<Option<Holder>, StoreError> {
    let Some(key) = quota.key(secret).await? else { return Ok(None) };
    let account = quota.account(&key.account).await?;
    Ok(account.map(|account| Holder { account: Arc::new(account), key: Arc::new(key) }))
}

fn away(error: &StoreError) -> Refusal {
    tracing::warn!(%error, "the store could not be asked about a key");
    Refusal::unavailable("Keys can't be checked for now; please try again.", 2)
}

/// Keeps a memory within [`limits::CREDENTIALS_MAX`]: what is stale goes first, then everything.
fn make_room<K: std::hash::Hash + Eq, V>(memory: &mut HashMap<K, V>, keep: impl Fn(&V) -> bool) {
    if memory.len() >= limits::CREDENTIALS_MAX {
        memory.retain(|_, value| keep(value));
    }
    if memory.len() >= limits::CREDENTIALS_MAX {
        memory.clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Our clock, in unix seconds; only for hints to clients.
pub(super) fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::make_room;
    use crate::limits;
    use std::collections::HashMap;

    #[test]
    fn memory_stays_bounded() {
        let mut memory = HashMap::new();
        for n in 0..3 * limits::CREDENTIALS_MAX {
            make_room(&mut memory, |value| value % 2 == 0);
            memory.insert(n, n);
            assert!(memory.len() <= limits::CREDENTIALS_MAX);
        }
    }
}
