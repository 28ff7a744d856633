//! Takes single fields out of a JSON body, noting every one that is wrong. Pure.

use axum::body::Bytes;
use serde_json::{Map, Value};

use crate::quota::period::zone_known;
use crate::quota::{Name, PeriodRule};
use crate::units::Units;

use super::problem::{FieldFault, Problem};

/// A JSON object being read.
#[derive(Debug)]
pub(super) struct Fields {
    map: Map<String, Value>,
    faults: Vec<FieldFault>,
}

impl Fields {
    /// Reads a body; it must be a JSON object.
    pub(super) fn parse(body: &Bytes) -> Result<Self, Problem> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { map, faults: Vec::new() }),
            Ok(_) => Err(Problem::malformed("Send a JSON object.")),
            Err(error) => {
                let (line, column) = (error.line(), error.column());
                Err(Problem::malformed(format!("Not JSON at line {line}, column {column}.")))
            }
        }
    }

    /// Ends the reading: whatever field nobody took is unknown.
    pub(super) fn finish(mut self) -> Result<(), Problem> {
        for field in self.map.keys() {
            let field: String = field.chars().take(64).collect();
            self.faults.push(FieldFault { field, detail: "is not a field of this object".to_owned() });
        }
        if self.faults.is_empty() { Ok(()) } else { Err(Problem::invalid(self.faults)) }
    }

    pub(super) fn name(&mut self, field: &str) -> Option<Name> {
        let allowed = "must be 1 to 64 of A-Z a-z 0-9 - _ .";
        self.take(field, allowed, |value| Name::parse(value.as_str()?))
    }

    /// Whole units, `0 ..= 2^53 - 1`, as a JSON number without fraction.
    pub(super) fn units(&mut self, field: &str) -> Option<Units> {
        let allowed = "must be a whole number from 0 to 9007199254740991";
        self.take(field, allowed, |value| Units::new(value.as_u64()?))
    }

    /// As [`Fields::units`], where `null` lifts the cap: `Some(None)`.
    pub(super) fn units_or_null(&mut self, field: &str) -> Option<Option<Units>> {
        let allowed = "must be a whole number from 0 to 9007199254740991, or null for none";
        self.take(field, allowed, |value| match value {
            Value::Null => Some(None),
            Value::Number(number) => Some(Some(Units::new(number.as_u64()?)?)),
            Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
        })
    }

    pub(super) fn whole(&mut self, field: &str, least: u32, most: u32) -> Option<u32> {
        let allowed = format!("must be a whole number from {least} to {most}");
        self.take(field, &allowed, |value| {
            u32::try_from(value.as_u64()?).ok().filter(|number| (least..=most).contains(number))
        })
    }

    pub(super) fn flag(&mut self, field: &str) -> Option<bool> {
        self.take(field, "must be true or false", Value::as_bool)
    }

    pub(super) fn period(&mut self, field: &str) -> Option<PeriodRule> {
        let allowed =
            "must be \"hour\", \"day\", \"month\" or a fixed length such as \"3600s\" (1 s to 31 days)";
        self.take(field, allowed, |value| PeriodRule::parse(value.as_str()?))
    }

    /// A name of the time zone database.
    pub(super) fn zone(&mut self, field: &str) -> Option<String> {
        let allowed = "must be a time zone such as \"UTC\" or \"Europe/Berlin\"";
        self.take(field, allowed, |value| {
            let zone = value.as_str().filter(|zone| zone.len() <= 64)?;
            zone_known(zone).then(|| zone.to_owned())
        })
    }

    /// A text for people: at most 64 bytes, no control characters.
    pub(super) fn label(&mut self, field: &str) -> Option<String> {
        self.take(field, "must be a text of at most 64 bytes, in one line", |value| {
            let text = value.as_str()?;
            let fine = text.len() <= 64 && !text.chars().any(char::is_control);
            fine.then(|| text.to_owned())
        })
    }

    /// A list of at most 32 names.
    pub(super) fn names(&mut self, field: &str) -> Option<Vec<String>> {
        self.take(field, "must be a list of at most 32 names of A-Z a-z 0-9 - _ .", |value| {
            let items = value.as_array().filter(|items| items.len() <= 32)?;
            items.iter().map(|item| Some(Name::parse(item.as_str()?)?.as_str().to_owned())).collect()
        })
    }

    /// Notes that a field is needed when it is not there.
    pub(super) fn needed<T>(&mut self, field: &str, value: Option<T>) -> Option<T> {
        if value.is_none() && !self.faults.iter().any(|fault| fault.field == field) {
            self.faults.push(FieldFault { field: field.to_owned(), detail: "is needed".to_owned() });
        }
        value
    }

    fn take<T>(&mut self, field: &str, allowed: &str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let value = self.map.remove(field)?;
        let taken = read(&value);
        if taken.is_none() {
            self.faults.push(FieldFault { field: field.to_owned(), detail: allowed.to_owned() });
        }
        taken
    }
}
