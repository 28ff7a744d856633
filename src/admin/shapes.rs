//! What the admin API answers, as types: each struct is one JSON object, field for field. Amounts are whole units.

use serde::Serialize;

use crate::quota::audit::{Audit, AuditRound, DeepPeriod, Mismatch, Outstanding, PeriodBooks};
use crate::quota::{Account, Balance, Key, OpenLease, Operated, Session};
use crate::units::Units;

/// One account, or the name of a damaged one.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum AccountShape {
    Sound {
        id: String,
        cap: u64,
        period: String,
        zone: String,
        share: u32,
        frozen: bool,
        /// When another period or zone comes into force.
        #[serde(skip_serializing_if = "Option::is_none")]
        changes_at: Option<String>,
    },
    Damaged {
        id: String,
        damaged: bool,
    },
}

impl AccountShape {
    /// `now`: unix second of the store, to tell whether a change is still to come.
    pub(super) fn of(account: &Account, now: i64) -> Self {
        Self::Sound {
            id: account.id.as_str().to_owned(),
            cap: account.cap.get(),
            period: account.period.word(),
            zone: account.zone.clone(),
            share: account.share,
            frozen: account.frozen,
            changes_at: account.changes_at(now).and_then(time),
        }
    }
}

/// Where a budget stands.
#[derive(Serialize)]
pub(super) struct BalanceShape {
    period: String,
    starts_at: Option<String>,
    ends_at: Option<String>,
    cap: u64,
    taken: u64,
    held: u64,
    settled: u64,
    left: u64,
    drift: i64,
    leases: u64,
}

impl From<Balance> for BalanceShape {
    fn from(balance: Balance) -> Self {
        Self {
            starts_at: time(balance.starts_at),
            ends_at: time(balance.ends_at),
            period: balance.period,
            cap: balance.cap.get(),
            taken: balance.taken.get(),
            held: balance.held.get(),
            settled: balance.settled.get(),
            left: balance.left.get(),
            drift: balance.drift,
            leases: balance.leases,
        }
    }
}

