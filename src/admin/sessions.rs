//! Sessions and their leases over HTTP: made with a cap, looked at, capped anew, ended; leases closed by force.

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use serde::{Deserialize, Serialize};

use crate::quota::answer::Reaped;
use crate::quota::keys::Member;
use crate::quota::{Made, Name, Quota};
use crate::units::Units;

use super::Room;
use super::accounts::{find, name};
use super::body::{AmountOrNull, Faults, Field, Id, Sent, Unknown, id as parse_id};
use super::problem::Problem;
use super::shapes::{LeaseShape, OperatedShape, SessionShape};

/// The routes below `/v1`.
pub(super) fn routes() -> Router<Room> {
    Router::new()
        .route("/v1/accounts/{id}/sessions", routing::get(list).post(create))
        .route("/v1/accounts/{id}/sessions/{sid}", routing::get(show).patch(cap))
        .route("/v1/accounts/{id}/sessions/{sid}/end", routing::post(end))
        .route("/v1/accounts/{id}/leases", routing::get(leases))
        .route("/v1/accounts/{id}/leases/{lease}/settle", routing::post(settle))
}

#[derive(Serialize)]
struct SessionList {
    sessions: Vec<SessionShape>,
}

#[derive(Serialize)]
struct LeaseList {
    leases: Vec<LeaseShape>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NewSession {
    key: Field<Id>,
    session: Field<Id>,
    cap: Field<AmountOrNull>,
    #[serde(flatten)]
    rest: Unknown,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NewCap {
    cap: Field<AmountOrNull>,
    #[serde(flatten)]
    rest: Unknown,
}

/// What forcing one lease closed came to.
#[derive(Serialize)]
struct SettledShape {
    how: String,
    charged: u64,
    returned: u64,
    excess: u64,
}

async fn list(State(room): State<Room>, Path(id): Path<String>) -> Result<Json<SessionList>, Problem> {
    let account = find(&room.quota, &id).await?;
    let sessions = room.quota.sessions(&account.id).await?;
    Ok(Json(SessionList { sessions: sessions.into_iter().map(SessionShape::from).collect() }))
}

async fn create(
    State(room): State<Room>,
    Path(id): Path<String>,
    Sent(body): Sent<NewSession>,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let (key, session) = (faults.must("key", body.key), faults.must("session", body.session));
    let cap = faults.may("cap", body.cap).flatten();
    let (key, session) = faults.finish_with(&body.rest, key.zip(session))?;
    let account = find(&room.quota, &id).await?.id;
    let known = room.quota.key_named(&account, key.as_str()).await?;
    if known.ok_or_else(|| Problem::not_found("key"))?.revoked {
        return Err(Problem::conflict(
            "urn:voxgate:problem:key-revoked",
            "This key was revoked; make another key first.",
        ));
    }
    let status = match room.quota.create_session(&account, &key, &session, cap).await? {
        Made::Made => StatusCode::CREATED,
        Made::Again => StatusCode::OK,
        Made::Exists => return Err(Problem::exists("session")),
    };
    let sid = format!("{key}.{session}");
    let place = format!("/v1/accounts/{account}/sessions/{sid}");
    let shape = read(&room.quota, &account, &sid).await?;
    Ok((status, [(header::LOCATION, place)], Json(shape)).into_response())
}

async fn show(
    State(room): State<Room>,
    Path((id, sid)): Path<(String, String)>,
) -> Result<Json<SessionShape>, Problem> {
    Ok(Json(read(&room.quota, &name(&id)?, checked(&sid)?).await?))
}

async fn cap(
    State(room): State<Room>,
    Path((id, sid)): Path<(String, String)>,
    Sent(body): Sent<NewCap>,
) -> Result<Json<SessionShape>, Problem> {
    let mut faults = Faults::default();
    let cap = faults.may("cap", body.cap);
    faults.finish(&body.rest)?;
    let cap = cap.ok_or_else(|| Problem::nothing_to_change("`cap`"))?;
    let (account, sid) = (name(&id)?, checked(&sid)?);
    if !room.quota.raise_session_cap(&account, sid, cap).await? {
        return Err(Problem::not_found("session"));
    }
    Ok(Json(read(&room.quota, &account, sid).await?))
}

async fn end(
    State(room): State<Room>,
    Path((id, sid)): Path<(String, String)>,
) -> Result<Json<OperatedShape>, Problem> {
    let ended = room.quota.end_session(&name(&id)?, checked(&sid)?).await?;
    ended.map(|operated| Json(operated.into())).ok_or_else(|| Problem::not_found("session"))
}

async fn leases(State(room): State<Room>, Path(id): Path<String>) -> Result<Json<LeaseList>, Problem> {
    let account = find(&room.quota, &id).await?;
    let leases = room.quota.open_leases(&account.id).await?;
    Ok(Json(LeaseList { leases: leases.into_iter().map(LeaseShape::from).collect() }))
}

async fn settle(
    State(room): State<Room>,
    Path((id, lease)): Path<(String, String)>,
) -> Result<Json<SettledShape>, Problem> {
    let member = Member::parse(&lease).filter(|member| {
        checked(&member.sid).is_ok()
            && parse_id(&member.period).is_some()
            && Units::parse(&member.granted).is_some()
            && member.to_string() == lease
    });
    let member = member.ok_or_else(|| Problem::not_found("open lease"))?;
    match room.quota.force_settle(&name(&id)?, &member).await? {
        Reaped::Closed { how, bill } => Ok(Json(SettledShape {
            how,
            charged: bill.charged.get(),
            returned: bill.returned.get(),
            excess: bill.excess.get(),
        })),
        Reaped::NotDue | Reaped::Unknown => Err(Problem::not_found("open lease")),
        Reaped::Corrupt(_) => Err(Problem::stuck(1)),
    }
}

async fn read(quota: &Quota, account: &Name, sid: &str) -> Result<SessionShape, Problem> {
    let session = quota.session(account, sid).await?;
    session.map(SessionShape::from).ok_or_else(|| Problem::not_found("session"))
}

/// A session's id (`<fingerprint>.<name>`) that can't reach beyond its place in a key.
fn checked(sid: &str) -> Result<&str, Problem> {
    let sound = sid
        .split_once('.')
        .is_some_and(|(key, session)| Name::parse(key).is_some() && Name::parse(session).is_some());
    sound.then_some(sid).ok_or_else(|| Problem::not_found("session"))
}
