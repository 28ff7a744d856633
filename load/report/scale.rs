//! From values to places on an axis, and from numbers to words. Pure.

use super::Axis;

/// One axis, laid along pixels.
pub(super) struct Scale {
    log: bool,
    /// A logarithmic axis with values that are not above 0: they stand at its foot, apart from the rest.
    foot: bool,
    low: f64,
    high: f64,
    /// The pixel of the low end and of the high end.
    from: f64,
    to: f64,
}

impl Scale {
    /// An axis that shows all of `values`, from pixel `from` to pixel `to`. A linear axis along y begins at 0.
    pub(super) fn new(axis: &Axis, values: &[f64], (from, to): (f64, f64), zero: bool) -> Self {
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        if axis.log {
            let positive = || finite().filter(|value| *value > 0.0);
            let (least, most) = (positive().fold(f64::INFINITY, f64::min), positive().fold(0.0, f64::max));
            let (least, most) = if most > 0.0 { (least, most) } else { (1.0, 10.0) };
            let foot = finite().any(|value| value <= 0.0);
            let (low, high) = if zero { (step_below(least), step_above(most)) } else { (least, most) };
            let high = if high > low { high } else { low * 10.0 };
            return Self { log: true, foot, low, high, from, to };
        }
        let (least, most) =
            (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
        let (least, most) = if least <= most { (least, most) } else { (0.0, 1.0) };
        let low = if zero { least.min(0.0) } else { least };
        let high = if most > low { most } else { low + 1.0 };
        let high =
            if zero { (high / step((high - low) / 5.0)).ceil() * step((high - low) / 5.0) } else { high };
        Self { log: false, foot: false, low, high, from, to }
    }

    /// The pixel of a value; of one beyond the ends, the end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = if self.log {
            let begin = if self.foot { FOOT } else { 0.0 };
            if value <= 0.0 {
                return self.from;
            }
            begin + (1.0 - begin) * (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// The values that get a tick and a word: round ones, or the measured ones if they are few.
    pub(super) fn ticks(&self, measured: &[f64], room: f64) -> Vec<f64> {
        let length = (self.to - self.from).abs();
        let most = (length / room).max(2.0);
        let mut ticks = if !measured.is_empty() && measured.len() <= 8 {
            measured.to_vec()
        } else if !self.log {
            let step = step((self.high - self.low) / most.min(6.0));
            let first = (self.low / step).ceil() as i64;
            let last = (self.high / step + 1e-9).floor() as i64;
            (first..=last).map(|n| n as f64 * step).collect()
        } else {
            self.decades()
        };
        if self.foot && !ticks.contains(&0.0) {
            ticks.insert(0, 0.0);
        }
        self.apart(ticks, room)
    }

    fn decades(&self) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let within = |value: &f64| *value >= self.low * 0.999 && *value <= self.high * 1.001;
        let all = |steps: &'static [f64]| {
            (first..=last).flat_map(move |n| steps.iter().map(move |step| step * 10f64.powi(n)))
        };
        let tens: Vec<f64> = all(&[1.0]).filter(within).collect();
        if tens.len() >= 4 { tens } else { all(&[1.0, 2.0, 5.0]).filter(within).collect() }
    }

    /// Ticks whose words would touch the one before are left out.
    fn apart(&self, ticks: Vec<f64>, room: f64) -> Vec<f64> {
        let mut kept: Vec<f64> = Vec::new();
        for tick in ticks {
            if kept.last().is_none_or(|last| (self.at(tick) - self.at(*last)).abs() >= room * 0.9) {
                kept.push(tick);
            }
        }
        kept
    }
}

/// The part of a logarithmic axis that keeps 0 apart.
const FOOT: f64 = 0.12;

/// The smallest of 1, 2, 5, 10, 20, … that is not below `least`.
fn step(least: f64) -> f64 {
    if least.is_finite() && least > 0.0 { step_above(least) } else { 1.0 }
}

fn step_above(value: f64) -> f64 {
    let ten = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|n| n * ten).find(|step| *step >= value * 0.999_999).unwrap_or(10.0 * ten)
}

