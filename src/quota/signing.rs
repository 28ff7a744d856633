//! The secret that gateways of one store sign tokens with when the operator configured none.
//!
//! It is made once, by whoever needs it first, and kept as long as the store keeps it. It is never logged.

use super::Quota;
use super::accounts::text;
use super::store::StoreError;

impl Quota {
    /// The store's own secret for tokens, 64 hex digits; made when there is none. All gateways on one store get the
    /// same, however many ask at once; the embedded store's dies with it.
    ///
    /// # Errors
    /// The store does not answer, or holds something too short to be a secret.
    pub async fn token_secret(&self) -> Result<String, StoreError> {
        let key = self.spell().token_secret();
        let fresh = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        // The first one in wins; everybody, the winner too, takes what is stored then.
        self.command(&["SET", &key, &fresh, "NX"]).await?;
        let stored = text(&self.command(&["GET", &key]).await?);
        stored.filter(|secret| secret.len() >= fresh.len()).ok_or(StoreError::Corrupt(key))
    }
}

#[cfg(test)]
mod tests {
    use crate::quota::store::Store;
    use crate::quota::{Quota, Settings};

    #[tokio::test]
    async fn all_gateways_get_one_secret() {
        let store = Store::open("embedded").unwrap();
        let gateways: Vec<_> = (0..16).map(|_| Quota::new(store.clone(), Settings::default())).collect();
        let secrets = futures_util::future::join_all(gateways.iter().map(Quota::token_secret)).await;
        let first = secrets[0].clone().unwrap();
        assert_eq!(first.len(), 64);
        assert!(secrets.iter().all(|secret| secret.as_ref() == Ok(&first)));
        let elsewhere = Quota::new(Store::open("embedded").unwrap(), Settings::default());
        assert_ne!(elsewhere.token_secret().await, Ok(first));
    }

    #[tokio::test]
    async fn short_stored_secret_is_refused() {
        let quota = Quota::new(Store::open("embedded").unwrap(), Settings::default());
        quota.command(&["SET", "vox:token_secret", "guessable"]).await.unwrap();
        assert!(quota.token_secret().await.is_err());
    }
}
