//! HTTP answers of the public listener: refusals, pages, the upgrade. Every one carries the request's id.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, RETRY_AFTER,
    SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;

use super::meters;
use super::pages::Page;
use crate::wire::deepgram::Refusal;

/// What the listener answers.
pub(super) type Answer = Response<Full<Bytes>>;

/// A refusal, its text in the body and in `dg-error`.
pub(super) fn refused(refusal: &Refusal, request_id: &str) -> Answer {
    meters::refused(refusal.status);
    let mut answer = json(refusal.status, refusal.body(request_id), request_id);
    put(&mut answer, DG_ERROR, &refusal.err_msg);
    if let Some(seconds) = refusal.retry_after {
        put(&mut answer, RETRY_AFTER, &seconds.to_string());
    }
    answer
}

/// JSON with any status.
pub(super) fn json(status: u16, body: String, request_id: &str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    put(&mut answer, CONTENT_TYPE, "application/json");
    put(&mut answer, CACHE_CONTROL, "no-store");
    put(&mut answer, X_CONTENT_TYPE_OPTIONS, "nosniff");
    put(&mut answer, DG_REQUEST_ID, request_id);
    answer
}

/// A file of the demo page.
pub(super) fn page(page: &Page, request_id: &str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from_static(page.body)));
    put(&mut answer, CONTENT_TYPE, page.kind);
    put(&mut answer, CACHE_CONTROL, "no-cache");
    put(&mut answer, CONTENT_SECURITY_POLICY, POLICY);
    put(&mut answer, X_CONTENT_TYPE_OPTIONS, "nosniff");
    put(&mut answer, HeaderName::from_static("referrer-policy"), "no-referrer");
    put(&mut answer, DG_REQUEST_ID, request_id);
    answer
}

/// The upgrade to a WebSocket: `accept` is the hash of the client's key, `protocol` one of the names it offered.
pub(super) fn upgrade(accept: &str, protocol: Option<&str>, session: &str, request_id: &str) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    put(&mut answer, CONNECTION, "Upgrade");
    put(&mut answer, UPGRADE, "websocket");
    put(&mut answer, SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(protocol) = protocol {
        put(&mut answer, SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    put(&mut answer, SESSION_ID, session);
    put(&mut answer, DG_REQUEST_ID, request_id);
    answer
}

/// Sets a header; a text that no header can carry is left out.
fn put(answer: &mut Answer, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
}

const DG_REQUEST_ID: HeaderName = HeaderName::from_static("dg-request-id");
const DG_ERROR: HeaderName = HeaderName::from_static("dg-error");
/// The session to come back to, by the query parameter `session_id`.
const SESSION_ID: HeaderName = HeaderName::from_static("voxgate-session-id");
/// The page loads nothing from elsewhere and runs nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; media-src 'self' blob:; worker-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";
