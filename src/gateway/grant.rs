//! `/v1/auth/grant`: swaps an API key for a token that opens streams for a short time. Spends nothing, keeps nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::answer::{self, Answer};
use super::auth::{Holder, make_room};
use super::ring::Grant;
use super::{Core, away};
use crate::limits;
use crate::quota::{Gate, Key, Name};
use crate::units::Units;
use crate::wire::deepgram::{Credential, Refusal};

/// Answers a request for a token.
pub(super) async fn grant(core: &Core, request: Request<Incoming>, request_id: &str) -> Answer {
    match granted(core, request).await {
        Ok(body) => answer::json(200, body, request_id),
        Err(refusal) => answer::refused(&refusal, request_id),
    }
}

async fn granted(core: &Core, request: Request<Incoming>) -> Result<String, Refusal> {
    let (credential, _) = Credential::from_headers(request.headers())?;
    // A gate of its own, gone before the body is waited for: that is the client's time, not the store's.
    let holder = core.auth.holder(&mut core.quota.gate(), &credential).await?;
    if holder.grant.is_some() {
        return Err(Refusal::forbidden("A token can't ask for tokens; use the API key."));
    }
    core.grants.take(&holder.key.fingerprint)?;
    let wanted = Wanted::parse(&body(request).await?)?;
    wanted.within(&holder.key)?;
    issue(core, &holder, wanted, core.quota.gate()).await
}

async fn issue(core: &Core, holder: &Holder, wanted: Wanted, mut gate: Gate) -> Result<String, Refusal> {
    let ring = core.auth.ring(&mut gate).await?;
    let now = gate.ask(core.quota.store_now_ms()).await.map_err(|error| away(&error))?;
    let id = uuid::Uuid::new_v4().simple().to_string();
    let grant = Grant {
        account: holder.account.id.clone(),
        fingerprint: holder.key.fingerprint.clone(),
        session: wanted.session(),
        cap: wanted.cap,
        models: wanted.models,
    };
    let token = ring
        .sign(&grant, &id, now, wanted.seconds)
        .ok_or_else(|| Refusal::bad_request("`models` names more than a token can hold."))?;
    tracing::debug!(account = grant.account.as_str(), key = grant.fingerprint, token = id, "token granted");
    let mut answer = json!({ "access_token": token, "expires_in": wanted.seconds });
    if let (Some(session), Value::Object(answer)) = (&grant.session, &mut answer) {
        answer.insert("session_id".into(), json!(session.as_str()));
    }
    Ok(answer.to_string())
}

/// The whole body, bounded in size and time.
async fn body(request: Request<Incoming>) -> Result<Bytes, Refusal> {
    let reading = Limited::new(request.into_body(), limits::GRANT_BYTES_MAX).collect();
    match tokio::time::timeout(limits::GRANT_TIME, reading).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => {
            let most = limits::GRANT_BYTES_MAX;
            Err(Refusal::bad_request(&format!("The body must be whole, and at most {most} bytes.")))
        }
        Err(_) => Err(Refusal {
            status: 408,
            err_code: "REQUEST_TIMEOUT",
            err_msg: "The body did not come in time.".into(),
            retry_after: None,
        }),
    }
}

/// What a token is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    seconds: u32,
    session: Option<Name>,
    cap: Option<Units>,
    models: Vec<String>,
}

