//! The ledger, row by row: one row for each closed lease. Reads only, in bounded pages; moves no units.
//!
//! # The cursor
//! A row is written once, by the script that closes its lease, and never changes. Within a period rows have rising
//! ids; but a lease that is still open when its period ends puts its row there later, when the next period has rows
//! already. So a [`Cursor`] keeps a position in the furthest period, and one in every earlier period that may still
//! get rows: those whose budget holds units for open leases, or is lost. Every other earlier period is done.
//!
//! # Exactly once
//! A page and the cursor behind it belong together: store both, or neither. Whoever was killed in between asks again
//! with the older cursor and gets the same rows again, in the same order within each period. A row's name is
//! `(account, key, session, lease)`, or `(account, period, id)`.
//!
//! A clock of the store that steps back over a period's edge is the one thing that could put a row behind the
//! cursor; [`Quota::audit_deep`](super::Quota::audit_deep) counts all rows and would show the difference.

use std::fmt;

use serde::Deserialize;

use super::keys::Name;
use super::store::{Reply, StoreError};
use super::{Quota, accounts};
use crate::limits::LEDGER_PAGE_MAX;
use crate::units::Units;

/// How a lease was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Its last stream settled it.
    Settled,
    /// Its deadline passed; charged what was admitted.
    Reaped,
    /// As reaped, but the quota key was gone: charged what streams had reported.
    Blind,
    /// Its record was gone: charged nothing.
    Lost,
    /// An operator closed it.
    Forced,
}

impl How {
    /// Every way.
    pub const ALL: [Self; 5] = [Self::Settled, Self::Reaped, Self::Blind, Self::Lost, Self::Forced];

    /// The word in the row.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Reaped => "reaped",
            Self::Blind => "blind",
            Self::Lost => "lost",
            Self::Forced => "forced",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|how| how.word() == text)
    }
}

/// One closed lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Period that was charged.
    pub period: String,
    /// Id within the period's stream: milliseconds, dash, sequence.
    pub id: String,
    /// When the lease was closed, unix milliseconds of the store.
    pub at_ms: u64,
    /// The session's public name.
    pub session: String,
    /// Fingerprint of the key.
    pub key: String,
    /// Lease number within the session.
    pub lease: u64,
    /// Units that the lease held.
    pub granted: Units,
    /// Units charged to the budget.
    pub charged: Units,
    /// Units handed to workers beyond the grant: the store had lost writes.
    pub excess: Units,
    /// How it was closed.
    pub how: How,
    /// Model; empty when the record was lost.
    pub model: String,
    /// Units per second of audio; 0 when the record was lost.
    pub units_per_second: u32,
    /// Tags, joined by commas.
    pub tags: String,
    /// Why the last stream ended (`moved_on`: it went on in another lease); empty when nobody said.
    pub ending: String,
    /// Worker of the last stream; empty when nobody said.
    pub worker: String,
}

/// Where a reader of the ledger stands. Plain text: `<period>@<id>`, the furthest first, commas between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Never empty; the furthest period first, then earlier ones that may still get rows.
    places: Vec<(String, String)>,
}

/// Some rows and where to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// At most as many as asked for.
    pub rows: Vec<Row>,
    /// Where to go on, also later, when there are new rows; `None` while the account has no period at all.
    pub cursor: Option<Cursor>,
    /// Whether there was more when this page was read.
    pub more: bool,
}

/// Sums over rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of rows.
    pub rows: u64,
    /// Sum of `granted`.
    pub granted: Units,
    /// Sum of `charged`.
    pub charged: Units,
    /// Sum of `excess`.
    pub excess: Units,
}

impl Totals {
    /// Counts one more row.
    pub fn add(&mut self, row: &Row) {
        self.rows += 1;
        self.granted = self.granted.saturating_add(row.granted);
        self.charged = self.charged.saturating_add(row.charged);
        self.excess = self.excess.saturating_add(row.excess);
    }
}

