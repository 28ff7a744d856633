//! Accounts, their balances and their top-ups over HTTP. Every amount is whole units.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use serde::{Deserialize, Serialize};

use crate::quota::{Account, AccountChange, Name, PeriodRule, Quota, TopupError};
use crate::units::Units;

use super::Room;
use super::body::{Amount, Faults, Field, Flag, Id, Period, Sent, Share, Unknown, Zone, id as parse_id};
use super::problem::Problem;
use super::shapes::{AccountShape, BalanceShape, OperatedShape};

/// The routes below `/v1`.
pub(super) fn routes() -> Router<Room> {
    Router::new()
        .route("/v1/accounts", routing::get(list).post(create))
        .route("/v1/accounts/{id}", routing::get(show).patch(change).delete(delete))
        .route("/v1/accounts/{id}/balance", routing::get(balance))
        .route("/v1/accounts/{id}/topups", routing::post(topup))
}

#[derive(Serialize)]
struct AccountList {
    accounts: Vec<AccountShape>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NewAccount {
    id: Field<Id>,
    cap: Field<Amount>,
    period: Field<Period>,
    zone: Field<Zone>,
    share: Field<Share>,
    frozen: Field<Flag>,
    #[serde(flatten)]
    rest: Unknown,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NewTerms {
    cap: Field<Amount>,
    period: Field<Period>,
    zone: Field<Zone>,
    share: Field<Share>,
    frozen: Field<Flag>,
    #[serde(flatten)]
    rest: Unknown,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NewTopup {
    id: Field<Id>,
    amount: Field<Amount>,
    period: Field<Id>,
    #[serde(flatten)]
    rest: Unknown,
}

#[derive(Serialize)]
struct TopupShape {
    id: String,
    amount: u64,
    period: String,
    /// All top-ups of that period, this one included.
    sum: u64,
}

async fn list(State(room): State<Room>) -> Result<Json<AccountList>, Problem> {
    let now = now(&room.quota).await?;
    let shape = |(id, account): (Name, Option<Account>)| match account {
        Some(account) => AccountShape::of(&account, now),
        None => AccountShape::Damaged { id: id.as_str().to_owned(), damaged: true },
    };
    let accounts = room.quota.accounts_and_damaged().await?.into_iter().map(shape).collect();
    Ok(Json(AccountList { accounts }))
}

async fn create(State(room): State<Room>, Sent(body): Sent<NewAccount>) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let id = faults.must("id", body.id);
    let cap = faults.must("cap", body.cap);
    let period = faults.may("period", body.period).unwrap_or(PeriodRule::Day);
    let zone = faults.may("zone", body.zone).unwrap_or_else(|| "UTC".to_owned());
    let share = faults.may("share", body.share).unwrap_or(room.share);
    let frozen = faults.may("frozen", body.frozen).unwrap_or(false);
    let (id, cap) = faults.finish_with(&body.rest, id.zip(cap))?;
    let account = Account { period, zone, share, frozen, ..Account::new(id, cap) };
    if !room.quota.create_account(&account).await? {
        return Err(Problem::exists("account"));
    }
    let place = format!("/v1/accounts/{}", account.id.as_str());
    let shape = AccountShape::of(&account, now(&room.quota).await?);
    Ok((StatusCode::CREATED, [(header::LOCATION, place)], Json(shape)).into_response())
}

async fn show(State(room): State<Room>, Path(id): Path<String>) -> Result<Json<AccountShape>, Problem> {
    let account = find(&room.quota, &id).await?;
    Ok(Json(AccountShape::of(&account, now(&room.quota).await?)))
}

async fn change(
    State(room): State<Room>,
    Path(id): Path<String>,
    Sent(body): Sent<NewTerms>,
) -> Result<Json<AccountShape>, Problem> {
    let mut faults = Faults::default();
    let change = AccountChange {
        cap: faults.may("cap", body.cap),
        period: faults.may("period", body.period),
        zone: faults.may("zone", body.zone),
        share: faults.may("share", body.share),
        frozen: faults.may("frozen", body.frozen),
    };
    faults.finish(&body.rest)?;
    if change == AccountChange::default() {
        return Err(Problem::nothing_to_change("`cap`, `period`, `zone`, `share` or `frozen`"));
    }
    let id = name(&id)?;
    let changed = room.quota.change_account(&id, &change).await?;
    let account = changed.ok_or_else(|| Problem::not_found("account"))?;
    Ok(Json(AccountShape::of(&account, now(&room.quota).await?)))
}

async fn delete(State(room): State<Room>, Path(id): Path<String>) -> Result<Json<OperatedShape>, Problem> {
    let operated = room.quota.delete_account(&name(&id)?).await?;
    let operated = operated.ok_or_else(|| Problem::not_found("account"))?;
    if operated.stuck > 0 {
        return Err(Problem::stuck(operated.stuck));
    }
    Ok(Json(operated.into()))
}

async fn balance(State(room): State<Room>, Path(id): Path<String>) -> Result<Json<BalanceShape>, Problem> {
    let account = find(&room.quota, &id).await?;
    Ok(Json(room.quota.balance(&account).await?.into()))
}

async fn topup(
    State(room): State<Room>,
    Path(account): Path<String>,
    headers: HeaderMap,
    Sent(body): Sent<NewTopup>,
) -> Result<Response, Problem> {
    let mut faults = Faults::default();
    let header = idempotency_key(&headers)?;
    let sent = faults.may("id", body.id);
    if let (Some(header), Some(sent)) = (&header, &sent)
        && header != sent
    {
        faults.note("id", "differs from the Idempotency-Key header; send one of them");
    }
    if header.is_none() && sent.is_none() {
        faults.note("id", "is needed, here or as the Idempotency-Key header: 1 to 64 of A-Z a-z 0-9 - _ .");
    }
    let amount = faults.must("amount", body.amount);
    if amount.is_some_and(Units::is_zero) {
        faults.note("amount", "must be at least 1");
    }
    let period = faults.may("period", body.period);
    let (id, amount) = faults.finish_with(&body.rest, sent.or(header).zip(amount))?;
    let period = period.as_ref().map(Name::as_str);
    let made = room.quota.topup(&name(&account)?, &id, amount, period).await?;
    let shape = TopupShape {
        id: id.as_str().to_owned(),
        amount: amount.get(),
        period: made.period,
        sum: made.sum.get(),
    };
    // The same bytes and status again, so that a client need not tell the two apart.
    let replayed = [("idempotent-replayed", if made.replay { "true" } else { "false" })];
    Ok((StatusCode::CREATED, replayed, Json(shape)).into_response())
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<Name>, Problem> {
    let mut all = headers.get_all("idempotency-key").iter();
    let Some(value) = all.next() else { return Ok(None) };
    let name = value.to_str().ok().and_then(|text| parse_id(text.trim_matches('"')));
    name.filter(|_| all.next().is_none())
        .map(Some)
        .ok_or_else(|| Problem::malformed("Idempotency-Key must be one name of 1 to 64 of A-Z a-z 0-9 - _ ."))
}

impl From<TopupError> for Problem {
    fn from(error: TopupError) -> Self {
        match error {
            TopupError::Conflict => Self::conflict(
                "urn:voxgate:problem:topup-conflict",
                "This id was used with another amount. Use a new id for a new top-up.",
            ),
            TopupError::Amount => Self::unprocessable(
                "urn:voxgate:problem:amount-too-large",
                "The cap and its top-ups may not pass 9007199254740991 together; send a smaller amount.",
            ),
            TopupError::Unknown => Self::not_found("account"),
            TopupError::Period(_) => Self::unprocessable(
                "urn:voxgate:problem:wrong-period",
                "Only the running period and the next one can be raised; leave `period` out for the running one.",
            ),
            TopupError::Store(error) => error.into(),
        }
    }
}

/// The account of that id; an id outside the alphabet is like one that nobody has.
pub(super) async fn find(quota: &Quota, id: &str) -> Result<Account, Problem> {
    quota.account(&name(id)?).await?.ok_or_else(|| Problem::not_found("account"))
}

pub(super) fn name(id: &str) -> Result<Name, Problem> {
    parse_id(id).ok_or_else(|| Problem::not_found("account"))
}

/// Unix second of the store's clock.
async fn now(quota: &Quota) -> Result<i64, Problem> {
    let ms = quota.store_now_ms().await?;
    Ok(i64::try_from(ms / 1000).unwrap_or(i64::MAX))
}
