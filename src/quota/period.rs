//! How an account's time is cut into budget periods. Pure: a rule and a second in, a window out.
//!
//! Calendar periods follow the account's zone (hours, days and months as people there count them); fixed ones
//! count from 1970. The id is the unit and the UTC second in which the window starts, so that two gateways that
//! agree on the store's clock agree on the period, whatever their own zone or clock.
//!
//! # Another plan
//! An account that gets another rule or zone keeps the old one to the end of its running period. [`Plan`] remembers
//! the ways before, each with the second at which it ended; windows are clipped there, so no second ever belongs to
//! two periods or to none.

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

/// One way of cutting time, and when it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stint {
    /// How time was cut.
    pub rule: PeriodRule,
    /// Zone of its calendar.
    pub zone: String,
    /// Unix second from which it no longer counts.
    pub until: i64,
}

/// The ways before the present one, oldest first; at most [`STINTS_MAX`], older ones are forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    stints: Vec<Stint>,
}

/// How an account's time is cut, now and before. Gives the same window to everybody who knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How time is cut once every earlier way has ended.
    pub rule: PeriodRule,
    /// IANA zone name.
    pub zone: String,
    /// The ways before.
    pub earlier: History,
}

/// Ways before the present one that are remembered: all but the last are over, and only matter to who looks back.
pub const STINTS_MAX: usize = 8;

impl Plan {
    /// The period that second `now` lies in; its id is the unit and the first second, clipped where a way began.
    pub fn window(&self, now: i64) -> Window {
        let stints = &self.earlier.stints;
        let place = stints.iter().take_while(|stint| stint.until <= now).count();
        let since = place.checked_sub(1).and_then(|last| stints.get(last)).map(|stint| stint.until);
        let (rule, zone, until) = stints
            .get(place)
            .map_or((self.rule, &self.zone, None), |stint| (stint.rule, &stint.zone, Some(stint.until)));
        let raw = rule.window(zone, now);
        let start = since.map_or(raw.start, |since| raw.start.max(since));
        let end = until.map_or(raw.end, |until| raw.end.min(until));
        Window { id: format!("{rule}{start}"), start, end }
    }

    /// Another rule or zone from the end of the period that runs at `now`. What was to come later never comes.
    #[must_use]
    pub fn change(&self, rule: PeriodRule, zone: &str, now: i64) -> Self {
        let until = self.window(now).end;
        let mut stints: Vec<Stint> =
            self.earlier.stints.iter().filter(|s| s.until < until).cloned().collect();
        let running = self.earlier.stints.iter().find(|stint| stint.until >= until);
        let (was, its_zone) = running.map_or((self.rule, &self.zone), |stint| (stint.rule, &stint.zone));
        if (was, its_zone.as_str()) != (rule, zone) {
            stints.push(Stint { rule: was, zone: its_zone.clone(), until });
        }
        let surplus = stints.len().saturating_sub(STINTS_MAX);
        Self { rule, zone: zone.to_owned(), earlier: History { stints: stints.split_off(surplus) } }
    }

    /// The second at which the present way begins, if there was one before.
    pub fn since(&self) -> Option<i64> {
        self.earlier.stints.last().map(|stint| stint.until)
    }
}

impl History {
    /// Reads `<rule> <zone> <until>` lines, oldest first; `None` if they are not that or do not rise.
    pub fn parse(text: &str) -> Option<Self> {
        let stint = |line: &str| {
            let mut words = line.split(' ');
            let (rule, zone, until) = (words.next()?, words.next()?, words.next()?);
            words.next().is_none().then_some(())?;
            Some(Stint { rule: PeriodRule::parse(rule)?, zone: zone.into(), until: until.parse().ok()? })
        };
        let stints: Vec<Stint> = text.lines().map(stint).collect::<Option<_>>()?;
        let rising = stints.iter().zip(stints.iter().skip(1)).all(|(a, b)| a.until < b.until);
        (rising && stints.len() <= STINTS_MAX).then_some(Self { stints })
    }

    /// The text that [`History::parse`] reads; empty for an account that never changed.
    pub fn text(&self) -> String {
        let line = |stint: &Stint| format!("{} {} {}", stint.rule.word(), stint.zone, stint.until);
        self.stints.iter().map(line).collect::<Vec<_>>().join("\n")
    }
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
    use super::{History, PeriodRule, Plan, Window};
    use proptest::prelude::*;

    fn plan(rule: PeriodRule, zone: &str) -> Plan {
        Plan { rule, zone: zone.into(), earlier: History::default() }
    }

    fn rules() -> impl Strategy<Value = (PeriodRule, &'static str)> {
        let rule = prop_oneof![
            Just(PeriodRule::Hour),
            Just(PeriodRule::Day),
            Just(PeriodRule::Month),
            (1_u32..200_000).prop_map(PeriodRule::Fixed),
        ];
        let zones =
            ["UTC", "Asia/Shanghai", "Europe/Berlin", "America/Los_Angeles", "Asia/Kolkata", "No/Where"];
        (rule, proptest::sample::select(zones.to_vec()))
    }

    const BEGIN: i64 = 1_760_000_000;

    proptest! {
        /// Whatever is changed and whenever: each second lies in one window, and the next begins where it ends.
        #[test]
        fn windows_tile_time_under_any_changes(
            first in rules(),
            changes in proptest::collection::vec((0_i64..4_000_000, rules()), 0..6),
            probes in proptest::collection::vec(0_i64..12_000_000, 40),
        ) {
            let mut now = BEGIN;
            let mut plan = plan(first.0, first.1);
            let mut seen: Vec<Window> = Vec::new();
            for (wait, (rule, zone)) in changes {
                let running = plan.window(now);
                plan = plan.change(rule, zone, now);
                prop_assert_eq!(&plan.window(now), &running, "the running period stays as it is");
                seen.push(running);
                now += wait;
            }
            for probe in probes {
                let (at, window) = (now + probe - 2_000_000, plan.window(now + probe - 2_000_000));
                prop_assert!(window.start <= at && at < window.end, "{at} in {window:?}");
                prop_assert_eq!(&plan.window(window.start), &window);
                prop_assert_eq!(&plan.window(window.end - 1), &window);
                prop_assert_eq!(plan.window(window.end).start, window.end);
                prop_assert_eq!(plan.window(window.start - 1).end, window.start);
            }
            for window in seen {
                prop_assert_eq!(plan.window(window.start), window, "what ran once still reads the same");
            }
            prop_assert_eq!(History::parse(&plan.earlier.text()), Some(plan.earlier));
        }
    }

    #[test]
    fn change_waits_for_the_period_to_end() {
        let noon = 1_764_504_000;
        let changed = plan(PeriodRule::Day, "UTC").change(PeriodRule::Hour, "UTC", noon);
        assert_eq!(changed.window(noon).id, "d1764460800");
        assert_eq!(changed.window(1_764_547_200).id, "h1764547200");
        assert_eq!(changed.since(), Some(1_764_547_200));
        let back = changed.change(PeriodRule::Day, "UTC", noon);
        assert_eq!(back, plan(PeriodRule::Day, "UTC"), "a change that is taken back leaves no trace");
    }

    #[test]
    fn odd_histories_are_refused() {
        for text in ["day", "day UTC", "day UTC x", "week UTC 5", "day UTC 5\nday UTC 5", "day UTC 5 6"] {
            assert_eq!(History::parse(text), None, "{text:?}");
        }
        assert_eq!(History::parse(""), Some(History::default()));
    }

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