impl Cursor {
    /// Reads the text of a cursor; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let places = text.split(',').map(|place| {
            let (period, id) = place.split_once('@')?;
            let (ms, sequence) = id.split_once('-')?;
            let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let sound = Name::parse(period).is_some() && number(ms) && number(sequence);
            sound.then(|| (period.to_owned(), id.to_owned()))
        });
        places.collect::<Option<Vec<_>>>().map(|places| Self { places })
    }

    fn of(&self, period: &str) -> Option<&str> {
        self.places.iter().find(|(named, _)| named == period).map(|(_, id)| id.as_str())
    }

    fn furthest(&self) -> Option<(&str, &str)> {
        self.places.first().map(|(period, id)| (period.as_str(), id.as_str()))
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (period, id)) in self.places.iter().enumerate() {
            write!(f, "{}{period}@{id}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// The order of periods: by their first second, as their id says it.
pub(super) fn period_order(period: &str) -> (i64, &str) {
    let digits = period.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    (digits.parse().unwrap_or(i64::MAX), period)
}

/// The position before the first row.
pub(super) const BEGINNING: &str = "0-0";

impl Quota {
    /// Rows behind `cursor` (`None`: from the first), oldest period first, at most `limit` (1 to
    /// [`LEDGER_PAGE_MAX`], cut to that).
    ///
    /// Bounded: reads of at most `limit` rows; when the furthest period has no more, one paged walk over the store's
    /// key names finds the others. Errors: the store's; `Corrupt` names the ledger and row that none of our scripts
    /// wrote.
    pub async fn ledger_page(
        &self,
        account: &Name,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let limit = limit.clamp(1, LEDGER_PAGE_MAX);
        if let Some((period, id)) = cursor.and_then(Cursor::furthest) {
            let rows = self.rows(account, period, id, limit).await?;
            if rows.len() == limit {
                let mut cursor = cursor.cloned();
                if let (Some(place), Some(row)) =
                    (cursor.iter_mut().flat_map(|c| c.places.first_mut()).next(), rows.last())
                {
                    place.1.clone_from(&row.id);
                }
                return Ok(Page { rows, cursor, more: true });
            }
        }
        self.page_over_periods(account, cursor, limit).await
    }

    async fn page_over_periods(
        &self,
        account: &Name,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let mut periods = self.periods(account).await?;
        if let Some((furthest, _)) = cursor.and_then(Cursor::furthest)
            && !periods.iter().any(|period| period == furthest)
        {
            periods.push(furthest.to_owned());
            periods.sort_by(|a, b| period_order(a).cmp(&period_order(b)));
        }
        let furthest = cursor.and_then(Cursor::furthest).map(|(period, _)| period_order(period));
        let (mut rows, mut places, mut full) = (Vec::new(), Vec::new(), false);
        let last = periods.len().saturating_sub(1);
        for (i, period) in periods.iter().enumerate() {
            let known = cursor.and_then(|cursor| cursor.of(period));
            let passed = furthest.is_some_and(|furthest| period_order(period) < furthest);
            let id = match known {
                Some(id) => id,
                None if passed => continue, // done
                None => BEGINNING,
            };
            if full {
                // What the cursor knew stays in it; what lies beyond is found again.
                if known.is_some() {
                    places.push((period.clone(), id.to_owned()));
                }
                continue;
            }
            // Asked before the rows are read: what closes in between is in the rows then.
            let last_of_all = i == last;
            let settled = !last_of_all && self.holds_nothing(account, period).await?;
            let more = self.rows(account, period, id, limit - rows.len()).await?;
            let at = more.last().map_or(id, |row| &row.id).to_owned();
            rows.extend(more);
            full = rows.len() == limit;
            if full || !settled {
                places.push((period.clone(), at));
            }
        }
        places.reverse();
        let cursor = (!places.is_empty()).then_some(Cursor { places });
        Ok(Page { rows, cursor, more: full })
    }

    /// Whether no lease of a period is open, so that it gets no more rows once it is over.
    async fn holds_nothing(&self, account: &Name, period: &str) -> Result<bool, StoreError> {
        let held = self.command(&["HGET", &self.spell().budget(account, period), "held"]).await?;
        Ok(accounts::text(&held).is_some_and(|held| held == "0"))
    }

    /// Rows of one period behind a row id.
    pub(super) async fn rows(
        &self,
        account: &Name,
        period: &str,
        behind: &str,
        limit: usize,
    ) -> Result<Vec<Row>, StoreError> {
        let ledger = self.spell().ledger(account, period);
        let (from, count) = (format!("({behind}"), limit.to_string());
        let Reply::List(rows) = self.command(&["XRANGE", &ledger, &from, "+", "COUNT", &count]).await? else {
            return Err(StoreError::Odd("XRANGE".into()));
        };
        let read = |row: &Reply| {
            let Some((id, fields)) = row_parts(row) else { return Err(StoreError::Corrupt(ledger.clone())) };
            Row::read(period, &id, &fields).ok_or_else(|| StoreError::Corrupt(format!("{ledger} {id}")))
        };
        rows.iter().map(read).collect()
    }

    /// Every period of an account that has a budget or a ledger, oldest first. Walks the store's key names, 500 at a
    /// time: for people and exports, not for the path of a chunk.
    pub async fn periods(&self, account: &Name) -> Result<Vec<String>, StoreError> {
        let names = self.scan(&self.spell().periods_pattern(account)).await?;
        let period = |name: &String| name.rsplit_once("}:").map(|(_, period)| period.to_owned());
        let mut periods: Vec<String> = names.iter().filter_map(period).collect();
        periods.sort_by(|a, b| period_order(a).cmp(&period_order(b)));
        periods.dedup();
        Ok(periods)
    }

    /// Key names that match a pattern, on every primary, once each, in order.
    pub(super) async fn scan(&self, pattern: &str) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        for shard in self.shards().await? {
            let mut cursor = "0".to_owned();
            loop {
                let page = ["SCAN", &cursor, "MATCH", pattern, "COUNT", "500"];
                let page = self.command_on(&shard, &page).await?;
                let Reply::List(parts) = &page else { return Err(StoreError::Odd("SCAN".into())) };
                let [next, Reply::List(names)] = parts.as_slice() else {
                    return Err(StoreError::Odd("SCAN".into()));
                };
                found.extend(names.iter().filter_map(accounts::text));
                cursor = accounts::text(next).unwrap_or_else(|| "0".into());
                if cursor == "0" {
                    break;
                }
            }
        }
        found.sort();
        found.dedup();
        Ok(found)
    }
}

fn row_parts(row: &Reply) -> Option<(String, Vec<(String, String)>)> {
    let Reply::List(parts) = row else { return None };
    let [id, Reply::List(fields)] = parts.as_slice() else { return None };
    let pair = |pair: &[Reply]| Some((accounts::text(pair.first()?)?, accounts::text(pair.last()?)?));
    Some((accounts::text(id)?, fields.chunks_exact(2).map(pair).collect::<Option<_>>()?))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Meta {
    ending: String,
    worker: String,
}

impl Row {
    fn read(period: &str, id: &str, fields: &[(String, String)]) -> Option<Self> {
        let field = |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| &**value);
        let units = |name: &str| field(name).and_then(Units::parse);
        let (fingerprint, session) = field("sid")?.split_once('.')?;
        let owner = field("key").filter(|key| !key.is_empty()).unwrap_or(fingerprint);
        let (model, rest) = field("terms")?.split_once('|').unwrap_or_default();
        let (rate, tags) = rest.split_once('|').unwrap_or_default();
        let meta: Meta = field("meta").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        Some(Self {
            period: period.to_owned(),
            id: id.to_owned(),
            at_ms: id.split('-').next()?.parse().ok()?,
            session: session.to_owned(),
            key: owner.to_owned(),
            lease: field("n")?.parse().ok()?,
            granted: units("granted")?,
            charged: units("charged")?,
            excess: units("excess")?,
            how: How::parse(field("how")?)?,
            model: model.to_owned(),
            units_per_second: rate.parse().unwrap_or(0),
            tags: tags.to_owned(),
            ending: meta.ending,
            worker: meta.worker,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_read_back() {
        for text in ["d1764460800@1764460800123-0", "d2@5-1,d1@4-0", "s20.1764460800@0-0"] {
            assert_eq!(Cursor::parse(text).map(|cursor| cursor.to_string()).as_deref(), Some(text));
        }
        for text in ["", "d1", "d1@", "d1@5", "d1@x-0", "d1@5-", "d:1@5-0", "d1@5-0,", "*@1-1"] {
            assert_eq!(Cursor::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn periods_sort_by_their_start() {
        let mut periods = ["m900", "d1000", "s20.980", "h990", "d99"];
        periods.sort_by(|a, b| period_order(a).cmp(&period_order(b)));
        assert_eq!(periods, ["d99", "m900", "s20.980", "h990", "d1000"]);
    }

    fn fields(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn rows_tell_who_and_what() {
        let fields = fields(&[
            ("sid", "ab12.my.session"),
            ("n", "3"),
            ("key", "ab12"),
            ("granted", "1000"),
            ("charged", "400"),
            ("excess", "0"),
            ("how", "settled"),
            ("terms", "nova|1000|a,b|c"),
            ("meta", r#"{"ending":"client_done","worker":"w1"}"#),
        ]);
        let row = Row::read("d1", "77-2", &fields).unwrap();
        assert_eq!((row.at_ms, &*row.session, &*row.key, row.lease), (77, "my.session", "ab12", 3));
        assert_eq!((&*row.model, row.units_per_second, &*row.tags), ("nova", 1000, "a,b|c"));
        assert_eq!((row.how, &*row.ending, &*row.worker), (How::Settled, "client_done", "w1"));
    }

    #[test]
    fn rows_of_lost_leases_are_read() {
        let fields = fields(&[
            ("sid", "ab12.s"),
            ("n", "1"),
            ("key", ""),
            ("granted", "1000"),
            ("charged", "0"),
            ("excess", "0"),
            ("how", "lost"),
            ("terms", ""),
            ("meta", "no json"),
        ]);
        let row = Row::read("d1", "77-2", &fields).unwrap();
        assert_eq!((&*row.key, row.how, row.units_per_second), ("ab12", How::Lost, 0));
        assert_eq!(Row::read("d1", "77-2", &fields[1..]), None, "no session");
    }
}
