//! Who opens a stream: the credential in the headers or in the subprotocol list, and the page it comes from.
//!
//! Checks shape only; whether a key is known is the gateway's business. What is answered as subprotocol is one of
//! three words that the client offered, never a key.

use std::fmt;

use http::HeaderMap;
use http::header::{AUTHORIZATION, ORIGIN, SEC_WEBSOCKET_PROTOCOL};

use super::{Refusal, plain};
use crate::limits;

/// What a client shows to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// An API key.
    Key(Secret),
    /// Sent as bearer: a short-lived token, or an API key from SDKs that know no other scheme.
    Token(Secret),
}

impl Credential {
    /// The credential, and the subprotocol to answer if the client offered any, spelled as offered.
    ///
    /// `Authorization` (`Token K`, `Bearer T`, scheme in any case) wins over subprotocols (`token, K`,
    /// `bearer, T`, `openai-insecure-api-key.K`).
    ///
    /// # Errors
    /// 400 if subprotocols are offered and none of `token`, `bearer`, `realtime` is among them; 401 if there is no
    /// credential or its characters are not ours.
    pub fn from_headers(headers: &HeaderMap) -> Result<(Self, Option<String>), Refusal> {
        let offer = Offer::read(headers)?;
        if offer.any && offer.answer.is_none() {
            return Err(Refusal::bad_request(
                "None of the offered subprotocols is known; offer `token`, `bearer` or `realtime`.",
            ));
        }
        let shown = match authorization(headers)? {
            Some(credential) => credential,
            None => offer.credential.ok_or_else(Refusal::unreadable_auth)?,
        };
        shown.checked().map(|credential| (credential, offer.answer))
    }

    fn checked(self) -> Result<Self, Refusal> {
        let sound = match &self {
            Self::Key(secret) => plain(secret.expose(), limits::KEY_BYTES_MAX),
            Self::Token(secret) => plain(secret.expose(), limits::TOKEN_BYTES_MAX),
        };
        if sound { Ok(self) } else { Err(Refusal::invalid_auth()) }
    }
}

/// Text that must not be seen: `Debug` shows nothing of it, not even its length.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps the text.
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for hashing and comparing in constant time; never for a log, a metric or an error.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The SDK's own id, from the header or the subprotocol list; `None` if absent or not in the strict alphabet.
///
/// It stays the same over reconnections of one client object: good to correlate, never a credential, never unique.
pub fn correlation(headers: &HeaderMap) -> Option<String> {
    let header = headers.get(CORRELATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let id = header.or_else(|| Offer::read(headers).ok().and_then(|offer| offer.correlation))?;
    plain(&id, limits::NAME_BYTES_MAX).then_some(id)
}

/// Lets a page in if its origin (scheme, host, port) is on the list, letter for letter; `*` stands for any.
///
/// # Errors
/// 403 for an origin that is not on the list, for more than one, and for one that is not text. No `Origin` at all
/// is not a browser, and passes.
pub fn check_origin(headers: &HeaderMap, allowed: &[String]) -> Result<(), Refusal> {
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else { return Ok(()) };
    let listed = allowed.iter().any(|entry| entry == "*" || entry.as_bytes() == origin.as_bytes());
    if listed && origins.next().is_none() { Ok(()) } else { Err(Refusal::origin()) }
}

/// The credential in `Authorization`, if that header is there.
fn authorization(headers: &HeaderMap) -> Result<Option<Credential>, Refusal> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refusal::bad_request("Send one Authorization header, not several."));
    }
    let text = value.to_str().map_err(|_| Refusal::unreadable_auth())?;
    let (scheme, rest) = text.trim().split_once(' ').ok_or_else(Refusal::unreadable_auth)?;
    let secret = Secret::new(rest.trim().to_owned());
    match scheme.to_ascii_lowercase().as_str() {
        "token" => Ok(Some(Credential::Key(secret))),
        "bearer" => Ok(Some(Credential::Token(secret))),
        _ => Err(Refusal::unreadable_auth()),
    }
}

/// What the subprotocol list says. The first credential in it counts.
#[derive(Default)]
struct Offer {
    any: bool,
    answer: Option<String>,
    credential: Option<Credential>,
    correlation: Option<String>,
}

impl Offer {
    fn read(headers: &HeaderMap) -> Result<Self, Refusal> {
        let mut offer = Self::default();
        let mut names = Vec::new();
        for line in headers.get_all(SEC_WEBSOCKET_PROTOCOL) {
            let line =
                line.to_str().map_err(|_| Refusal::bad_request("Subprotocols must be ASCII names."))?;
            names.extend(line.split(',').map(str::trim).filter(|name| !name.is_empty()));
            offer.any = true;
        }
        let mut names = names.into_iter();
        while let Some(name) = names.next() {
            offer.take(name, &mut names);
        }
        Ok(offer)
    }

    /// Takes one name, and the value behind it where the name has one.
    fn take<'a>(&mut self, name: &'a str, rest: &mut impl Iterator<Item = &'a str>) {
        match name.to_ascii_lowercase().as_str() {
            "token" => self.scheme(name, rest.next().map(|key| Credential::Key(Secret::new(key.to_owned())))),
            "bearer" => {
                self.scheme(name, rest.next().map(|key| Credential::Token(Secret::new(key.to_owned()))))
            }
            "realtime" => self.scheme(name, None),
            CORRELATION => self.correlation = rest.next().map(str::to_owned),
            lower if lower.starts_with(OPENAI_KEY) => {
                let key = name.get(OPENAI_KEY.len()..).unwrap_or_default();
                self.show(Some(Credential::Key(Secret::new(key.to_owned()))));
            }
            _ => {}
        }
    }

    fn scheme(&mut self, name: &str, shown: Option<Credential>) {
        self.answer.get_or_insert_with(|| name.to_owned());
        self.show(shown);
    }

    fn show(&mut self, shown: Option<Credential>) {
        if self.credential.is_none() {
            self.credential = shown;
        }
    }
}

const CORRELATION: &str = "x-deepgram-session-id";
const OPENAI_KEY: &str = "openai-insecure-api-key.";