/// One key; `secret` only when it was made just now.
#[derive(Serialize)]
pub(super) struct KeyShape {
    fingerprint: String,
    account: String,
    label: String,
    cap: Option<u64>,
    session_cap: Option<u64>,
    streams_max: u32,
    models: Vec<String>,
    revoked: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

impl KeyShape {
    /// For the one answer that shows it.
    pub(super) fn with_secret(self, secret: String) -> Self {
        Self { secret: Some(secret), ..self }
    }
}

impl From<Key> for KeyShape {
    fn from(key: Key) -> Self {
        Self {
            fingerprint: key.fingerprint,
            account: key.account.as_str().to_owned(),
            label: key.label,
            cap: key.cap.map(Units::get),
            session_cap: key.session_cap.map(Units::get),
            streams_max: key.streams_max,
            models: key.models,
            revoked: key.revoked,
            secret: None,
        }
    }
}

/// One session.
#[derive(Serialize)]
pub(super) struct SessionShape {
    id: String,
    session: String,
    key: String,
    cap: Option<u64>,
    used: u64,
    held: u64,
    open_leases: u64,
    ended: bool,
    terms: Option<String>,
}

impl From<Session> for SessionShape {
    fn from(session: Session) -> Self {
        Self {
            id: session.sid,
            session: session.session,
            key: session.key,
            cap: session.cap.map(Units::get),
            used: session.used.get(),
            held: session.held.get(),
            open_leases: session.open,
            ended: session.ended,
            terms: session.terms,
        }
    }
}

/// One open lease.
#[derive(Serialize)]
pub(super) struct LeaseShape {
    id: String,
    session: String,
    key: String,
    period: String,
    held: u64,
    /// `None` in quarantine.
    deadline: Option<String>,
    quarantined: bool,
}

impl From<OpenLease> for LeaseShape {
    fn from(lease: OpenLease) -> Self {
        Self {
            id: lease.member.to_string(),
            session: lease.session,
            key: lease.key,
            period: lease.member.period,
            held: lease.held.get(),
            deadline: lease.deadline_ms.and_then(time_ms),
            quarantined: lease.deadline_ms.is_none(),
        }
    }
}

/// What closing leases came to.
#[derive(Serialize)]
pub(super) struct OperatedShape {
    closed: u64,
    charged: u64,
    stuck: u64,
}

impl From<Operated> for OperatedShape {
    fn from(operated: Operated) -> Self {
        Self { closed: operated.closed, charged: operated.charged.get(), stuck: operated.stuck }
    }
}

/// Open leases, summed up.
#[derive(Serialize)]
pub(super) struct OutstandingShape {
    leases: u64,
    units: u64,
    oldest_ms: u64,
    quarantined: u64,
    quarantined_units: u64,
}

impl From<Outstanding> for OutstandingShape {
    fn from(all: Outstanding) -> Self {
        Self {
            leases: all.leases,
            units: all.units.get(),
            oldest_ms: all.oldest_ms,
            quarantined: all.quarantined,
            quarantined_units: all.quarantined_units.get(),
        }
    }
}

/// One period's books; sums are null when its budget is gone.
#[derive(Serialize)]
pub(super) struct PeriodShape {
    period: String,
    taken: Option<u64>,
    held: Option<u64>,
    settled: Option<u64>,
    rows: Option<u64>,
    drift: Option<i64>,
    open_leases: u64,
    open_units: u64,
    lost: bool,
}

impl From<PeriodBooks> for PeriodShape {
    fn from(period: PeriodBooks) -> Self {
        let books = period.books;
        Self {
            period: period.period,
            taken: books.map(|books| books.taken.get()),
            held: books.map(|books| books.held.get()),
            settled: books.map(|books| books.settled.get()),
            rows: books.map(|books| books.rows),
            drift: books.map(|books| books.drift),
            open_leases: period.open,
            open_units: period.open_units.get(),
            lost: period.lost,
        }
    }
}

/// An account's books.
#[derive(Serialize)]
pub(super) struct AuditShape {
    account: String,
    drift: i64,
    tolerance: u64,
    now: Option<String>,
    outstanding: OutstandingShape,
    periods: Vec<PeriodShape>,
}

impl From<Audit> for AuditShape {
    fn from(audit: Audit) -> Self {
        Self {
            account: audit.account.as_str().to_owned(),
            drift: audit.drift,
            tolerance: crate::limits::DRIFT_TOLERANCE.get(),
            now: time_ms(audit.now_ms),
            outstanding: audit.outstanding.into(),
            periods: audit.periods.into_iter().map(PeriodShape::from).collect(),
        }
    }
}

/// The books of all active accounts.
#[derive(Serialize)]
pub(super) struct RoundShape {
    accounts: u64,
    drift: i64,
    tolerance: u64,
    lost: u64,
    outstanding: OutstandingShape,
}

impl From<AuditRound> for RoundShape {
    fn from(round: AuditRound) -> Self {
        Self {
            accounts: round.accounts,
            drift: round.drift,
            tolerance: crate::limits::DRIFT_TOLERANCE.get(),
            lost: round.lost,
            outstanding: round.outstanding.into(),
        }
    }
}

/// Where a budget differs from what was counted.
#[derive(Debug, Serialize)]
pub(super) struct MismatchShape {
    /// `budget` (it is lost), `taken`, `held`, `settled`, `rows` or `key:<fingerprint>`.
    field: String,
    says: Option<u64>,
    counted: Option<u64>,
}

impl From<Mismatch> for MismatchShape {
    fn from(mismatch: Mismatch) -> Self {
        let (field, says, counted) = match mismatch {
            Mismatch::Lost => ("budget".to_owned(), None, None),
            Mismatch::Sum { field, says, counted } => (field.to_owned(), says, Some(counted)),
            Mismatch::Key { fingerprint, says, counted } => {
                (format!("key:{fingerprint}"), says, Some(counted))
            }
        };
        Self { field, says: says.map(Units::get), counted: counted.map(Units::get) }
    }
}

/// One period, every row counted.
#[derive(Serialize)]
pub(super) struct DeepShape {
    period: String,
    rows: u64,
    granted: u64,
    charged: u64,
    excess: u64,
    open_leases: u64,
    open_units: u64,
    mismatches: Vec<MismatchShape>,
}

impl From<DeepPeriod> for DeepShape {
    fn from(deep: DeepPeriod) -> Self {
        Self {
            period: deep.period,
            rows: deep.totals.rows,
            granted: deep.totals.granted.get(),
            charged: deep.totals.charged.get(),
            excess: deep.totals.excess.get(),
            open_leases: deep.open,
            open_units: deep.open_units.get(),
            mismatches: deep.mismatches.into_iter().map(MismatchShape::from).collect(),
        }
    }
}

/// RFC 3339 in UTC.
pub(super) fn time(unix_seconds: i64) -> Option<String> {
    jiff::Timestamp::from_second(unix_seconds).ok().map(|time| time.to_string())
}

fn time_ms(unix_ms: u64) -> Option<String> {
    let ms = i64::try_from(unix_ms).ok()?;
    jiff::Timestamp::from_millisecond(ms).ok().map(|time| time.to_string())
}