impl Wanted {
    /// Reads the body; an empty one is like `{}`. A field that is not known is refused: it might be meant as a
    /// restriction.
    fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let mut fields = match body {
            [] => Map::new(),
            body => serde_json::from_slice(body)
                .map_err(|_| Refusal::bad_request("The body must be a JSON object, such as {}."))?,
        };
        let wanted = Self {
            seconds: take(&mut fields, "ttl_seconds", SECONDS_FORM, seconds)?
                .unwrap_or(limits::TOKEN_SECONDS),
            session: take(&mut fields, "session_id", NAME_FORM, |value| Name::parse(value.as_str()?))?,
            cap: take(&mut fields, "session_cap_units", CAP_FORM, |value| {
                Units::new(value.as_u64()?).filter(|cap| !cap.is_zero())
            })?,
            models: take(&mut fields, "models", MODELS_FORM, models)?.unwrap_or_default(),
        };
        match fields.keys().next() {
            None => Ok(wanted),
            Some(name) => {
                let name: String = name.chars().take(limits::NAME_BYTES_MAX).collect();
                let known = "ttl_seconds, session_id, session_cap_units, models";
                Err(Refusal::bad_request(&format!("`{name}` is not a field here; known are {known}.")))
            }
        }
    }

    /// A token may not reach further than its key.
    fn within(&self, key: &Key) -> Result<(), Refusal> {
        let reaches = |model: &String| key.models.is_empty() || key.models.contains(model);
        match self.models.iter().find(|model| !reaches(model)) {
            None => Ok(()),
            Some(model) => {
                Err(Refusal::forbidden(&format!("This key may not use the model {model:?} of `models`.")))
            }
        }
    }

    /// The session asked for; a new one where only its cap was named, or each opening would get a cap of its own.
    fn session(&self) -> Option<Name> {
        let fresh = || self.cap.and_then(|_| Name::parse(&uuid::Uuid::new_v4().to_string()));
        self.session.clone().or_else(fresh)
    }
}

/// Takes a field out; `null` is like none.
fn take<T>(
    fields: &mut Map<String, Value>,
    name: &str,
    form: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, Refusal> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match read(&value) {
            Some(value) => Ok(Some(value)),
            None => Err(Refusal::bad_request(&format!("`{name}` must be {form}."))),
        },
    }
}

/// Whole seconds within bounds; `30.0` too, as some SDKs write it.
fn seconds(value: &Value) -> Option<u32> {
    let number = value.as_f64().filter(|number| number.fract() == 0.0)?;
    (1.0..=f64::from(limits::TOKEN_SECONDS_MAX)).contains(&number).then_some(number as u32)
}

fn models(value: &Value) -> Option<Vec<String>> {
    let items = value.as_array().filter(|items| (1..=limits::TOKEN_MODELS_MAX).contains(&items.len()))?;
    let model = |item: &Value| {
        let model = item.as_str().filter(|model| (1..=limits::MODEL_BYTES_MAX).contains(&model.len()))?;
        Some(model.to_owned())
    };
    items.iter().map(model).collect()
}

/// How many tokens each key got of late; it keeps one client from keeping the gateway busy with signing.
#[derive(Debug, Default)]
pub(super) struct Grants(Mutex<HashMap<String, Granted>>);

#[derive(Debug)]
struct Granted {
    since: Instant,
    count: u32,
}

impl Granted {
    fn running(&self) -> bool {
        self.since.elapsed() < limits::GRANT_WINDOW
    }
}

impl Grants {
    /// Counts one more token of a key.
    fn take(&self, fingerprint: &str) -> Result<(), Refusal> {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !keys.contains_key(fingerprint) {
            make_room(&mut keys, Granted::running);
        }
        let fresh = || Granted { since: Instant::now(), count: 0 };
        let granted = keys.entry(fingerprint.to_owned()).or_insert_with(fresh);
        if !granted.running() {
            *granted = fresh();
        }
        if granted.count >= limits::GRANTS_MAX {
            let wait = limits::GRANT_WINDOW.saturating_sub(granted.since.elapsed());
            return Err(Refusal::too_many_tokens(u32::try_from(wait.as_secs() + 1).unwrap_or(u32::MAX)));
        }
        granted.count += 1;
        Ok(())
    }
}

const SECONDS_FORM: &str = "a whole number of seconds from 1 to 3600";
const NAME_FORM: &str = "1 to 64 of A-Z a-z 0-9 - _ .";
const CAP_FORM: &str = "a whole number of units from 1 to 9007199254740991";
const MODELS_FORM: &str = "a list of 1 to 32 model names";

