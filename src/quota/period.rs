//! How an account's time is cut into budget periods. Pure: a rule and a second in, a window out.
//!
//! Calendar periods follow the account's zone (hours, days and months as people there count them); fixed ones
//! count from 1970. The id is the unit and the UTC second in which the window starts, so that two gateways that
//! agree on the store's clock agree on the period, whatever their own zone or clock.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, ZonedDateTime};

/// Longest fixed period, in seconds: 31 days.
pub const FIXED_SECONDS_MAX: u32 = 31 * 24 * 3600;

/// How an account's time is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeriodRule {
    /// Calendar hours.
    Hour,
    /// Calendar days.
    Day,
    /// Calendar months.
    Month,
    /// Fixed length in seconds, `1 ..= FIXED_SECONDS_MAX`, counted from 1970.
    Fixed(u32),
}

/// One period of one account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Unit and first second, e.g. `d1764460800`.
    pub id: String,
    /// First unix second.
    pub start: i64,
    /// The second after the last.
    pub end: i64,
}

impl PeriodRule {
    /// Reads `hour`, `day`, `month` or a number of seconds such as `20s`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "hour" => Some(Self::Hour),
            "day" => Some(Self::Day),
            "month" => Some(Self::Month),
            fixed => {
                let seconds: u32 = fixed.strip_suffix('s')?.parse().ok()?;
                (1..=FIXED_SECONDS_MAX).contains(&seconds).then_some(Self::Fixed(seconds))
            }
        }
    }

    /// The period that second `now` lies in, for an account in `zone` (IANA name; unknown names count as UTC).
    pub fn window(self, zone: &str, now: i64) -> Window {
        let zone = TimeZone::get(zone).unwrap_or(TimeZone::UTC);
        let (start, end) = match self {
            Self::Fixed(seconds) => {
                let start = now - now.rem_euclid(i64::from(seconds));
                (start, start + i64::from(seconds))
            }
            Self::Hour => {
                let offset = at(now, &zone).map_or(0, |here| i64::from(here.offset().seconds()));
                let start = now - (now + offset).rem_euclid(3600);
                (start, start + 3600)
            }
            Self::Day => calendar(now, &zone, |here| here.start_of_day(), 1.day()),
            Self::Month => calendar(now, &zone, |here| here.first_of_month()?.start_of_day(), 1.month()),
        };
        Window { id: format!("{self}{start}"), start, end }
    }
}

/// The letter that begins a period id.
impl std::fmt::Display for PeriodRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hour => f.write_str("h"),
            Self::Day => f.write_str("d"),
            Self::Month => f.write_str("m"),
            Self::Fixed(seconds) => write!(f, "s{seconds}."),
        }
    }
}

impl PeriodRule {
    /// The text that [`PeriodRule::parse`] reads.
    pub fn word(self) -> String {
        match self {
            Self::Hour => "hour".into(),
            Self::Day => "day".into(),
            Self::Month => "month".into(),
            Self::Fixed(seconds) => format!("{seconds}s"),
        }
    }
}

/// Whether `zone` names a zone that this machine knows.
pub fn zone_known(zone: &str) -> bool {
    TimeZone::get(zone).is_ok()
}

fn at(second: i64, zone: &TimeZone) -> Option<ZonedDateTime> {
    Timestamp::from_second(second).ok().map(|at| at.to_zoned_datetime(zone.clone()))
}

fn calendar(
    now: i64,
    zone: &TimeZone,
    first: impl Fn(&ZonedDateTime) -> Result<ZonedDateTime, jiff::Error>,
    step: jiff::Span,
) -> (i64, i64) {
    let bounds = || -> Option<(i64, i64)> {
        let start = first(&at(now, zone)?).ok()?;
        let end = first(&start.checked_add(step).ok()?).ok()?;
        Some((start.timestamp().as_second(), end.timestamp().as_second()))
    };
    // Beyond jiff's calendar (year 9999) there is no period; an empty window reserves nothing.
    bounds().unwrap_or((now, now))
}

#[cfg(test)]
mod tests {
    use super::PeriodRule;

    #[test]
    fn fixed_windows_tile_time() {
        let window = PeriodRule::Fixed(20).window("UTC", 1_764_460_819);
        assert_eq!(
            (window.id.as_str(), window.start, window.end),
            ("s20.1764460800", 1_764_460_800, 1_764_460_820)
        );
    }

    #[test]
    fn days_follow_the_zone() {
        let utc = PeriodRule::Day.window("UTC", 1_764_460_800);
        assert_eq!((utc.id.as_str(), utc.end - utc.start), ("d1764460800", 86_400));
        let shanghai = PeriodRule::Day.window("Asia/Shanghai", 1_764_460_800);
        assert_eq!(shanghai.start, 1_764_460_800 - 8 * 3600);
    }

    #[test]
    fn day_of_a_clock_change_is_longer() {
        let window = PeriodRule::Day.window("Europe/Berlin", 1_761_442_000); // 26 October 2025
        assert_eq!(window.end - window.start, 25 * 3600);
    }

    #[test]
    fn months_end_where_the_next_begins() {
        let november = PeriodRule::Month.window("America/Los_Angeles", 1_764_460_800);
        let december = PeriodRule::Month.window("America/Los_Angeles", november.end);
        assert_eq!(december.start, november.end);
    }

    #[test]
    fn rules_read_back() {
        for text in ["hour", "day", "month", "20s"] {
            assert_eq!(PeriodRule::parse(text).map(PeriodRule::word).as_deref(), Some(text));
        }
        for text in ["", "0s", "week", "-1s", "2678401s", "20"] {
            assert_eq!(PeriodRule::parse(text), None, "{text:?}");
        }
    }
}
