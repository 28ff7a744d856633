//! Accounts, their balances and their keys over HTTP. Every amount is whole units.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use serde_json::{Value, json};

use crate::quota::{Account, Balance, Key, Name, PeriodRule, Quota};

use super::Room;
use super::fields::Fields;
use super::problem::Problem;

/// Live streams of a key when nothing else is said.
const KEY_STREAMS: u32 = 16;
/// Most live streams of a key.
const KEY_STREAMS_MAX: u32 = 65_536;

/// The routes below `/v1`.
pub(super) fn routes() -> Router<Room> {
    Router::new()
        .route("/v1/accounts", routing::get(list).post(create))
        .route("/v1/accounts/{id}", routing::get(show).patch(change))
        .route("/v1/accounts/{id}/balance", routing::get(balance))
        .route("/v1/accounts/{id}/keys", routing::get(keys).post(add_key))
}

async fn list(State(room): State<Room>) -> Result<Json<Value>, Problem> {
    let accounts = room.quota.accounts().await?;
    Ok(Json(json!({ "accounts": accounts.iter().map(account_json).collect::<Vec<_>>() })))
}

async fn create(State(room): State<Room>, body: Bytes) -> Result<Response, Problem> {
    let mut fields = Fields::parse(&body)?;
    let id = fields.name("id");
    let id = fields.needed("id", id);
    let cap = fields.units("cap");
    let cap = fields.needed("cap", cap);
    let period = fields.period("period").unwrap_or(PeriodRule::Day);
    let zone = fields.zone("zone").unwrap_or_else(|| "UTC".to_owned());
    let share = fields.whole("share", 1, 1024).unwrap_or(room.share);
    let frozen = fields.flag("frozen").unwrap_or(false);
    fields.finish()?;
    let (Some(id), Some(cap)) = (id, cap) else {
        return Err(Problem::malformed("`id` and `cap` are needed."));
    };
    if room.quota.account(&id).await?.is_some() {
        return Err(Problem::exists("account"));
    }
    let account = Account { period, zone, share, frozen, ..Account::new(id, cap) };
    room.quota.put_account(&account).await?;
    let place = format!("/v1/accounts/{}", account.id.as_str());
    Ok((StatusCode::CREATED, [(header::LOCATION, place)], Json(account_json(&account))).into_response())
}

async fn show(State(room): State<Room>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    Ok(Json(account_json(&find(&room.quota, &id).await?)))
}

async fn change(
    State(room): State<Room>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let mut fields = Fields::parse(&body)?;
    let (cap, period, zone) = (fields.units("cap"), fields.period("period"), fields.zone("zone"));
    let (share, frozen) = (fields.whole("share", 1, 1024), fields.flag("frozen"));
    fields.finish()?;
    let old = find(&room.quota, &id).await?;
    let account = Account {
        cap: cap.unwrap_or(old.cap),
        period: period.unwrap_or(old.period),
        zone: zone.unwrap_or(old.zone),
        share: share.unwrap_or(old.share),
        frozen: frozen.unwrap_or(old.frozen),
        ..old
    };
    room.quota.put_account(&account).await?;
    Ok(Json(account_json(&account)))
}

async fn balance(State(room): State<Room>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let account = find(&room.quota, &id).await?;
    Ok(Json(balance_json(&room.quota.balance(&account).await?)))
}

async fn keys(State(room): State<Room>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let account = find(&room.quota, &id).await?;
    let keys = room.quota.keys(&account.id).await?;
    Ok(Json(json!({ "keys": keys.iter().map(key_json).collect::<Vec<_>>() })))
}

async fn add_key(State(room): State<Room>, Path(id): Path<String>, body: Bytes) -> Result<Response, Problem> {
    let mut fields = Fields::parse(&body)?;
    let label = fields.label("label").unwrap_or_default();
    let cap = fields.units_or_null("cap").flatten();
    let session_cap = fields.units_or_null("session_cap").flatten();
    let streams_max = fields.whole("streams_max", 1, KEY_STREAMS_MAX).unwrap_or(KEY_STREAMS);
    let models = fields.names("models").unwrap_or_default();
    fields.finish()?;
    let account = find(&room.quota, &id).await?.id;
    let fingerprint = String::new();
    let wanted = Key { fingerprint, account, label, cap, session_cap, streams_max, models, revoked: false };
    let (secret, key) = room.quota.add_key(wanted).await?;
    let mut answer = key_json(&key);
    if let Value::Object(map) = &mut answer {
        map.insert("secret".to_owned(), Value::String(secret));
    }
    let seen_once = [(header::CACHE_CONTROL, "no-store")];
    Ok((StatusCode::CREATED, seen_once, Json(answer)).into_response())
}

/// The account of that id; an id outside the alphabet is like one that nobody has.
async fn find(quota: &Quota, id: &str) -> Result<Account, Problem> {
    let name = Name::parse(id).ok_or_else(|| Problem::not_found("account"))?;
    quota.account(&name).await?.ok_or_else(|| Problem::not_found("account"))
}

fn account_json(account: &Account) -> Value {
    json!({
        "id": account.id.as_str(),
        "cap": account.cap.get(),
        "period": account.period.word(),
        "zone": account.zone,
        "share": account.share,
        "frozen": account.frozen,
    })
}

fn balance_json(balance: &Balance) -> Value {
    json!({
        "period": balance.period,
        "starts_at": time(balance.starts_at),
        "ends_at": time(balance.ends_at),
        "cap": balance.cap.get(),
        "taken": balance.taken.get(),
        "held": balance.held.get(),
        "settled": balance.settled.get(),
        "left": balance.left.get(),
        "drift": balance.drift,
        "leases": balance.leases,
    })
}

fn key_json(key: &Key) -> Value {
    json!({
        "fingerprint": key.fingerprint,
        "account": key.account.as_str(),
        "label": key.label,
        "cap": key.cap.map(crate::units::Units::get),
        "session_cap": key.session_cap.map(crate::units::Units::get),
        "streams_max": key.streams_max,
        "models": key.models,
        "revoked": key.revoked,
    })
}

/// RFC 3339 in UTC.
fn time(unix_seconds: i64) -> Option<String> {
    jiff::Timestamp::from_second(unix_seconds).ok().map(|time| time.to_string())
}
