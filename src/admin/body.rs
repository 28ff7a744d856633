//! Bodies of requests: bounded, in time, JSON objects whose every wrong field is named at once.
//!
//! A body is a struct of [`Field`]s with `#[serde(flatten)] rest: Unknown` at its end. Reading never stops at the first
//! wrong field: [`Faults`] collects them.

use std::marker::PhantomData;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::quota::period::zone_known;
use crate::quota::{Name, PeriodRule};
use crate::units::Units;

use super::problem::{FieldFault, Problem};

/// Largest body of an admin request, in bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// How long a body may take to arrive.
const BODY_TIME: Duration = Duration::from_secs(10);

/// A request's body, read and parsed.
pub(super) struct Sent<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for Sent<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let reading = to_bytes(request.into_body(), BODY_BYTES_MAX);
        let bytes = match tokio::time::timeout(BODY_TIME, reading).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) if limited(&error) => return Err(Problem::too_large(BODY_BYTES_MAX)),
            Ok(Err(_)) => return Err(Problem::malformed("The body broke off.")),
            Err(_) => return Err(Problem::too_slow(BODY_TIME.as_secs())),
        };
        parse(&bytes).map(Self)
    }
}

fn limited(error: &axum::Error) -> bool {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// Reads a body; it must be a JSON object in which no field stands twice.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        if !error.is_data() {
            return Problem::malformed(format!("Not JSON at line {line}, column {column}."));
        }
        let text = error.to_string();
        // A field of ours, so that its name may be repeated.
        match text.strip_prefix("duplicate field `").and_then(|rest| rest.split('`').next()) {
            Some(field) => Problem::malformed(format!("`{field}` stands twice; send it once.")),
            None => Problem::malformed("Send a JSON object."),
        }
    })
}

/// What stands in a field, as `K` reads it.
#[derive(Debug, Default)]
pub(super) enum Field<K: Kind> {
    /// The field is not there.
    #[default]
    Absent,
    /// It is what it should be.
    Given(K::Value),
    /// It is something else.
    Wrong(PhantomData<K>),
}

/// How one kind of field is read.
pub(super) trait Kind {
    /// What it is read into.
    type Value;
    /// What may stand there, for people.
    const ALLOWED: &'static str;
    /// The value, or `None` when it is not allowed.
    fn read(value: &Value) -> Option<Self::Value>;
}

impl<'de, K: Kind> Deserialize<'de> for Field<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(K::read(&value).map_or(Self::Wrong(PhantomData), Self::Given))
    }
}

/// Fields that nobody asked for.
pub(super) type Unknown = Map<String, Value>;

/// Faults of one body.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<FieldFault>);

impl Faults {
    /// The field's value, if there is one; notes a wrong one.
    pub(super) fn may<K: Kind>(&mut self, name: &str, field: Field<K>) -> Option<K::Value> {
        match field {
            Field::Absent => None,
            Field::Given(value) => Some(value),
            Field::Wrong(_) => {
                self.note(name, K::ALLOWED);
                None
            }
        }
    }

    /// As [`Faults::may`]; notes a missing one too.
    pub(super) fn must<K: Kind>(&mut self, name: &str, field: Field<K>) -> Option<K::Value> {
        if matches!(field, Field::Absent) {
            self.note(name, "is needed");
        }
        self.may(name, field)
    }

    /// Notes a fault of the caller's own.
    pub(super) fn note(&mut self, name: &str, detail: &str) {
        self.0.push(FieldFault { field: name.chars().take(64).collect(), detail: detail.to_owned() });
    }

    /// Ends the reading.
    pub(super) fn finish(mut self, rest: &Unknown) -> Result<(), Problem> {
        for name in rest.keys() {
            self.note(name, "is not a field of this object");
        }
        if self.0.is_empty() { Ok(()) } else { Err(Problem::invalid(self.0)) }
    }

    /// Ends the reading of a body that needs `value`: it is there unless a fault was noted.
    pub(super) fn finish_with<T>(self, rest: &Unknown, value: Option<T>) -> Result<T, Problem> {
        self.finish(rest)?;
        value.ok_or_else(|| Problem::invalid(Vec::new()))
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident: $value:ty, $allowed:expr, $read:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) enum $name {}

        impl Kind for $name {
            type Value = $value;
            const ALLOWED: &'static str = $allowed;
            fn read(value: &Value) -> Option<$value> {
                let read: fn(&Value) -> Option<$value> = $read;
                read(value)
            }
        }
    )*};
}

