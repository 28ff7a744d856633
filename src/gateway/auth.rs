//! From a credential to the key and account behind it, with a short memory, so that a crowd of clients that come
//! back costs one read. Never keeps or shows a key's secret: it remembers digests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::away;
use super::ring::{self, Fault, Grant, Ring, TokenSecrets};
use crate::limits;
use crate::quota::store::StoreError;
use crate::quota::{Account, Gate, Key, OpenError, Quota, Refusal as Refused};
use crate::wire::deepgram::{Credential, Refusal};

/// Who is let in.
pub(super) struct Auth {
    /// Of the configured secrets.
    configured: Option<Arc<Ring>>,
    /// Of the store's own secret, and when it was read.
    stored: tokio::sync::Mutex<Option<(Arc<Ring>, Instant)>>,
    known: Mutex<HashMap<[u8; 32], Known>>,
    /// Refusals for lack of budget, by fingerprint of the key.
    denied: Mutex<HashMap<String, Denied>>,
}

/// Whom a credential stands for.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) account: Arc<Account>,
    pub(super) key: Arc<Key>,
    /// What the token allows, if one was shown; its cap is in the key already.
    pub(super) grant: Option<Arc<Grant>>,
}

impl Holder {
    /// Whether key and token, if there is one, both allow a model.
    pub(super) fn may_use(&self, model: &str) -> bool {
        let listed = |models: &[String]| models.is_empty() || models.iter().any(|name| name == model);
        listed(&self.key.models) && self.grant.as_ref().is_none_or(|grant| listed(&grant.models))
    }

    /// The key's holder narrowed by a token.
    fn narrowed(self, grant: Grant) -> Self {
        let tighter = |cap| self.key.session_cap.is_none_or(|own| cap < own);
        let key = match grant.cap.filter(|cap| tighter(*cap)) {
            Some(cap) => Arc::new(Key { session_cap: Some(cap), ..Key::clone(&self.key) }),
            None => Arc::clone(&self.key),
        };
        Self { key, grant: Some(Arc::new(grant)), ..self }
    }
}

impl Auth {
    /// With these secrets for tokens; with none, the store's own one is used.
    pub(super) fn new(secrets: &TokenSecrets) -> Self {
        let ring = || Ring::new(secrets).expect("32 bytes and more are a secret to the library");
        Self {
            configured: (!secrets.is_empty()).then(|| Arc::new(ring())),
            stored: tokio::sync::Mutex::default(),
            known: Mutex::default(),
            denied: Mutex::default(),
        }
    }

    /// The key and account behind a credential.
    ///
    /// # Errors
    /// 401 for what is unknown, revoked, expired or no key; 403 for a frozen account; 503 when the store gives no answer.
    pub(super) async fn holder(&self, gate: &mut Gate, credential: &Credential) -> Result<Holder, Refusal> {
        // SDKs that know no other scheme send a key as bearer.
        let holder = match credential {
            Credential::Token(token) if ring::looks_signed(token.expose()) => {
                self.bearer(gate, token.expose()).await?
            }
            Credential::Key(secret) | Credential::Token(secret) => {
                let digest: [u8; 32] = Sha256::digest(secret.expose()).into();
                self.behind(gate, digest, Shown::Secret(secret.expose())).await?
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

    /// The secrets that tokens are signed with.
    ///
    /// # Errors
    /// 503 when they are the store's and it gives no answer.
    pub(super) async fn ring(&self, gate: &mut Gate) -> Result<Arc<Ring>, Refusal> {
        if let Some(ring) = &self.configured {
            return Ok(Arc::clone(ring));
        }
        let mut stored = self.stored.lock().await;
        if let Some((ring, since)) = stored.as_ref()
            && since.elapsed() < limits::TOKEN_SECRET_AGE
        {
            return Ok(Arc::clone(ring));
        }
        let quota = gate.quota().clone();
        let secret = gate.ask(quota.token_secret()).await.map_err(|error| away(&error))?;
        let ring = TokenSecrets::new(vec![secret]).and_then(|secrets| Ring::new(&secrets));
        let ring = Arc::new(ring.ok_or_else(Refusal::internal)?);
        *stored = Some((Arc::clone(&ring), Instant::now()));
        Ok(ring)
    }

    /// The holder of the key behind a signed token, narrowed by it.
    async fn bearer(&self, gate: &mut Gate, token: &str) -> Result<Holder, Refusal> {
        let ring = self.ring(gate).await?;
        let quota = gate.quota().clone();
        let now = gate.ask(quota.store_now_ms()).await.map_err(|error| away(&error))?;
        let grant = ring.read(token, now).map_err(|fault| match fault {
            Fault::Forged | Fault::Claims => Refusal::invalid_auth(),
            Fault::Expired => Refusal::expired_token(),
        })?;
        // Not the token's own digest: a crowd with a token each costs one read too. No secret has this form.
        let behind = format!("token of {} {}", grant.account, grant.fingerprint);
        let holder = self.behind(gate, Sha256::digest(behind).into(), Shown::Token(&grant)).await?;
        Ok(holder.narrowed(grant))
    }

    /// The holder as remembered under a digest, else as read.
    async fn behind(&self, gate: &mut Gate, digest: [u8; 32], shown: Shown<'_>) -> Result<Holder, Refusal> {
        if let Some(holder) = self.remembered(&digest) {
            return Ok(holder);
        }
        let quota = gate.quota().clone();
        let holder = gate.ask(read(&quota, shown)).await.map_err(|error| away(&error))?;
        let holder = holder.ok_or_else(Refusal::invalid_auth)?;
        self.remember(digest, holder.clone());
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

/// What leads to a key.
enum Shown<'a> {
    Secret(&'a str),
    Token(&'a Grant),
}

async fn read(quota: &Quota, shown: Shown<'_>) -> Result<Option<Holder>, StoreError> {
    let key = match shown {
        Shown::Secret(secret) => quota.key(secret).await?,
        Shown::Token(grant) => quota.key_named(&grant.account, &grant.fingerprint).await?,
    };
    let Some(key) = key else { return Ok(None) };
    let account = quota.account(&key.account).await?;
    Ok(account.map(|account| Holder { account: Arc::new(account), key: Arc::new(key), grant: None }))
}

/// Keeps a memory within [`limits::CREDENTIALS_MAX`]: what is stale goes first, then everything.
pub(super) fn make_room<K: std::hash::Hash + Eq, V>(memory: &mut HashMap<K, V>, keep: impl Fn(&V) -> bool) {
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
