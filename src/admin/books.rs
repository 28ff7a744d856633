//! Ledger and audit over HTTP: rows in pages, totals, what agrees and what does not, a budget written anew.

use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::limits::LEDGER_PAGE_MAX;
use crate::quota::audit::{AuditError, Mismatch};
use crate::quota::export::{csv_header, csv_line, json_line};
use crate::quota::ledger::{Cursor, Page};
use crate::quota::rebuild::{RebuildError, Rebuilt};
use crate::quota::{Name, Quota};

use super::Room;
use super::accounts::name;
use super::body::{Faults, Field, Flag, Id, Sent, Unknown, query};
use super::problem::Problem;
use super::shapes::{AuditShape, DeepShape, MismatchShape, PeriodShape, RoundShape};

/// Where to go on; not sent while there is nothing to go on from.
static CURSOR: HeaderName = HeaderName::from_static("voxgate-cursor");
/// `true` while there were more rows when the page was read.
static MORE: HeaderName = HeaderName::from_static("voxgate-more");

/// The routes below `/v1`.
pub(super) fn routes() -> Router<Room> {
    Router::new()
        .route("/v1/accounts/{id}/ledger", routing::get(ledger))
        .route("/v1/accounts/{id}/ledger/totals", routing::get(totals))
        .route("/v1/accounts/{id}/audit", routing::get(audit))
        .route("/v1/accounts/{id}/audit/rebuild", routing::post(rebuild))
        .route("/v1/audit", routing::get(round))
}

#[derive(Serialize)]
struct LedgerPage {
    rows: Vec<Box<RawValue>>,
    cursor: Option<String>,
    more: bool,
}

#[derive(Serialize)]
struct Totals {
    account: String,
    /// Rows of all periods whose budget is there.
    rows: u64,
    settled: u64,
    periods: Vec<PeriodShape>,
}

