//! What the scripts answer, as enums. Pure: replies in, values out.
//!
//! Each enum mirrors the `returns` lines of the file of the same verb under `lua/`. A reply that is none of the
//! contract's is `StoreError::Odd`: a bug, or a script that is not ours.

use super::store::{Reply, StoreError};
use crate::units::Units;

/// How an attachment came to its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The lease was made.
    Opened,
    /// It was there already.
    Joined,
    /// The attachment was in it already: a replay or a heartbeat.
    Kept,
}

/// Why `reserve` refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Spent for the period.
    Budget,
    /// What is left is held by other leases.
    Held,
    /// The session's cap.
    Session,
    /// The key's cap.
    Key,
    /// Live streams of the key.
    Streams,
    /// Open leases of the session.
    Leases,
    /// The account is frozen.
    Frozen,
    /// There is no such account.
    Account,
}

/// What `reserve` answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// The attachment is in lease `n`.
    In {
        /// Made, joined or kept.
        entry: Entry,
        /// Lease number.
        n: u64,
        /// Units of the whole lease.
        granted: Units,
        /// Units not yet admitted.
        left: Units,
        /// Free in the period's budget, when the lease is of the period asked for.
        free: Option<Units>,
        /// Period of the lease.
        period: String,
        /// Store's clock, unix milliseconds.
        now_ms: u64,
        /// The account's cap in force, top-ups included.
        cap: Units,
    },
    /// The session is at lease `n`; the attachment stays in the one asked for, if it was in it.
    Moved {
        /// Current lease.
        n: u64,
        /// Store's clock.
        now_ms: u64,
    },
    /// Lease `n` is over; ask for the next.
    Closed {
        /// The closed lease.
        n: u64,
        /// Store's clock.
        now_ms: u64,
    },
    /// The period is not the running one.
    StalePeriod {
        /// Store's clock.
        now_ms: u64,
    },
    /// The account's time is cut otherwise by now: read it again.
    StalePlan {
        /// Store's clock.
        now_ms: u64,
    },
    /// Nothing was taken.
    Refuse {
        /// The reason.
        why: Why,
        /// Units (or the cap, for streams and leases) that stand against it.
        left: Units,
        /// Unix milliseconds when that may change, 0 when unknown.
        until_ms: u64,
        /// Store's clock.
        now_ms: u64,
    },
    /// The session was ended.
    Ended,
    /// Same attachment with another want, or same session with other terms.
    Conflict,
    /// The session has another owner.
    NotYours,
    /// The books of this period or session are gone.
    Lost,
    /// This key holds what our scripts never write.
    Corrupt(String),
}

/// What `admit` answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// Taken; so much is left.
    Grant(Units),
    /// Not taken; so much is left.
    Refuse(Units),
    /// No quota key.
    Lapse,
    /// The quota key is no amount.
    Corrupt,
}

/// What a closed lease came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bill {
    /// Charged to the budget.
    pub charged: Units,
    /// Given back.
    pub returned: Units,
    /// Handed to workers beyond what was granted: the store lost writes.
    pub excess: Units,
}

/// What `settle` answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Others are still in the lease.
    Left,
    /// This was the last one out.
    Closed(Bill),
    /// The reaper was first.
    Reaped(Bill),
    /// More tally than the lease ever held: a bug.
    Overrun,
    /// This attachment left before, with other numbers.
    Conflict,
    /// Another owner.
    NotYours,
    /// The lease is of this period.
    WrongPeriod(String),
    /// No such lease or attachment.
    Unknown,
    /// This key holds what our scripts never write.
    Corrupt(String),
}

impl Settled {
    /// The metric label.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Closed(_) => "closed",
            Self::Reaped(_) => "reaped",
            Self::Overrun => "overrun",
            Self::Conflict => "conflict",
            Self::NotYours => "not_yours",
            Self::WrongPeriod(_) => "wrong_period",
            Self::Unknown => "unknown",
            Self::Corrupt(_) => "corrupt",
        }
    }
}

/// What `reap` answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// Closed.
    Closed {
        /// `reaped`, `blind`, `lost` or `forced`.
        how: String,
        /// What it came to.
        bill: Bill,
    },
    /// Its deadline has not passed.
    NotDue,
    /// Closed before.
    Unknown,
    /// In quarantine; this key is not what our scripts write.
    Corrupt(String),
}

/// What `audit` answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Books {
    /// Settled plus held.
    pub taken: Units,
    /// In open leases.
    pub held: Units,
    /// In ledger rows.
    pub settled: Units,
    /// taken - held - settled.
    pub drift: i64,
    /// Ledger rows.
    pub rows: u64,
    /// Open leases of the account.
    pub leases: u64,
    /// Earliest deadline, unix milliseconds, 0 without leases.
    pub oldest_ms: u64,
    /// Store's clock.
    pub now_ms: u64,
}

