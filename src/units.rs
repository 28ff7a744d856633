//! Whole units of audio, the only number that budgets count.
//!
//! One unit is one millisecond of audio on one channel unless the model's tariff says otherwise. Amounts
//! never leave `0 ..= 2^53 - 1`: beyond that a Lua number is no longer exact, so nothing beyond it may reach
//! a script. This file does no rounding and knows no clock.

use std::fmt;

/// An amount of units, `0 ..= Units::MAX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Units(u64);

impl Units {
    /// No units at all.
    pub const ZERO: Self = Self(0);
    /// 2^53 - 1, the largest integer that Lua, JSON and JavaScript all keep exact.
    pub const MAX: Self = Self(9_007_199_254_740_991);

    /// The amount, or `None` above [`Units::MAX`].
    pub const fn new(units: u64) -> Option<Self> {
        if units <= Self::MAX.0 { Some(Self(units)) } else { None }
    }

    /// The amount, cut down to [`Units::MAX`].
    pub const fn saturating(units: u64) -> Self {
        if units <= Self::MAX.0 { Self(units) } else { Self::MAX }
    }

    /// The plain integer.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether there is nothing to pay.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, or `None` above [`Units::MAX`].
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).and_then(Self::new)
    }

    /// The sum, cut down to [`Units::MAX`].
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self::saturating(self.0.saturating_add(other.0))
    }

    /// The difference, never below zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Reads plain decimal digits: no sign, space, exponent, fraction or leading zero (except `0` itself).
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text == "0" || (!text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()));
        if !plain || text.is_empty() || text.len() > 16 {
            return None;
        }
        text.parse().ok().and_then(Self::new)
    }
}

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u32> for Units {
    fn from(units: u32) -> Self {
        Self(u64::from(units))
    }
}

#[cfg(test)]
mod tests {
    use super::Units;

    #[test]
    fn only_plain_decimal_parses() {
        for text in ["", "-1", "+1", "01", "1.5", "0x10", "1e3", " 7", "7 ", "nan", "inf", "9007199254740992"]
        {
            assert_eq!(Units::parse(text), None, "{text:?}");
        }
        for text in ["18446744073709551616", "9223372036854775807", "9223372036854775808"] {
            assert_eq!(Units::parse(text), None, "{text:?}");
        }
        assert_eq!(Units::parse("0"), Some(Units::ZERO));
        assert_eq!(Units::parse("9007199254740991"), Some(Units::MAX));
    }

    #[test]
    fn sums_stay_exact_or_fail() {
        assert_eq!(Units::MAX.checked_add(Units::from(1)), None);
        assert_eq!(Units::MAX.saturating_add(Units::from(1)), Units::MAX);
        assert_eq!(Units::from(3).saturating_sub(Units::from(5)), Units::ZERO);
    }
}