kinds! {
    /// A name that may become part of a path and a key.
    Id: Name, "must be 1 to 64 of A-Z a-z 0-9 - _ . and neither \".\" nor \"..\"", |value| id(value.as_str()?);
    /// Whole units, `0 ..= 2^53 - 1`, as a JSON number without fraction or exponent.
    Amount: Units, "must be a whole number from 0 to 9007199254740991",
        |value| Units::new(value.as_u64()?);
    /// As [`Amount`], where `null` lifts the cap.
    AmountOrNull: Option<Units>, "must be a whole number from 0 to 9007199254740991, or null for none",
        |value| if value.is_null() { Some(None) } else { Units::new(value.as_u64()?).map(Some) };
    /// Share of what is free that one session may reserve: 1/share.
    Share: u32, "must be a whole number from 1 to 1024", |value| whole(value, 1024);
    /// Live streams at once.
    Streams: u32, "must be a whole number from 1 to 65536", |value| whole(value, 65_536);
    /// Yes or no.
    Flag: bool, "must be true or false", Value::as_bool;
    /// How time is cut.
    Period: PeriodRule,
        "must be \"hour\", \"day\", \"month\" or a fixed length such as \"3600s\" (1 s to 31 days)",
        |value| PeriodRule::parse(value.as_str()?);
    /// A name of the time zone database.
    Zone: String, "must be a time zone such as \"UTC\" or \"Europe/Berlin\"", |value| {
        let zone = value.as_str().filter(|zone| zone.len() <= 64)?;
        zone_known(zone).then(|| zone.to_owned())
    };
    /// A text for people.
    Label: String,
        "must be a text of at most 64 bytes, in one line, without control or direction characters",
        |value| value.as_str().filter(|text| text.len() <= 64 && text.chars().all(shows)).map(str::to_owned);
    /// Names of models.
    Models: Vec<String>, "must be a list of at most 32 names of A-Z a-z 0-9 - _ .", |value| {
        let items = value.as_array().filter(|items| items.len() <= 32)?;
        items.iter().map(|item| Some(Name::parse(item.as_str()?)?.as_str().to_owned())).collect()
    };
}

/// A name that no client or proxy takes for a step in a path.
pub(super) fn id(text: &str) -> Option<Name> {
    Name::parse(text).filter(|name| !matches!(name.as_str(), "." | ".."))
}

fn whole(value: &Value, most: u32) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok().filter(|number| (1..=most).contains(number))
}

/// Whether a character shows as itself: no control, no line or paragraph end, none that turns the direction of text.
fn shows(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !(c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}'))
}

/// The parameters of a query; each at most once, none but those named.
pub(super) fn query<const N: usize>(
    query: Option<&str>,
    names: [&str; N],
) -> Result<[Option<String>; N], Problem> {
    let (mut found, mut faults) = ([const { None }; N], Faults::default());
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match names.iter().zip(&mut found).find(|(known, _)| **known == name) {
            Some((_, place @ None)) => *place = Some(value.into_owned()),
            Some((_, Some(_))) => faults.note(&name, "stands twice; send it once"),
            None => faults.note(&name, "is not a parameter of this address"),
        }
    }
    faults.finish(&Unknown::new()).map(|()| found)
}

#[cfg(test)]
mod tests {
    use super::{Amount, AmountOrNull, Id, Kind as _, Label, query};
    use serde_json::Value;

    /// The edge takes only plain whole numbers; all else is refused before any script sees it.
    #[test]
    fn amounts_are_plain_numbers() {
        for (text, fine) in [
            ("0", true),
            ("1", true),
            ("9007199254740991", true),
            ("9007199254740992", false),
            ("9223372036854775808", false),
            ("18446744073709551616", false),
            ("-1", false),
            ("-0", false),
            ("1.5", false),
            ("1.0", false),
            ("1e3", false),
            ("\"5\"", false),
            ("\"0x10\"", false),
            ("\" 7\"", false),
            ("true", false),
            ("[]", false),
        ] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(Amount::read(&value).is_some(), fine, "{text}");
            assert_eq!(AmountOrNull::read(&value).is_some(), fine, "{text}");
        }
        assert_eq!(AmountOrNull::read(&Value::Null), Some(None));
    }

    #[test]
    fn ids_are_no_path_steps() {
        for text in [".", "..", "", "a/b", "a b", "a{b}", "a\u{0}"] {
            assert_eq!(Id::read(&text.into()), None, "{text:?}");
        }
        assert!(Id::read(&"...".into()).is_some());
    }

    #[test]
    fn labels_read_as_they_look() {
        for text in [
            "a\nb",
            "a\u{202e}b",
            "\u{2066}a",
            "a\u{1b}[2J",
            "\u{7f}",
            "a\u{85}",
            "a\u{2028}b",
            &"x".repeat(65),
        ] {
            assert_eq!(Label::read(&text.into()), None, "{text:?}");
        }
        assert!(Label::read(&"Büro 東京 שלום".into()).is_some());
    }

    #[test]
    fn queries_are_read_once() {
        assert_eq!(
            query(Some("a=1&b=x%2Cy"), ["a", "b", "c"]).unwrap(),
            [Some("1".into()), Some("x,y".into()), None]
        );
        assert!(query(Some("a=1&a=1"), ["a"]).is_err());
        assert!(query(Some("b=1"), ["a"]).is_err());
    }
}