/// What `topup` answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Raised {
    /// The period's top-ups now come to this.
    Raised {
        /// Sum of top-ups.
        sum: Units,
        /// The id had been used before.
        replay: bool,
    },
    /// Same id, other amount.
    Conflict,
    /// Cap and top-ups would pass 2^53-1.
    TooMuch,
    /// No such account.
    Unknown,
    /// This key holds what our scripts never write.
    Corrupt(String),
}

/// A reply taken apart, front to back.
pub(super) struct Words<'a> {
    all: &'a Reply,
    rest: std::slice::Iter<'a, Reply>,
}

impl<'a> Words<'a> {
    pub(super) fn of(reply: &'a Reply) -> Self {
        let rest = match reply {
            Reply::List(list) => list.iter(),
            Reply::Nil | Reply::Int(_) | Reply::Bulk(_) | Reply::Status(_) => [].iter(),
        };
        Self { all: reply, rest }
    }

    pub(super) fn odd(&self) -> StoreError {
        StoreError::Odd(format!("{:.200}", format!("{:?}", self.all)))
    }

    pub(super) fn text(&mut self) -> Result<&'a str, StoreError> {
        match self.rest.next() {
            Some(Reply::Bulk(bytes)) => std::str::from_utf8(bytes).map_err(|_| self.odd()),
            Some(Reply::Nil | Reply::Int(_) | Reply::Status(_) | Reply::List(_)) | None => Err(self.odd()),
        }
    }

    pub(super) fn int(&mut self) -> Result<i64, StoreError> {
        match self.rest.next() {
            Some(Reply::Int(value)) => Ok(*value),
            Some(Reply::Nil | Reply::Bulk(_) | Reply::Status(_) | Reply::List(_)) | None => Err(self.odd()),
        }
    }

    pub(super) fn count(&mut self) -> Result<u64, StoreError> {
        u64::try_from(self.int()?).map_err(|_| self.odd())
    }

    pub(super) fn units(&mut self) -> Result<Units, StoreError> {
        Units::new(self.count()?).ok_or_else(|| self.odd())
    }

    fn bill(&mut self) -> Result<Bill, StoreError> {
        Ok(Bill { charged: self.units()?, returned: self.units()?, excess: self.units()? })
    }
}

impl Reserved {
    /// Reads the script's reply; `Odd` when it is none of the contract's.
    pub fn read(reply: &Reply) -> Result<Self, StoreError> {
        let mut words = Words::of(reply);
        let entry = match words.text()? {
            "opened" => Entry::Opened,
            "joined" => Entry::Joined,
            "kept" => Entry::Kept,
            "moved" => return Ok(Self::Moved { n: words.count()?, now_ms: words.count()? }),
            "closed" => return Ok(Self::Closed { n: words.count()?, now_ms: words.count()? }),
            "stale period" => return Ok(Self::StalePeriod { now_ms: words.count()? }),
            "stale plan" => return Ok(Self::StalePlan { now_ms: words.count()? }),
            "refuse" => return Self::read_refusal(words),
            "ended" => return Ok(Self::Ended),
            "conflict" => return Ok(Self::Conflict),
            "not yours" => return Ok(Self::NotYours),
            "lost" => return Ok(Self::Lost),
            "corrupt" => return Ok(Self::Corrupt(words.text()?.into())),
            _ => return Err(words.odd()),
        };
        Ok(Self::In {
            entry,
            n: words.count()?,
            granted: words.units()?,
            left: words.units()?,
            free: u64::try_from(words.int()?).ok().and_then(Units::new),
            period: words.text()?.into(),
            now_ms: words.count()?,
            cap: words.units()?,
        })
    }

    fn read_refusal(mut words: Words<'_>) -> Result<Self, StoreError> {
        let why = match words.text()? {
            "budget" => Why::Budget,
            "held" => Why::Held,
            "session" => Why::Session,
            "key" => Why::Key,
            "streams" => Why::Streams,
            "leases" => Why::Leases,
            "frozen" => Why::Frozen,
            "account" => Why::Account,
            _ => return Err(words.odd()),
        };
        Ok(Self::Refuse { why, left: words.units()?, until_ms: words.count()?, now_ms: words.count()? })
    }

