//! The operators' listener: health, readiness, metrics, accounts, keys, sessions, ledger, audit. Never streams audio.
//!
//! `/healthz`, `/readyz`, `/version` and `/metrics` need no token and tell no internals beyond the names of
//! parts: keep the listener on loopback or a private network, as the configuration insists. Everything below
//! `/v1` needs the bearer token. Errors are `application/problem+json`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use serde_json::json;

mod access;
mod accounts;
mod body;
mod books;
mod keys;
mod problem;
mod ready;
mod serve;
mod sessions;
mod shapes;
mod token;

pub use body::BODY_BYTES_MAX;
pub use ready::{Readiness, watch};
pub use serve::serve;
pub use token::{TokenFile, make_token, read_token, token_path};

use access::Access;
use problem::Problem;

use crate::config::Secret;
use crate::quota::Quota;
use crate::telemetry::Metrics;

/// What the admin listener needs.
#[derive(Clone)]
pub struct Parts {
    /// Where accounts and keys are.
    pub quota: Quota,
    /// What `/readyz` tells.
    pub readiness: Readiness,
    /// What `/metrics` shows.
    pub metrics: Metrics,
    /// The bearer token.
    pub token: Secret,
    /// Default share of new accounts.
    pub share: u32,
}

/// What handlers share.
#[derive(Clone)]
struct Room {
    quota: Quota,
    readiness: Readiness,
    metrics: Metrics,
    access: Arc<Access>,
    share: u32,
}

/// The whole admin API as a service. Callers put the peer's address in as [`ConnectInfo`].
pub fn router(parts: Parts) -> Router {
    let Parts { quota, readiness, metrics, token, share } = parts;
    let room = Room { quota, readiness, metrics, access: Arc::new(Access::new(token)), share };
    let guarded = accounts::routes()
        .merge(keys::routes())
        .merge(sessions::routes())
        .merge(books::routes())
        .route_layer(middleware::from_fn_with_state(room.clone(), guard));
    Router::new()
        .route("/healthz", routing::get(async || "ok\n"))
        .route("/readyz", routing::get(readyz))
        .route("/metrics", routing::get(show_metrics))
        .route("/version", routing::get(version))
        .merge(guarded)
        .fallback(async || Problem::not_found("page"))
        .method_not_allowed_fallback(async || Problem::wrong_method())
        .layer(middleware::from_fn(finish))
        .with_state(room)
}

async fn readyz(State(room): State<Room>) -> impl IntoResponse {
    let parts = room.readiness.parts();
    let ready = room.readiness.is_ready();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": ready, "parts": parts })))
}

async fn show_metrics(State(room): State<Room>) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], room.metrics.render())
}

async fn version() -> impl IntoResponse {
    Json(json!({ "name": "voxgate", "version": env!("CARGO_PKG_VERSION") }))
}

/// Lets only the token's holder through. Requests without a known peer count as coming from nowhere.
async fn guard(State(room): State<Room>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let from = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(address)| address.ip());
    match room.access.check(request.headers(), from, Instant::now()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Gives every answer what all answers have: counted, never cached or sniffed, problems for all errors.
async fn finish(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    // A path that is no UTF-8 is answered by axum itself, in plain text.
    let plain =
        response.headers().get(header::CONTENT_TYPE).is_none_or(|kind| kind != "application/problem+json");
    if response.status() == StatusCode::BAD_REQUEST && plain {
        response = Problem::odd_address().into_response();
    }
    let class = match response.status().as_u16() {
        ..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        500.. => "5xx",
    };
    metrics::counter!("voxgate_admin_requests_total", "status" => class).increment(1);
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests;
