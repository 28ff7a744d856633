//! One question to `reserve`, from the first try to a lease, a refusal or a failure. Pure: replies in, steps out.
//!
//! # States
//! `Ask` (lease n, attachment, want) → answered: `Next::In`, `Next::Refused`, `Next::Over`, or `Next::Again`
//! with the lease or period that the store named → … An answer that was lost changes nothing: the same ask is
//! sent again, with the same attachment, and the script repeats its first answer.
//!
//! # What is left behind
//! An ask that goes on to another lease may have left its attachment in the last one (its first copy landed, its
//! answer was lost). Each such place is handed out as a stray and settled with nothing used.

use std::sync::Arc;
use std::time::Duration;

use super::answer::{Reserved, Why};
use super::keys::Name;
use super::period::Window;
use super::{Account, Refusal, Terms};
use crate::limits::NAME_BYTES_MAX;
use crate::units::Units;

/// What never changes within one stream, as the scripts need it.
#[derive(Debug)]
pub(super) struct Deed {
    /// Who pays, by which key, for what.
    pub terms: Terms,
    /// Session as stored: key fingerprint, dot, public name.
    pub sid: String,
    /// The session's public name.
    pub session: Name,
    /// Model, tariff and tags as one text.
    pub contract: String,
    /// This stream among the key's live ones.
    pub stream: String,
}

impl Deed {
    pub(super) fn new(terms: Terms, session: Name, stream: String) -> Self {
        let model: String = terms.model.chars().take(NAME_BYTES_MAX).collect();
        let tags: String = terms.tags.chars().take(TAGS_CHARS_MAX).collect();
        let contract = format!("{model}|{}|{tags}", terms.units_per_second);
        let sid = format!("{}.{session}", terms.key.fingerprint);
        Self { terms, sid, session, contract, stream }
    }

    pub(super) fn account(&self) -> &Name {
        &self.terms.account.id
    }

    pub(super) fn owner(&self) -> &str {
        &self.terms.key.fingerprint
    }
}

/// Answers to one ask before it gives up: each names another lease or period, so more means that something is wrong.
const ANSWERS_MAX: u32 = 8;
/// Tags kept in session and ledger, in characters.
pub(super) const TAGS_CHARS_MAX: usize = 128;

/// A stream's place in one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub n: u64,
    pub period: String,
    pub attachment: String,
    /// What was wanted when the attachment was made; a heartbeat repeats it.
    pub want: Units,
    pub granted: Units,
    /// Units in the envelope as last heard.
    pub left: Units,
    pub tally: Units,
    pub waste: Units,
}

impl Place {
    /// A place that may have been got without our hearing of it: nothing was used.
    pub(super) fn stray(deed: &Deed, n: u64, attachment: u32, period: &str) -> Self {
        let none = Units::ZERO;
        let (period, attachment) = (period.to_owned(), format!("{}.{attachment}", deed.stream));
        Self { n, period, attachment, want: none, granted: none, left: none, tally: none, waste: none }
    }
}

/// How much is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// At most this.
    pub want: Units,
    /// The share of what is free counts as at least this.
    pub floor: Units,
    /// Less than this is a refusal.
    pub least: Units,
}

impl Size {
    /// Makes the parts fit each other: `least` is the smallest.
    pub(super) fn new(want: Units, floor: Units, least: Units) -> Self {
        Self { want: want.max(least), floor: floor.max(least), least }
    }
}

/// One question.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub n: u64,
    pub attachment: u32,
    pub size: Size,
    pub window: Window,
    /// The account as last read: it reckons the window.
    pub account: Arc<Account>,
    tries: u32,
}

/// What an answer leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A place, what is free in the budget (if known), and the cap in force.
    In(Place, Option<Units>, Units),
    /// Ask again: the lease number or the window has changed.
    Again,
    /// Read the account again, then ask again: its time is cut otherwise at this unix second.
    Reread(i64),
    /// Nothing to be had.
    Refused(Refusal),
    /// This key is not what our scripts write.
    Corrupt(String),
    /// Too many answers without a decision.
    Restless,
}

impl Ask {
    /// A question about the period that `now` (unix seconds of the store) lies in.
    pub(super) fn new(n: u64, attachment: u32, size: Size, account: Arc<Account>, now: i64) -> Self {
        Self { n, attachment, size, window: account.window(now), account, tries: 0 }
    }

    /// The same question, put to the account as it is now.
    pub(super) fn reread(&mut self, account: Account, now: i64) {
        self.window = account.window(now);
        self.account = Arc::new(account);
    }

    /// The attachment's name in lease `n`.
    pub(super) fn name(&self, deed: &Deed) -> String {
        format!("{}.{}", deed.stream, self.attachment)
    }

    /// Takes one answer. A lease gets an attachment of its own.
    pub(super) fn answer(&mut self, deed: &Deed, reserved: Reserved) -> Next {
        self.tries += 1;
        match reserved {
            Reserved::In { n, granted, left, free, period, cap, .. } => {
                let (tally, waste) = (Units::ZERO, Units::ZERO);
                let attachment = self.name(deed);
                Next::In(
                    Place { n, period, attachment, want: self.size.want, granted, left, tally, waste },
                    free,
                    cap,
                )
            }
            Reserved::Moved { n, .. } => self.go_on(n.max(1)),
            Reserved::Closed { n, .. } => self.go_on(n + 1),
            Reserved::StalePeriod { now_ms } => {
                let now = i64::try_from(now_ms / 1000).unwrap_or(i64::MAX);
                self.window = self.account.window(now);
                self.again()
            }
            Reserved::StalePlan { now_ms } => match self.again() {
                Next::Again => Next::Reread(i64::try_from(now_ms / 1000).unwrap_or(i64::MAX)),
                over => over,
            },
            Reserved::Refuse { why, left, until_ms, .. } => Next::Refused(refusal(deed, why, left, until_ms)),
            Reserved::Ended => Next::Refused(Refusal::Ended),
            Reserved::Conflict => Next::Refused(Refusal::Conflict),
            Reserved::NotYours => Next::Refused(Refusal::NotYours),
            Reserved::Lost => Next::Refused(Refusal::Lost),
            Reserved::Corrupt(key) => Next::Corrupt(key),
        }
    }

    fn go_on(&mut self, n: u64) -> Next {
        (self.n, self.attachment) = (n, self.attachment + 1);
        self.again()
    }

    fn again(&self) -> Next {
        // Opening an old session takes: moved, closed, opened; a period's edge and a race add one each.
        if self.tries >= ANSWERS_MAX { Next::Restless } else { Next::Again }
    }
}

fn refusal(deed: &Deed, why: Why, left: Units, until_ms: u64) -> Refusal {
    let until = i64::try_from(until_ms.div_ceil(1000)).unwrap_or(i64::MAX);
    match why {
        Why::Budget => Refusal::Budget { left, renews_at: until },
        Why::Held => Refusal::Held { left, until },
        Why::Session => Refusal::Session { left },
        Why::Key => Refusal::Key { left, renews_at: until },
        Why::Streams => Refusal::Streams { max: deed.terms.key.streams_max },
        Why::Leases => Refusal::Leases,
        Why::Frozen => Refusal::Frozen,
        Why::Account => Refusal::Revoked,
    }
}

/// Units of so much audio time at a rate, at least 1.
pub(super) fn audio(time: Duration, units_per_second: u32) -> Units {
    let units = time.as_millis() * u128::from(units_per_second) / 1000;
    Units::saturating(u64::try_from(units).unwrap_or(u64::MAX).max(1))
}