fn step_below(value: f64) -> f64 {
    let ten = 10f64.powf(value.log10().floor());
    [5.0, 2.0].into_iter().map(|n| n * ten).find(|step| *step <= value * 1.000_001).unwrap_or(ten)
}

/// A number for reading: three digits that count, whole ones complete, thousands set apart.
pub(in super::super) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let size = value.abs();
    let digits = if size >= 100.0 || (value.fract() == 0.0 && size < 1e15) {
        0
    } else if size >= 10.0 {
        1
    } else if size >= 0.995 || size == 0.0 {
        2
    } else {
        (2 - size.log10().floor() as i32).clamp(2, 9) as usize
    };
    thousands(&format!("{value:.digits$}"))
}

/// A number beside an axis: as short as can be.
pub(super) fn tick(value: f64) -> String {
    let size = value.abs();
    let short = |value: f64| {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if size >= 1e9 {
        return format!("{value:.0e}");
    }
    if size >= 999_999.0 {
        return format!("{}M", short(value / 1e6));
    }
    if size >= 10_000.0 {
        return format!("{}k", short(value / 1e3));
    }
    if size >= 1.0 || size == 0.0 {
        return thousands(&short(value));
    }
    let digits = (1 - size.log10().floor() as i32).clamp(1, 9) as usize;
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn thousands(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("\u{2212}", digits));
    let (whole, rest) = digits.split_once('.').map_or((digits, None), |(whole, rest)| (whole, Some(rest)));
    let mut out = String::from(sign);
    for (n, digit) in whole.chars().enumerate() {
        if n > 0 && (whole.len() - n) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(rest) = rest {
        out.push('.');
        out += rest;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(log: bool) -> Axis {
        Axis { label: String::new(), log }
    }

    #[test]
    fn numbers_keep_three_digits() {
        let cases = [
            (0.0, "0"),
            (7.0, "7"),
            (1234567.0, "1,234,567"),
            (1234.56, "1,235"),
            (12.345, "12.3"),
            (1.005, "1.00"),
            (0.4567, "0.457"),
            (0.004567, "0.00457"),
            (-1234.0, "\u{2212}1,234"),
            (f64::NAN, "–"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text, "{value}");
        }
    }

    #[test]
    fn ticks_are_short() {
        let cases = [
            (0.0, "0"),
            (0.05, "0.05"),
            (0.5, "0.5"),
            (2.5, "2.5"),
            (5000.0, "5,000"),
            (2e4, "20k"),
            (1.5e6, "1.5M"),
        ];
        for (value, text) in cases {
            assert_eq!(tick(value), text, "{value}");
        }
    }

    #[test]
    fn zero_stands_at_the_foot() {
        let scale = Scale::new(&axis(true), &[0.0, 3.0, 40_000.0], (100.0, 0.0), true);
        assert_eq!(scale.at(0.0), 100.0);
        assert!((scale.at(2.0) - 88.0).abs() < 1e-9, "the lowest step is above the foot: {}", scale.at(2.0));
        assert_eq!(scale.at(50_000.0), 0.0);
        assert_eq!(scale.ticks(&[], 10.0), [0.0, 10.0, 100.0, 1000.0, 10_000.0]);
    }

    #[test]
    fn odd_values_make_an_axis_too() {
        for values in
            [vec![], vec![f64::NAN], vec![0.0], vec![5.0, 5.0], vec![-3.0], vec![f64::INFINITY, 1.0]]
        {
            for log in [false, true] {
                for zero in [false, true] {
                    let scale = Scale::new(&axis(log), &values, (0.0, 100.0), zero);
                    for value in [-1.0, 0.0, 5.0, 1e12] {
                        assert!(
                            (0.0..=100.0).contains(&scale.at(value)),
                            "{value} with {values:?}, log {log}"
                        );
                    }
                    assert!(scale.ticks(&[], 20.0).len() < 20, "{values:?}");
                }
            }
        }
    }

    #[test]
    fn linear_ticks_are_round() {
        let scale = Scale::new(&axis(false), &[0.0, 87.0], (0.0, 300.0), true);
        assert_eq!(scale.ticks(&[], 40.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    }
}
