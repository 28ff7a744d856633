//! Numbers as Redis reads and prints them, byte for byte; never tolerant where Redis is strict.

use std::io::Write as _;

use super::Fault;

/// Reads a signed 64-bit integer: no plus, no blank, no leading zero, no `-0`.
pub(in super::super) fn parse_int(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    match digits {
        [] => return None,
        [b'0'] => return (!negative).then_some(0),
        [b'0', ..] => return None,
        _ if digits.len() > 19 => return None,
        _ => {}
    }
    let mut sum: u64 = 0;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        sum = sum * 10 + u64::from(digit); // 19 digits stay below 2^64
    }
    if negative { 0_i64.checked_sub_unsigned(sum) } else { i64::try_from(sum).ok() }
}

/// Reads an integer argument.
///
/// # Errors
/// Redis' own text when it is none.
pub(super) fn int_arg(text: &[u8]) -> Result<i64, Fault> {
    parse_int(text).ok_or(Fault::Borrowed("ERR value is not an integer or out of range"))
}

/// Reads a score: decimal or `inf`, never `nan`, hexadecimal or beyond the range of a double.
pub(super) fn parse_score(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let value: f64 = text.parse().ok()?;
    let named = text.trim_start_matches(['+', '-']).starts_with(['i', 'I']);
    (!value.is_nan() && value.is_infinite() == named).then_some(value)
}

/// Writes an integer over whatever `out` held, reusing its memory.
pub(super) fn put_int(out: &mut Vec<u8>, value: i64) {
    out.clear();
    let mut digits = [0_u8; 20];
    let mut rest = value.unsigned_abs();
    let mut used = 0;
    for slot in digits.iter_mut().rev() {
        *slot = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        used += 1;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend(digits.iter().skip(digits.len() - used));
}

/// Appends a double as Redis 7.2+ and Valkey print it: an integer plainly, else the shortest digits.
pub(in super::super) fn push_double(out: &mut Vec<u8>, value: f64) {
    if let Some(whole) = whole(value) {
        let mut text = Vec::with_capacity(20);
        put_int(&mut text, whole);
        out.extend(text);
    } else if value.is_nan() {
        out.extend_from_slice(if value.is_sign_negative() { b"-nan" } else { b"nan" });
    } else if value.is_infinite() {
        out.extend_from_slice(if value < 0.0 { b"-inf" } else { b"inf" });
    } else {
        push_shortest(out, value);
    }
}

/// A double as bytes; see [`push_double`].
pub(super) fn double(value: f64) -> Vec<u8> {
    let mut out = Vec::new();
    push_double(&mut out, value);
    out
}

/// The integer a double is exactly, where Redis would print it as one.
fn whole(value: f64) -> Option<i64> {
    const MOST: f64 = 4_611_686_018_427_387_904.0; // 2^62, Redis' own bound
    if !(-MOST..=MOST).contains(&value) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "within 2^62, checked above")]
    let whole = value as i64;
    #[expect(clippy::cast_precision_loss, reason = "the comparison is the check")]
    let back = whole as f64;
    (back == value).then_some(whole)
}

/// The layout of Redis' `fpconv_dtoa`: plain while short, else `d.ddde+x`.
fn push_shortest(out: &mut Vec<u8>, value: f64) {
    let scientific = format!("{:e}", value.abs());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let digits: Vec<u8> = mantissa.bytes().filter(u8::is_ascii_digit).collect();
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let shift = exponent - count + 1; // value = digits * 10^shift
    if value < 0.0 {
        out.push(b'-');
    }
    if shift >= 0 && exponent.abs() < count + 7 {
        out.extend(&digits);
        out.extend(std::iter::repeat_n(b'0', usize::try_from(shift).unwrap_or_default()));
    } else if shift < 0 && (shift > -7 || exponent.abs() < 4) {
        push_decimal(out, &digits, count + shift);
    } else {
        push_scientific(out, &digits, exponent);
    }
}

fn push_decimal(out: &mut Vec<u8>, digits: &[u8], point: i32) {
    match usize::try_from(point) {
        Ok(point) if point > 0 => {
            out.extend(digits.iter().take(point));
            out.push(b'.');
            out.extend(digits.iter().skip(point));
        }
        _ => {
            let zeros = usize::try_from(point.unsigned_abs()).unwrap_or_default();
            out.extend_from_slice(b"0.");
            out.extend(std::iter::repeat_n(b'0', zeros));
            out.extend(digits);
        }
    }
}

fn push_scientific(out: &mut Vec<u8>, digits: &[u8], exponent: i32) {
    out.extend(digits.iter().take(1));
    if digits.len() > 1 {
        out.push(b'.');
        out.extend(digits.iter().skip(1));
    }
    write!(out, "e{exponent:+}").expect("writing to memory never fails");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_strictly() {
        for (text, value) in [
            ("0", 0),
            ("7", 7),
            ("-1", -1),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse_int(text.as_bytes()), Some(value), "{text}");
            let mut out = b"old".to_vec();
            put_int(&mut out, value);
            assert_eq!(out, text.as_bytes());
        }
        for text in [
            "",
            "-",
            "-0",
            "01",
            "+1",
            " 1",
            "1 ",
            "1.0",
            "0x1",
            "9223372036854775808",
            "99999999999999999999",
        ] {
            assert_eq!(parse_int(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn doubles_print_as_valkey_does() {
        for (value, text) in [
            (0.1, "0.1"),
            (-0.0, "0"),
            (3.0, "3"),
            (1e17, "100000000000000000"),
            (4_611_686_018_427_387_904.0, "4611686018427387904"),
            (9_223_372_036_854_775_808.0, "9223372036854776000"),
            (1e-7, "1e-7"),
            (-1.5e-5, "-0.000015"),
            (3e-10, "3e-10"),
            (12_345_678.9, "12345678.9"),
            (1e21, "1e+21"),
            (1e22, "1e+22"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(String::from_utf8(double(value)).unwrap(), text);
        }
    }

    #[test]
    fn scores_refuse_what_redis_refuses() {
        for text in ["", "nan", "x", " 1", "1e400", "1_0", "0x10"] {
            assert_eq!(parse_score(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_score(b"+inf"), Some(f64::INFINITY));
        assert_eq!(parse_score(b".5"), Some(0.5));
        assert_eq!(parse_score(b"5."), Some(5.0));
    }
}
