//! Short-lived tokens: what they grant, how they are signed and read. Pure; never knows a key's secret, never a clock.
//!
//! # The token
//! A JSON Web Token, HS256 and nothing else. Header `kid` names the secret ([`Ring::sign`] writes it; without one
//! every secret is tried). Claims, and no others:
//!
//! | claim | |
//! |---|---|
//! | `iss` | `voxgate` |
//! | `sub` | account |
//! | `kid` | fingerprint of the API key whose rights the token has; revoking the key ends the token |
//! | `sid` | session that it opens, optional |
//! | `cap` | units of that session, optional; needs `sid`, or every opening would get its own |
//! | `models` | models that it may use; left out or empty: all of the key's |
//! | `iat`, `exp` | unix seconds by the store's clock, at most an hour apart; `nbf` is heeded |
//! | `jti` | for people who look for it in logs |
//!
//! The cap counts from the session's first opening, as any session cap: what was opened before without one keeps none.
//! A cap below the least that a stream opens with opens nothing.
//!
//! A backend that holds a configured secret may sign such tokens itself. A token may be used more than once until it
//! expires; it limits opening only, a stream goes on after it.

use std::fmt;

use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, decode_header, encode};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::limits;
use crate::quota::Name;
use crate::units::Units;

/// Secrets for tokens: the first signs, all verify. `Debug` shows none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TokenSecrets(Vec<String>);

impl TokenSecrets {
    /// Secrets of [`limits::TOKEN_SECRET_BYTES`] each, at most [`limits::TOKEN_SECRETS_MAX`]; `None` otherwise.
    pub fn new(secrets: Vec<String>) -> Option<Self> {
        let sound = secrets.iter().all(|secret| limits::TOKEN_SECRET_BYTES.contains(&secret.len()));
        (sound && secrets.len() <= limits::TOKEN_SECRETS_MAX).then_some(Self(secrets))
    }

    /// Whether there is none, so that the store's own secret is used.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for TokenSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenSecrets({})", self.0.len())
    }
}

/// What a token allows, beside what its key does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) account: Name,
    /// Of the key.
    pub(super) fingerprint: String,
    pub(super) session: Option<Name>,
    /// Units of the session.
    pub(super) cap: Option<Units>,
    /// Empty: all of the key's.
    pub(super) models: Vec<String>,
}

/// Why a token opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Not a token, not by one of our secrets, or not HS256.
    Forged,
    /// Ours, and its time is over.
    Expired,
    /// Signed with one of our secrets, and its claims are not as they must be.
    Claims,
}

/// The secrets, ready for use.
pub(super) struct Ring(Vec<Link>);

struct Link {
    id: String,
    sign: EncodingKey,
    verify: DecodingKey,
}

impl Ring {
    /// `None` when there is no secret or the library takes one of them for unusable.
    pub(super) fn new(secrets: &TokenSecrets) -> Option<Self> {
        let links: Option<Vec<Link>> = secrets.0.iter().map(|secret| Link::new(secret)).collect();
        links.filter(|links| !links.is_empty()).map(Self)
    }

    /// A token for `seconds` from `now_ms` on; `None` when it would be longer than [`limits::TOKEN_BYTES_MAX`].
    pub(super) fn sign(&self, grant: &Grant, id: &str, now_ms: u64, seconds: u32) -> Option<String> {
        let link = self.0.first()?;
        let claims = Claims {
            iss: ISSUER.to_owned(),
            sub: grant.account.as_str().to_owned(),
            kid: grant.fingerprint.clone(),
            sid: grant.session.as_ref().map(|session| session.as_str().to_owned()),
            cap: grant.cap.map(Units::get),
            models: grant.models.clone(),
            iat: now_ms / 1000,
            nbf: None,
            exp: now_ms.div_ceil(1000) + u64::from(seconds),
            jti: id.to_owned(),
        };
        let header = Header { kid: Some(link.id.clone()), ..Header::new(Algorithm::HS256) };
        encode(&header, &claims, &link.sign).ok().filter(|token| token.len() <= limits::TOKEN_BYTES_MAX)
    }

