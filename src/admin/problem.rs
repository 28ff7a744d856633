//! Refusals of the admin API as RFC 9457 `application/problem+json`: a stable `type`, and a `detail` that
//! says what to do. No store text, path or secret ever gets into one.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::quota::store::StoreError;

use super::shapes::MismatchShape;

/// One refusal.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldFault>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mismatches: Vec<MismatchShape>,
    #[serde(skip)]
    retry_after: Option<u32>,
}

/// What is wrong with one field of a body.
#[derive(Debug, Serialize)]
pub(super) struct FieldFault {
    pub(super) field: String,
    pub(super) detail: String,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, title: &'static str, detail: impl Into<String>) -> Self {
        let (status, detail) = (status.as_u16(), detail.into());
        Self { kind, title, status, detail, errors: Vec::new(), mismatches: Vec::new(), retry_after: None }
    }

    pub(super) fn unauthorized() -> Self {
        let detail = "Send the admin token as `Authorization: Bearer <token>`. The server's log names the file \
                      that holds it.";
        Self::new(StatusCode::UNAUTHORIZED, "urn:voxgate:problem:unauthorized", "Admin token needed", detail)
    }

    pub(super) fn too_many_failures(seconds: u32) -> Self {
        let detail = format!("Too many wrong tokens from this address; try again in {seconds} s.");
        let kind = "urn:voxgate:problem:too-many-failures";
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, kind, "Too many wrong tokens", detail);
        Self { retry_after: Some(seconds), ..problem }
    }

    pub(super) fn not_found(what: &str) -> Self {
        let detail = format!("There is no such {what}.");
        Self::new(StatusCode::NOT_FOUND, "urn:voxgate:problem:not-found", "Not found", detail)
    }

    pub(super) fn wrong_method() -> Self {
        let detail = "This address does not take that method; the `Allow` header names those it takes.";
        let kind = "urn:voxgate:problem:method-not-allowed";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, kind, "Method not allowed", detail)
    }

    pub(super) fn exists(what: &str) -> Self {
        let detail = format!("This {what} is there already; change it with PATCH.");
        Self::new(StatusCode::CONFLICT, "urn:voxgate:problem:already-exists", "Already there", detail)
    }

    /// What was asked for does not go with what is there. `kind` is the type.
    pub(super) fn conflict(kind: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, kind, "Does not go with what is there", detail)
    }

    /// With what a budget was found to differ in.
    pub(super) fn with(self, mismatches: Vec<MismatchShape>) -> Self {
        Self { mismatches, ..self }
    }

    /// Well formed, but it can't be done. `kind` is the type.
    pub(super) fn unprocessable(kind: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, kind, "Can't be done as asked", detail)
    }

    /// Leases that can't be closed.
    pub(super) fn stuck(leases: u64) -> Self {
        let detail = format!(
            "{leases} leases can't be closed: a key of theirs in the store is damaged. Nothing was lost; look at the \
             leases in quarantine and the server's log, mend or remove the damaged key, then send this again."
        );
        Self::conflict("urn:voxgate:problem:leases-stuck", detail)
    }

    pub(super) fn nothing_to_change(fields: &str) -> Self {
        let kind = "urn:voxgate:problem:nothing-to-change";
        let detail = format!("Name at least one field: {fields}.");
        Self::new(StatusCode::BAD_REQUEST, kind, "Nothing to change", detail)
    }

    pub(super) fn too_slow(seconds: u64) -> Self {
        let kind = "urn:voxgate:problem:body-too-slow";
        let detail = format!("The body must arrive within {seconds} s; send it again on a new connection.");
        Self::new(StatusCode::REQUEST_TIMEOUT, kind, "Body too slow", detail)
    }

    /// An address that is no text.
    pub(super) fn odd_address() -> Self {
        let kind = "urn:voxgate:problem:malformed-address";
        let detail = "The address can't be read; its path must be UTF-8 with %-escapes.";
        Self::new(StatusCode::BAD_REQUEST, kind, "Address can't be read", detail)
    }

    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        let kind = "urn:voxgate:problem:malformed-body";
        Self::new(StatusCode::BAD_REQUEST, kind, "Body can't be read", detail)
    }

    pub(super) fn too_large(bytes_max: usize) -> Self {
        let detail = format!("A body may have at most {bytes_max} bytes.");
        let kind = "urn:voxgate:problem:body-too-large";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, kind, "Body too large", detail)
    }

    pub(super) fn invalid(errors: Vec<FieldFault>) -> Self {
        let detail = "Mend the fields named in `errors` and send it again.";
        let kind = "urn:voxgate:problem:invalid-fields";
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self { errors, ..Self::new(status, kind, "Fields are not allowed as they are", detail) }
    }
}

impl From<StoreError> for Problem {
    /// The store's own words stay in the log: they may name hosts and keys.
    fn from(error: StoreError) -> Self {
        tracing::warn!(kind = error.word(), %error, "admin request without an answer from the store");
        if matches!(error, StoreError::Corrupt(_)) {
            let kind = "urn:voxgate:problem:record-damaged";
            let detail = "A record of this in the store is damaged; the server's log names its key. Mend or remove it, \
                          then send this again.";
            return Self::new(StatusCode::INTERNAL_SERVER_ERROR, kind, "Record damaged", detail);
        }
        let kind = "urn:voxgate:problem:store-unavailable";
        let detail = format!(
            "The store gave no answer ({}). For a change, read it back to see whether it took hold; then try \
             again.",
            error.word()
        );
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, kind, "Store does not answer", detail);
        Self { retry_after: Some(1), ..problem }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(&self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::REQUEST_TIMEOUT {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"voxgate\""));
        }
        response
    }
}