#[cfg(test)]
mod tests {
    use super::{Grants, Wanted};
    use crate::limits;
    use crate::quota::{Key, Name};
    use crate::units::Units;

    #[test]
    fn sdk_bodies_are_read() {
        for (body, seconds) in
            [("", 30), ("{}", 30), (r#"{"ttl_seconds":null}"#, 30), (r#"{"ttl_seconds":7.0}"#, 7)]
        {
            let wanted = Wanted::parse(body.as_bytes()).expect(body);
            assert_eq!((wanted.seconds, wanted.session(), wanted.models.len()), (seconds, None, 0), "{body}");
        }
        let all = r#"{"ttl_seconds":3600,"session_id":"s.1","session_cap_units":5,"models":["m"]}"#;
        let wanted = Wanted::parse(all.as_bytes()).expect(all);
        assert_eq!(wanted.session(), Name::parse("s.1"));
        assert_eq!((wanted.cap, wanted.models), (Units::new(5), vec!["m".to_owned()]));
    }

    #[test]
    fn odd_bodies_name_their_fault() {
        for (body, word) in [
            ("[]", "JSON object"),
            ("{", "JSON object"),
            (r#"{"ttl_seconds":0}"#, "`ttl_seconds`"),
            (r#"{"ttl_seconds":3601}"#, "`ttl_seconds`"),
            (r#"{"ttl_seconds":1.5}"#, "`ttl_seconds`"),
            (r#"{"ttl_seconds":"30"}"#, "`ttl_seconds`"),
            (r#"{"ttl_seconds":1e999}"#, "JSON object"),
            (r#"{"session_id":"a{b}"}"#, "`session_id`"),
            (r#"{"session_cap_units":0}"#, "`session_cap_units`"),
            (r#"{"session_cap_units":9007199254740992}"#, "`session_cap_units`"),
            (r#"{"models":[]}"#, "`models`"),
            (r#"{"models":[1]}"#, "`models`"),
            (r#"{"scopes":["all"]}"#, "`scopes`"),
        ] {
            let refusal = Wanted::parse(body.as_bytes()).expect_err(body);
            assert_eq!(refusal.status, 400, "{body}");
            assert!(refusal.err_msg.contains(word), "{body}: {}", refusal.err_msg);
        }
    }

    /// Else every opening with the token would begin a session, and a cap, of its own.
    #[test]
    fn capped_token_gets_a_session() {
        let wanted = Wanted::parse(br#"{"session_cap_units":5}"#).expect("legal");
        assert!(wanted.session().is_some());
    }

    #[test]
    fn models_stay_within_the_key() {
        let wanted = Wanted::parse(br#"{"models":["a","b"]}"#).expect("legal");
        let key = |models: &[&str]| Key {
            fingerprint: "f".into(),
            account: Name::parse("a").expect("a name"),
            label: String::new(),
            cap: None,
            session_cap: None,
            streams_max: 1,
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            revoked: false,
        };
        assert!(wanted.within(&key(&[])).is_ok() && wanted.within(&key(&["a", "b", "c"])).is_ok());
        assert_eq!(wanted.within(&key(&["a"])).map_err(|refusal| refusal.status), Err(403));
    }

    #[tokio::test(start_paused = true)]
    async fn grants_of_a_key_are_bounded() {
        let grants = Grants::default();
        for _ in 0..limits::GRANTS_MAX {
            assert_eq!(grants.take("f"), Ok(()));
        }
        let refusal = grants.take("f").expect_err("too many");
        assert_eq!((refusal.status, refusal.retry_after), (429, Some(11)));
        assert_eq!(grants.take("other"), Ok(()));
        tokio::time::advance(limits::GRANT_WINDOW).await;
        assert_eq!(grants.take("f"), Ok(()));
    }
}
