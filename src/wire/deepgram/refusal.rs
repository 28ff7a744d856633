//! Every answer that refuses a handshake: status, headers' text and body.
//!
//! The texts name what to change. They never hold a credential, and they are safe as header values.

use serde_json::json;

/// Why a handshake is refused, before any upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status, 400 to 503.
    pub status: u16,
    /// The dialect's code.
    pub err_code: &'static str,
    /// What went wrong and what helps: printable ASCII, at most 512 bytes; also the `dg-error` header.
    pub err_msg: String,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
}

impl Refusal {
    /// 400: the request as such makes no sense.
    pub fn bad_request(why: &str) -> Self {
        Self::new(400, "Bad Request", why)
    }

    /// 400: a query parameter has an impossible value.
    pub fn bad_query(why: &str) -> Self {
        Self::new(400, "INVALID_QUERY_PARAMETER", why)
    }

    /// 401: an unknown, revoked or forged credential. Never says which.
    pub fn invalid_auth() -> Self {
        Self::new(401, "INVALID_AUTH", "Invalid credentials.")
    }

    /// 401: a token that was ours, too late.
    pub fn expired_token() -> Self {
        Self::new(401, "INVALID_AUTH", "Invalid credentials. The token has expired; ask for a new one.")
    }

    /// 401: there is no credential that could be read; says how to send one.
    pub fn unreadable_auth() -> Self {
        Self::new(
            401,
            "INVALID_AUTH",
            "Invalid credentials. Send the header `Authorization: Token KEY` (or `Bearer TOKEN`), or offer the \
             subprotocols `token, KEY` (or `bearer, TOKEN`).",
        )
    }

    /// 401: the key is known and may not do this.
    pub fn insufficient_scope() -> Self {
        Self::new(401, "INSUFFICIENT_PERMISSIONS", "This key may not open streams.")
    }

    /// 402: the budget is used up; `renews_in` seconds until the next period, if one is coming.
    pub fn no_budget(renews_in: Option<u32>) -> Self {
        let when = renews_in.map_or_else(String::new, |s| format!(" It renews in {s} s."));
        let text =
            format!("The project does not have enough credits: its budget for this period is spent.{when}");
        Self::new(402, PAYMENT, &text).retry_in(renews_in)
    }

    /// 402: the key's own cap is used up; `renews_in` seconds until the next period.
    pub fn key_spent(renews_in: Option<u32>) -> Self {
        let when = renews_in.map_or_else(String::new, |s| format!(" It renews in {s} s."));
        let text =
            format!("This API key does not have enough credits: its own cap for this period is spent.{when}");
        Self::new(402, PAYMENT, &text).retry_in(renews_in)
    }

    /// 402: what is left of the budget is held by other streams, at the latest for `back_in` seconds.
    pub fn budget_held(back_in: Option<u32>) -> Self {
        let when = back_in.map_or_else(String::new, |s| format!(" Units come back within {s} s."));
        let text =
            format!("The project does not have enough free credits: open streams hold the rest.{when}");
        Self::new(402, PAYMENT, &text).retry_in(back_in)
    }

    /// 402: this session has used its own cap.
    pub fn session_spent() -> Self {
        Self::new(402, PAYMENT, "This session does not have enough credits: its own cap is spent.")
    }

    /// 403: the key may not use this model.
    pub fn forbidden_model() -> Self {
        Self::new(403, "INSUFFICIENT_PERMISSIONS", "This key may not use the requested model.")
    }

    /// 403: the account is frozen, the session ended or owned by somebody else, or the endpoint closed to the key.
    pub fn forbidden(why: &str) -> Self {
        Self::new(403, "FORBIDDEN", why)
    }

    /// 403: the page that opens the socket is not on the list.
    pub fn origin() -> Self {
        Self::new(403, "FORBIDDEN", "This origin may not open streams; ask the operator to allow it.")
    }

    /// 404: no such path.
    pub fn not_found() -> Self {
        Self::new(404, "NOT_FOUND", "No such path; live transcription is at /v1/listen.")
    }

    /// 429: as many streams are open as may be.
    pub fn too_many_streams(retry_after: u32) -> Self {
        let text = "Too many streams are open at once. Please try again later.";
        Self::new(429, "TOO_MANY_REQUESTS", text).retry_in(Some(retry_after))
    }

    /// 429: this key has got as many tokens as it may for now.
    pub fn too_many_tokens(retry_after: u32) -> Self {
        let text = "Too many tokens were asked for with this key. Please try again later.";
        Self::new(429, "TOO_MANY_REQUESTS", text).retry_in(Some(retry_after))
    }

    /// 503: no worker, no store, or the gateway is on its way out.
    pub fn unavailable(why: &str, retry_after: u32) -> Self {
        Self::new(503, "SERVICE_UNAVAILABLE", why).retry_in(Some(retry_after))
    }

    /// 500: a bug of ours.
    pub fn internal() -> Self {
        Self::new(500, "INTERNAL_SERVER_ERROR", "The gateway failed; the request id helps to find out why.")
    }

    /// The JSON body: `err_code`, `err_msg`, `request_id`.
    pub fn body(&self, request_id: &str) -> String {
        json!({ "err_code": self.err_code, "err_msg": self.err_msg, "request_id": request_id }).to_string()
    }

    fn new(status: u16, err_code: &'static str, text: &str) -> Self {
        let printable = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
        Self { status, err_code, err_msg: text.chars().take(512).map(printable).collect(), retry_after: None }
    }

    fn retry_in(self, seconds: Option<u32>) -> Self {
        Self { retry_after: seconds, ..self }
    }
}

const PAYMENT: &str = "ASR_PAYMENT_REQUIRED";
