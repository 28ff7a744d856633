//! `/v1/listen` and `/v1/quota` up to the answer: everything that can be known to refuse is refused before the
//! upgrade, in one order, and costs nothing.

use std::sync::Arc;

use http::header::{AUTHORIZATION, CONNECTION, HOST, ORIGIN, UPGRADE};
use http::{HeaderMap, Request};
use hyper::body::Incoming;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::answer::{self, Answer};
use super::auth::Holder;
use super::session::{self, Door, Plan};
use super::{Core, away, front};
use crate::ending::Ending;
use crate::quota::{Gate, Name};
use crate::units::Units;
use crate::wire::deepgram::{Credential, Listen, Model, Refusal, check_origin, correlation};

/// Answers a request to open a stream.
pub(super) async fn listen(
    core: &Arc<Core>,
    mut request: Request<Incoming>,
    request_id: &str,
    seat: Arc<front::Seat>,
) -> Answer {
    // Taken before the gateway is asked whether it is open, so that a drain waits for this handshake.
    let _token = core.streams.token();
    let upgrade = hyper::upgrade::on(&mut request);
    let mut gate = core.quota.stream_gate();
    let (plan, protocol) = match plan(core, &mut gate, &request, request_id).await {
        Ok(planned) => planned,
        Err(refusal) => return answer::refused(&refusal, request_id),
    };
    let accept = match accept_key(request.headers()) {
        Ok(Some(accept)) => accept,
        Ok(None) => return answer::refused(&without_upgrade(core, &mut gate, &plan).await, request_id),
        Err(refusal) => return answer::refused(&refusal, request_id),
    };
    // Spawned behind the gate; given up there, it settles by itself what it may still get.
    let open = async {
        let (answer, opened) = oneshot::channel();
        core.streams.spawn(stream(Arc::clone(core), plan, Door { answer, upgrade, seat }));
        opened.await
    };
    match gate.pass(open).await {
        Ok(Ok(Ok(session))) => answer::upgrade(&accept, protocol.as_deref(), &session, request_id),
        Ok(Ok(Err(refusal))) => answer::refused(&refusal, request_id),
        Ok(Err(_)) => answer::refused(&Refusal::internal(), request_id),
        Err(unasked) => answer::refused(&away(&unasked), request_id),
    }
}

/// A stream in its span. It is a task of its own, so that a client that leaves during the handshake drops no
/// reservation half way.
async fn stream(core: Arc<Core>, plan: Plan, door: Door) {
    use tracing::Instrument as _;
    let span = tracing::info_span!("stream", id = plan.request_id);
    session::live(core, plan, door).instrument(span).await;
}

/// Answers a question about the running period of the key's account.
pub(super) async fn quota(core: &Core, headers: &HeaderMap, request_id: &str) -> Answer {
    match balance(core, headers).await {
        Ok(body) => answer::json(200, body, request_id),
        Err(refusal) => answer::refused(&refusal, request_id),
    }
}

async fn balance(core: &Core, headers: &HeaderMap) -> Result<String, Refusal> {
    let (credential, _) = Credential::from_headers(headers)?;
    let mut gate = core.quota.gate();
    let Holder { account, grant, .. } = core.auth.holder(&mut gate, &credential).await?;
    if grant.is_some() {
        return Err(Refusal::forbidden("A token opens streams and nothing else; use the API key."));
    }
    let balance = gate.ask(core.quota.balance(&account)).await.map_err(|error| away(&error))?;
    let price = u128::from(core.settings.units_per_second.max(1));
    let ms = |units: Units| u64::try_from(u128::from(units.get()) * 1000 / price).unwrap_or(u64::MAX);
    let moment = |second| jiff::Timestamp::from_second(second).map(|at| at.to_string()).unwrap_or_default();
    let period = json!({
        "id": balance.period,
        "starts_at": moment(balance.starts_at),
        "ends_at": moment(balance.ends_at),
    });
    Ok(json!({
        "account": account.id.as_str(),
        "period": period,
        "cap_ms": ms(balance.cap),
        "taken_ms": ms(balance.taken),
        "held_ms": ms(balance.held),
        "settled_ms": ms(balance.settled),
        "left_ms": ms(balance.left),
    })
    .to_string())
}

/// Everything that is decided before money: who, from where, what, with which model.
async fn plan(
    core: &Core,
    gate: &mut Gate,
    request: &Request<Incoming>,
    request_id: &str,
) -> Result<(Plan, Option<String>), Refusal> {
    if !core.is_open() {
        return Err(Refusal::unavailable("The gateway is shutting down; please reconnect.", 1));
    }
    let headers = request.headers();
    let (credential, protocol) = Credential::from_headers(headers)?;
    let holder = core.auth.holder(gate, &credential).await?;
    if !headers.contains_key(AUTHORIZATION) && !from_own_page(headers) {
        check_origin(headers, &core.settings.origins)?;
    }
    let listen = Listen::parse(request.uri().query().unwrap_or_default())?;
    let units_per_second = core.settings.price(&listen.model);
    let tariff = listen.tariff(units_per_second).ok_or_else(Refusal::internal)?;
    if !holder.may_use(&listen.model) {
        return Err(Refusal::forbidden_model());
    }
    if !core.pool.serves(&listen.model) {
        return Err(Refusal::bad_query("No worker here serves this `model`."));
    }
    if !core.pool.takes(&listen.model) {
        return Err(Refusal::unavailable("No transcription worker is available; please try again.", 5));
    }
    if let Some(refusal) = core.auth.denied(&holder.key) {
        return Err(refusal);
    }
    let session = session_name(&holder, &listen, headers)?;
    let plan = Plan {
        request_id: request_id.to_owned(),
        account: holder.account,
        key: holder.key,
        session,
        model: model(&listen.model),
        listen,
        tariff,
        units_per_second,
    };
    Ok((plan, protocol))
}