    /// The metric label.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::In { entry: Entry::Opened, .. } => "opened",
            Self::In { entry: Entry::Joined, .. } => "joined",
            Self::In { entry: Entry::Kept, .. } => "kept",
            Self::Moved { .. } => "moved",
            Self::Closed { .. } => "closed",
            Self::StalePeriod { .. } => "stale_period",
            Self::StalePlan { .. } => "stale_plan",
            Self::Refuse { why, .. } => match why {
                Why::Budget => "refuse_budget",
                Why::Held => "refuse_held",
                Why::Session => "refuse_session",
                Why::Key => "refuse_key",
                Why::Streams => "refuse_streams",
                Why::Leases => "refuse_leases",
                Why::Frozen => "refuse_frozen",
                Why::Account => "refuse_account",
            },
            Self::Ended => "ended",
            Self::Conflict => "conflict",
            Self::NotYours => "not_yours",
            Self::Lost => "lost",
            Self::Corrupt(_) => "corrupt",
        }
    }
}

impl Admitted {
    /// Reads the script's reply. `bad cost` is a bug of ours and comes as `Odd`.
    pub fn read(reply: &Reply) -> Result<Self, StoreError> {
        // The usual answer is a plain number: a list would cost the server a quarter of its time for the call.
        if let Reply::Int(left) = reply {
            let left = u64::try_from(*left).ok().and_then(Units::new);
            return left.map(Self::Grant).ok_or_else(|| StoreError::Odd(format!("{reply:?}")));
        }
        let mut words = Words::of(reply);
        match words.text()? {
            "refuse" => Ok(Self::Refuse(words.units()?)),
            "lapse" => Ok(Self::Lapse),
            "corrupt" => Ok(Self::Corrupt),
            _ => Err(words.odd()),
        }
    }
}

impl Settled {
    /// Reads the script's reply and whether it was a replay.
    pub fn read(reply: &Reply) -> Result<(Self, bool), StoreError> {
        let mut words = Words::of(reply);
        let word = words.text()?;
        let settled = match word {
            "left" | "closed" | "reaped" => {
                let bill = words.bill()?;
                let replay = words.int()? == 1;
                let settled = match word {
                    "left" => Self::Left,
                    "closed" => Self::Closed(bill),
                    _ => Self::Reaped(bill),
                };
                return Ok((settled, replay));
            }
            "overrun" => Self::Overrun,
            "conflict" => Self::Conflict,
            "not yours" => Self::NotYours,
            "wrong period" => Self::WrongPeriod(words.text()?.into()),
            "unknown" => Self::Unknown,
            "corrupt" => Self::Corrupt(words.text()?.into()),
            _ => return Err(words.odd()),
        };
        Ok((settled, false))
    }
}

impl Reaped {
    /// Reads the script's reply.
    pub fn read(reply: &Reply) -> Result<Self, StoreError> {
        let mut words = Words::of(reply);
        match words.text()? {
            "closed" => Ok(Self::Closed { how: words.text()?.into(), bill: words.bill()? }),
            "not due" => Ok(Self::NotDue),
            "unknown" => Ok(Self::Unknown),
            "corrupt" => Ok(Self::Corrupt(words.text()?.into())),
            _ => Err(words.odd()),
        }
    }
}

impl Books {
    /// Reads the script's reply; `None` when the period has no budget yet.
    pub fn read(reply: &Reply) -> Result<Option<Self>, StoreError> {
        let mut words = Words::of(reply);
        match words.text()? {
            "books" => {}
            "no books" => return Ok(None),
            "corrupt" => return Err(StoreError::Corrupt(words.text()?.into())),
            _ => return Err(words.odd()),
        }
        Ok(Some(Self {
            taken: words.units()?,
            held: words.units()?,
            settled: words.units()?,
            drift: words.int()?,
            rows: words.count()?,
            leases: words.count()?,
            oldest_ms: words.count()?,
            now_ms: words.count()?,
        }))
    }
}

impl Raised {
    /// Reads the script's reply.
    pub fn read(reply: &Reply) -> Result<Self, StoreError> {
        let mut words = Words::of(reply);
        match words.text()? {
            "raised" => Ok(Self::Raised { sum: words.units()?, replay: words.int()? == 1 }),
            "conflict" => Ok(Self::Conflict),
            "too much" => Ok(Self::TooMuch),
            "unknown" => Ok(Self::Unknown),
            "corrupt" => Ok(Self::Corrupt(words.text()?.into())),
            _ => Err(words.odd()),
        }
    }
}

impl Reserved {
    /// The store's clock, where the answer carries it.
    pub const fn now_ms(&self) -> Option<u64> {
        match self {
            Self::In { now_ms, .. }
            | Self::Moved { now_ms, .. }
            | Self::Closed { now_ms, .. }
            | Self::StalePeriod { now_ms }
            | Self::StalePlan { now_ms }
            | Self::Refuse { now_ms, .. } => Some(*now_ms),
            Self::Ended | Self::Conflict | Self::NotYours | Self::Lost | Self::Corrupt(_) => None,
        }
    }
}