#[derive(Serialize)]
struct DeepAudit {
    account: String,
    agrees: bool,
    periods: Vec<DeepShape>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NewBudget {
    period: Field<Id>,
    force: Field<Flag>,
    #[serde(flatten)]
    rest: Unknown,
}

#[derive(Serialize)]
struct RebuiltShape {
    period: String,
    /// `false`: it was there and agreed.
    written: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<Sums>,
    was: Vec<MismatchShape>,
}

#[derive(Serialize)]
struct Sums {
    taken: u64,
    held: u64,
    settled: u64,
    rows: u64,
}

#[derive(Clone, Copy)]
enum Format {
    Json,
    JsonLines,
    Csv,
}

async fn ledger(
    State(room): State<Room>,
    Path(id): Path<String>,
    RawQuery(text): RawQuery,
) -> Result<Response, Problem> {
    let [cursor, limit, format] = query(text.as_deref(), ["cursor", "limit", "format"])?;
    let mut faults = Faults::default();
    let after = cursor.as_deref().filter(|text| !text.is_empty()).and_then(|text| {
        let cursor = Cursor::parse(text);
        if cursor.is_none() {
            faults.note("cursor", "must be one that an earlier page gave");
        }
        cursor
    });
    let limit = match limit.as_deref().map(|text| text.parse::<usize>().ok()) {
        None => LEDGER_PAGE_MAX,
        Some(Some(limit)) if (1..=LEDGER_PAGE_MAX).contains(&limit) => limit,
        Some(Some(_) | None) => {
            faults.note("limit", "must be a whole number from 1 to 500");
            LEDGER_PAGE_MAX
        }
    };
    let format = match format.as_deref() {
        None | Some("json") => Format::Json,
        Some("jsonl") => Format::JsonLines,
        Some("csv") => Format::Csv,
        Some(_) => {
            faults.note("format", "must be json, jsonl or csv");
            Format::Json
        }
    };
    faults.finish(&Unknown::new())?;
    let account = known_in_books(&room.quota, &id).await?;
    let page = room.quota.ledger_page(&account, after.as_ref(), limit).await?;
    Ok(show_page(&account, &page, (format, after.is_none())))
}

/// `first`: the page from the beginning, which has the header line in CSV.
fn show_page(account: &Name, page: &Page, (format, first): (Format, bool)) -> Response {
    let cursor = page.cursor.as_ref().map(ToString::to_string);
    let mut response = match format {
        Format::Json => {
            let line = |row| RawValue::from_string(json_line(account, row).trim_end().to_owned()).ok();
            let rows = page.rows.iter().filter_map(line).collect();
            Json(LedgerPage { rows, cursor: cursor.clone(), more: page.more }).into_response()
        }
        Format::JsonLines => {
            let text: String = page.rows.iter().map(|row| json_line(account, row)).collect();
            ([(header::CONTENT_TYPE, "application/jsonl; charset=utf-8")], text).into_response()
        }
        Format::Csv => {
            let head = if first { csv_header() } else { String::new() };
            let text = page.rows.iter().map(|row| csv_line(account, row)).fold(head, |all, line| all + &line);
            ([(header::CONTENT_TYPE, "text/csv; charset=utf-8; header=present")], text).into_response()
        }
    };
    let headers = response.headers_mut();
    if let Some(value) = cursor.and_then(|cursor| HeaderValue::from_str(&cursor).ok()) {
        headers.insert(CURSOR.clone(), value);
    }
    headers.insert(MORE.clone(), HeaderValue::from_static(if page.more { "true" } else { "false" }));
    response
}

async fn totals(State(room): State<Room>, Path(id): Path<String>) -> Result<Json<Totals>, Problem> {
    let account = known_in_books(&room.quota, &id).await?;
    let books = room.quota.audit(&account).await?;
    let sum = |of: fn(&crate::quota::answer::Books) -> u64| {
        books.periods.iter().filter_map(|period| period.books.as_ref()).map(of).fold(0, u64::saturating_add)
    };
    let (rows, settled) = (sum(|books| books.rows), sum(|books| books.settled.get()));
    let periods = books.periods.into_iter().map(PeriodShape::from).collect();
    Ok(Json(Totals { account: account.as_str().to_owned(), rows, settled, periods }))
}

async fn audit(
    State(room): State<Room>,
    Path(id): Path<String>,
    RawQuery(text): RawQuery,
) -> Result<Response, Problem> {
    let [deep] = query(text.as_deref(), ["deep"])?;
    let deep = match deep.as_deref() {
        None | Some("0" | "false") => false,
        Some("1" | "true" | "") => true,
        Some(_) => {
            let mut faults = Faults::default();
            faults.note("deep", "must be 1 or 0");
            return faults.finish(&Unknown::new()).map(|()| ().into_response());
        }
    };
    let account = known_in_books(&room.quota, &id).await?;
    if !deep {
        return Ok(Json(AuditShape::from(room.quota.audit(&account).await?)).into_response());
    }
    let periods = room.quota.audit_deep(&account).await?;
    let agrees = periods.iter().all(|period| period.mismatches.is_empty());
    let periods = periods.into_iter().map(DeepShape::from).collect();
    Ok(Json(DeepAudit { account: account.as_str().to_owned(), agrees, periods }).into_response())
}

async fn round(State(room): State<Room>) -> Result<Json<RoundShape>, Problem> {
    Ok(Json(room.quota.audit_round().await?.into()))
}

async fn rebuild(
    State(room): State<Room>,
    Path(id): Path<String>,
    Sent(body): Sent<NewBudget>,
) -> Result<Json<RebuiltShape>, Problem> {
    let mut faults = Faults::default();
    let period = faults.must("period", body.period);
    let force = faults.may("force", body.force).unwrap_or(false);
    let period = faults.finish_with(&body.rest, period)?;
    let account = known_in_books(&room.quota, &id).await?;
    let rebuilt = room.quota.rebuild(&account, period.as_str(), force).await?;
    let period = period.as_str().to_owned();
    Ok(Json(match rebuilt {
        Rebuilt::Agreed => RebuiltShape { period, written: false, now: None, was: Vec::new() },
        Rebuilt::Written { taken, held, settled, rows, was } => {
            let now = Sums { taken: taken.get(), held: held.get(), settled: settled.get(), rows };
            let was = was.into_iter().map(MismatchShape::from).collect();
            RebuiltShape { period, written: true, now: Some(now), was }
        }
    }))
}

/// An account that is there, or whose books are: they outlive it.
async fn known_in_books(quota: &Quota, id: &str) -> Result<Name, Problem> {
    let name = name(id)?;
    if quota.account(&name).await?.is_none() && quota.periods(&name).await?.is_empty() {
        return Err(Problem::not_found("account"));
    }
    Ok(name)
}

impl From<AuditError> for Problem {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Unsteady(_) => unsteady(),
            AuditError::Store(error) => error.into(),
        }
    }
}

impl From<RebuildError> for Problem {
    fn from(error: RebuildError) -> Self {
        match error {
            RebuildError::Differs(wrong) => differs(wrong),
            RebuildError::Nothing => Self::conflict(
                "urn:voxgate:problem:nothing-to-count",
                "The period has neither ledger rows nor open leases. Is it the right period? With `force` a budget \
                 of nothing is written, and its whole cap can be spent.",
            ),
            RebuildError::Unsteady(_) => unsteady(),
            RebuildError::Store(error) => error.into(),
        }
    }
}

fn differs(wrong: Vec<Mismatch>) -> Problem {
    let detail = "The budget is there and differs from its ledger and leases; see `mismatches`. Send `force` true to \
                  write it anew.";
    let mismatches = wrong.into_iter().map(MismatchShape::from).collect();
    Problem::conflict("urn:voxgate:problem:budget-differs", detail).with(mismatches)
}

fn unsteady() -> Problem {
    let detail =
        "Leases open and close faster than they can be counted. Freeze the account, or try again later.";
    Problem::conflict("urn:voxgate:problem:books-move", detail)
}
