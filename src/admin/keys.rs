//! API keys over HTTP: made, listed by fingerprint, revoked. A secret is in one answer only, the one that makes it.

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use serde::{Deserialize, Serialize};

use crate::quota::Key;

use super::Room;
use super::accounts::{find, name};
use super::body::{AmountOrNull, Faults, Field, Label, Models, Sent, Streams, Unknown, id as parse_id};
use super::problem::Problem;
use super::shapes::KeyShape;

/// Live streams of a key when nothing else is said.
const KEY_STREAMS: u32 = 16;

/// The routes below `/v1`.
pub(super) fn routes() -> Router<Room> {
    Router::new()
        .route("/v1/accounts/{id}/keys", routing::get(list).post(add))
        .route("/v1/accounts/{id}/keys/{fingerprint}", routing::get(show).delete(revoke))
        .route("/v1/accounts/{id}/keys/{fingerprint}/revoke", routing::post(revoke))
}

#[derive(Serialize)]
struct KeyList {
    keys: Vec<KeyShape>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NewKey {
    label: Field<Label>,
    cap: Field<AmountOrNull>,
    session_cap: Field<AmountOrNull>,
    streams_max: Field<Streams>,
    models: Field<Models>,
    #[serde(flatten)]
    rest: Unknown,
}

#[derive(Serialize)]
struct Revoked {
    fingerprint: String,
    revoked: bool,
    takes_hold: &'static str,
}

async fn list(State(room): State<Room>, Path(id): Path<String>) -> Result<Json<KeyList>, Problem> {
    let account = find(&room.quota, &id).await?;
    let keys = room.quota.keys(&account.id).await?.into_iter().map(KeyShape::from).collect();
    Ok(Json(KeyList { keys }))
}

async fn show(
    State(room): State<Room>,
    Path((id, fingerprint)): Path<(String, String)>,
) -> Result<Json<KeyShape>, Problem> {
    let known = parse_id(&fingerprint).ok_or_else(|| Problem::not_found("key"))?;
    let key = room.quota.key_named(&name(&id)?, known.as_str()).await?;
    key.map(|key| Json(key.into())).ok_or_else(|| Problem::not_found("key"))
}

async fn add(
    State(room): State<Room>,
    Path(id): Path<String>,
    Sent(body): Sent<NewKey>,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let label = faults.may("label", body.label).unwrap_or_default();
    let cap = faults.may("cap", body.cap).flatten();
    let session_cap = faults.may("session_cap", body.session_cap).flatten();
    let streams_max = faults.may("streams_max", body.streams_max).unwrap_or(KEY_STREAMS);
    let models = faults.may("models", body.models).unwrap_or_default();
    faults.finish(&body.rest)?;
    let account = find(&room.quota, &id).await?.id;
    let fingerprint = String::new();
    let wanted = Key { fingerprint, account, label, cap, session_cap, streams_max, models, revoked: false };
    let (secret, key) = room.quota.add_key(wanted).await?;
    let shape = KeyShape::from(key).with_secret(secret);
    let seen_once = [(header::CACHE_CONTROL, "no-store")];
    Ok((StatusCode::CREATED, seen_once, Json(shape)).into_response())
}

async fn revoke(
    State(room): State<Room>,
    Path((id, fingerprint)): Path<(String, String)>,
) -> Result<Json<Revoked>, Problem> {
    let known = parse_id(&fingerprint).ok_or_else(|| Problem::not_found("key"))?;
    if !room.quota.revoke_key(&name(&id)?, &known).await? {
        return Err(Problem::not_found("key"));
    }
    let takes_hold = "within 10 s, live streams included";
    const { assert!(crate::limits::HEARTBEAT.as_secs() == 10) };
    Ok(Json(Revoked { fingerprint, revoked: true, takes_hold }))
}