/// The session to open: the token's, else the query's, else (under a session cap) the SDK's own id.
fn session_name(holder: &Holder, listen: &Listen, headers: &HeaderMap) -> Result<Option<Name>, Refusal> {
    let named = listen.session_id.as_deref().and_then(Name::parse);
    let granted = holder.grant.as_ref().and_then(|grant| grant.session.clone());
    if granted.is_some() && named.is_some() && granted != named {
        return Err(Refusal::bad_query("`session_id` is not the token's session; leave it out."));
    }
    let capped = holder.key.session_cap.is_some();
    let own = || capped.then(|| correlation(headers)).flatten();
    Ok(granted.or(named).or_else(|| Name::parse(&own()?)))
}

/// A browser can't see why an upgrade was refused; it may ask the same without one. The budget is really asked, and what
/// it gives goes straight back, so the answer is the one that an upgrade would have got.
async fn without_upgrade(core: &Core, gate: &mut Gate, plan: &Plan) -> Refusal {
    // The asking itself has an end of its own and must not be dropped half way.
    if let Err(unasked) = gate.pass(std::future::ready(())).await {
        return away(&unasked);
    }
    match core.quota.open(plan.terms()).await {
        Ok(lease) => {
            lease.settle(Ending::ClientGone, "").await;
            Refusal {
                status: 426,
                err_code: "UPGRADE_REQUIRED",
                err_msg: "This would be accepted as a WebSocket: connect with ws:// or wss://.".into(),
                retry_after: None,
            }
        }
        Err(error) => session::refusal(&error),
    }
}

/// The answer to the client's `Sec-WebSocket-Key`; `None` if no upgrade is asked for.
fn accept_key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    if !lists(headers, &UPGRADE, "websocket") {
        return Ok(None);
    }
    if !lists(headers, &CONNECTION, "upgrade") {
        return Err(Refusal::bad_request("An upgrade needs `Connection: Upgrade`."));
    }
    if headers.get("sec-websocket-version").is_none_or(|version| version != "13") {
        return Err(Refusal::bad_request("Only WebSocket version 13 is spoken here."));
    }
    match headers.get("sec-websocket-key") {
        Some(key) if key.len() == 24 => Ok(Some(derive_accept_key(key.as_bytes()))),
        Some(_) | None => Err(Refusal::bad_request("`Sec-WebSocket-Key` must be 16 bytes in base64.")),
    }
}

/// Whether a comma-separated header names a word, in any case and on any of its lines.
fn lists(headers: &HeaderMap, name: &http::HeaderName, word: &str) -> bool {
    let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|entry| entry.trim().eq_ignore_ascii_case(word))
}

/// Whether the page that opens the socket was served by this listener.
fn from_own_page(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    let (Some(origin), None, Some(host)) = (origins.next(), origins.next(), headers.get(HOST)) else {
        return false;
    };
    origin.as_bytes().strip_prefix(b"http://").is_some_and(|rest| rest == host.as_bytes())
}

/// How a model is named to clients when its worker does not say more. The UUID is a hash of the name.
fn model(name: &str) -> Model {
    let digest: [u8; 32] = Sha256::digest(name.as_bytes()).into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(digest.split_at(16).0);
    Model {
        uuid: uuid::Builder::from_random_bytes(bytes).into_uuid().to_string(),
        name: name.to_owned(),
        version: "1".into(),
        arch: "external".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{accept_key, from_own_page, model};
    use http::HeaderMap;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().expect("a header value"));
        }
        headers
    }

    #[test]
    fn upgrade_is_read_without_case() {
        let sound = headers(&[
            ("connection", "keep-alive, upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ]);
        assert_eq!(accept_key(&sound), Ok(Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".into())));
        assert_eq!(accept_key(&headers(&[])), Ok(None));
        let halves: [&[(&str, &str)]; 2] =
            [&[("upgrade", "websocket")], &[("upgrade", "websocket"), ("connection", "upgrade")]];
        for half in halves {
            assert_eq!(accept_key(&headers(half)).map_err(|refusal| refusal.status), Err(400));
        }
    }

    #[test]
    fn own_page_needs_same_origin() {
        let page = |origin, host| from_own_page(&headers(&[("origin", origin), ("host", host)]));
        assert!(page("http://127.0.0.1:8080", "127.0.0.1:8080"));
        assert!(!page("http://127.0.0.1:8081", "127.0.0.1:8080"));
        assert!(!page("https://127.0.0.1:8080", "127.0.0.1:8080"));
        assert!(!page("null", "127.0.0.1:8080"));
        let twice = headers(&[("origin", "http://a"), ("origin", "http://a"), ("host", "a")]);
        assert!(!from_own_page(&twice));
    }

    #[test]
    fn model_uuid_stays_the_same() {
        assert_eq!(model("a").uuid, model("a").uuid);
        assert_ne!(model("a").uuid, model("b").uuid);
    }
}
