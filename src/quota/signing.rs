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