    /// What a token allows at `now_ms`, unix milliseconds.
    ///
    /// # Errors
    /// See [`Fault`].
    pub(super) fn read(&self, token: &str, now_ms: u64) -> Result<Grant, Fault> {
        if token.len() > limits::TOKEN_BYTES_MAX {
            return Err(Fault::Forged);
        }
        let header = decode_header(token).map_err(|_| Fault::Forged)?;
        let tried = self.0.iter().filter(|link| header.kid.as_ref().is_none_or(|id| *id == link.id));
        for link in tried {
            match decode::<Claims>(token, &link.verify, &rules()) {
                Ok(data) => return data.claims.granted(now_ms),
                Err(error) if signed(&error) => return Err(Fault::Claims),
                Err(_) => {}
            }
        }
        Err(Fault::Forged)
    }
}

impl Link {
    fn new(secret: &str) -> Option<Self> {
        let digest = Sha256::new().chain_update("voxgate token secret ").chain_update(secret).finalize();
        Some(Self {
            id: hex::encode(digest).split_at(ID_DIGITS).0.to_owned(),
            sign: EncodingKey::from_secret(secret.as_bytes()).ok()?,
            verify: DecodingKey::from_secret(secret.as_bytes()).ok()?,
        })
    }
}

/// Whether a credential looks like a signed token: three parts, the first one a JSON object in base64. Our keys
/// have no dots.
pub(super) fn looks_signed(text: &str) -> bool {
    text.starts_with("eyJ") && text.bytes().filter(|b| *b == b'.').count() == 2
}

/// Unknown claims are refused: a restriction that we do not know must not be passed over.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    iss: String,
    sub: String,
    kid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cap: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    models: Vec<String>,
    iat: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<u64>,
    exp: u64,
    jti: String,
}

impl Claims {
    fn granted(self, now_ms: u64) -> Result<Grant, Fault> {
        let latest_start = now_ms.saturating_add(super::milliseconds(limits::TOKEN_AHEAD));
        let early = |second: u64| second.saturating_mul(1000) > latest_start;
        // One second more than allowed: `exp` is rounded up, `iat` down.
        let longest = u64::from(limits::TOKEN_SECONDS_MAX) + 1;
        let lasts = self.exp.checked_sub(self.iat).ok_or(Fault::Claims)?;
        if self.iss != ISSUER || early(self.iat) || self.nbf.is_some_and(early) || lasts > longest {
            return Err(Fault::Claims);
        }
        if self.exp.saturating_mul(1000) <= now_ms {
            return Err(Fault::Expired);
        }
        if self.models.len() > limits::TOKEN_MODELS_MAX || (self.cap.is_some() && self.sid.is_none()) {
            return Err(Fault::Claims);
        }
        let name = |text: &str| Name::parse(text).ok_or(Fault::Claims);
        let fingerprint = name(&self.kid)?.as_str().to_owned();
        Ok(Grant {
            account: name(&self.sub)?,
            fingerprint,
            session: self.sid.as_deref().map(name).transpose()?,
            cap: self.cap.map(|cap| Units::new(cap).ok_or(Fault::Claims)).transpose()?,
            models: self.models,
        })
    }
}

/// Signature and algorithm only; times are judged by the store's clock, which the library does not know.
fn rules() -> Validation {
    let mut rules = Validation::new(Algorithm::HS256);
    rules.validate_exp = false;
    rules.validate_aud = false;
    rules.required_spec_claims.clear();
    rules
}

/// Whether a token failed behind its signature.
fn signed(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Json(_))
}

const ISSUER: &str = "voxgate";
/// Hex digits that name a secret.
const ID_DIGITS: usize = 16;

#[cfg(test)]
mod tests;
