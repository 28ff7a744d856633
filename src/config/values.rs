//! Values that carry their unit: times, sizes, addresses of stores, secrets. Pure; never guesses a unit.

use std::fmt;
use std::time::Duration;

use crate::quota::store::redis::Target;

/// A text that is never shown: `Debug` prints `***`, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text; nothing is checked.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself. Hand it only to whom it is meant for.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where the books are kept.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// In this process, in memory.
    Embedded,
    /// In this process and a directory of its own; `embedded:` and its path.
    Disk(String),
    /// Redis or Valkey; the whole URL, password included.
    Redis(Secret),
}

impl StoreUrl {
    /// Reads `embedded`, `embedded:DIRECTORY` or what [`Target`] reads; the error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text == "embedded" {
            return Ok(Self::Embedded);
        }
        if let Some(folder) = text.strip_prefix("embedded:") {
            if folder.trim().is_empty() || folder.chars().any(char::is_control) {
                return Err("`embedded:` needs the path of a directory");
            }
            return Ok(Self::Disk(text.to_owned()));
        }
        Target::parse(text).map(|_| Self::Redis(Secret::new(text)))
    }

    /// The address with its password, for whoever connects; never for people.
    pub fn address(&self) -> &str {
        match self {
            Self::Embedded => "embedded",
            Self::Disk(url) => url,
            Self::Redis(url) => url.expose(),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("embedded"),
            Self::Disk(url) => f.write_str(url),
            Self::Redis(url) => f.write_str(&mask_url(url.expose())),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The URL with user and password replaced by `***` and its query removed.
pub fn mask_url(url: &str) -> String {
    let url = url.split_once('?').map_or(url, |(front, _)| front);
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://***@{host}"),
        None => url.to_owned(),
    }
}

/// Reads a time such as `250ms`, `30s`, `5m`, `1h 30m`. A number without a unit is refused.
pub fn parse_time(text: &str) -> Result<Duration, &'static str> {
    if text.trim().bytes().all(|b| b.is_ascii_digit()) {
        return Err("a number without a unit");
    }
    humantime::parse_duration(text).map_err(|_| "not a time")
}

/// Writes a time so that [`parse_time`] reads it back.
pub fn show_time(time: Duration) -> String {
    humantime::format_duration(time).to_string().replace(' ', "")
}

/// Reads a size such as `512B`, `64KiB`, `2MiB`, in bytes. A number without a unit is refused.
pub fn parse_size(text: &str) -> Result<usize, &'static str> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: usize = number.parse().map_err(|_| "not a size")?;
    let scale = match unit.trim() {
        "B" => 1,
        "KiB" => 1024,
        "MiB" => 1024 * 1024,
        "" => return Err("a number without a unit"),
        _ => return Err("the unit is none of B, KiB, MiB"),
    };
    number.checked_mul(scale).ok_or("too large")
}

/// Writes a size so that [`parse_size`] reads it back.
pub fn show_size(bytes: usize) -> String {
    const MIB: usize = 1024 * 1024;
    match bytes {
        b if b >= MIB && b.is_multiple_of(MIB) => format!("{}MiB", b / MIB),
        b if b >= 1024 && b.is_multiple_of(1024) => format!("{}KiB", b / 1024),
        b => format!("{b}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Secret, StoreUrl, mask_url, parse_size, parse_time, show_size, show_time};
    use std::time::Duration;

    #[test]
    fn times_need_their_unit() {
        assert_eq!(parse_time("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_time("1h 30m"), Ok(Duration::from_secs(5400)));
        for text in ["", "0", "10", " 10 ", "-1s", "ten", "1q"] {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
        let odd = Duration::from_millis(90_250);
        assert_eq!(parse_time(&show_time(odd)), Ok(odd));
    }

    #[test]
    fn sizes_need_their_unit() {
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("2 MiB"), Ok(2_097_152));
        for text in ["", "64", "64k", "KiB", "-1B", "99999999999999999999B", "18446744073709551615KiB"] {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
        for bytes in [1, 1024, 1025, 3 * 1024 * 1024] {
            assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn secrets_never_show() {
        let url = StoreUrl::parse("redis+sentinel://me:canary@a,b/main/1?sentinel_password=canary").unwrap();
        assert_eq!(
            format!("{url} {url:?}"),
            "redis+sentinel://***@a,b/main/1 redis+sentinel://***@a,b/main/1"
        );
        assert_eq!(format!("{:?}", Secret::new("canary")), "***");
        assert_eq!(mask_url("ws://a:can@ary@h/"), "ws://***@h/");
    }

    #[test]
    fn stores_are_two_kinds() {
        assert_eq!(StoreUrl::parse("embedded"), Ok(StoreUrl::Embedded));
        let disk = StoreUrl::parse("embedded:/var/lib/voxgate").unwrap();
        assert_eq!(disk, StoreUrl::Disk("embedded:/var/lib/voxgate".into()));
        assert_eq!(
            (disk.address(), disk.to_string()),
            ("embedded:/var/lib/voxgate", disk.address().to_owned())
        );
        for nowhere in ["embedded:", "embedded: ", "embedded:a\nb", "embeded:/x"] {
            assert!(StoreUrl::parse(nowhere).is_err(), "{nowhere:?}");
        }
        for text in ["", "localhost", "http://h", "redis://", "redis://:6379", "redis://a b"] {
            assert!(StoreUrl::parse(text).is_err(), "{text:?}");
        }
    }
}
