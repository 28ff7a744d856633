//! Ledger rows as text: JSON lines and CSV, the same columns in the same order. Pure: rows in, text out.
//!
//! Columns are only ever added at the end. Amounts are whole units; `at` is UTC; in JSON, numbers are numbers (all
//! below 2^53). In CSV every line ends with LF, a cell with a comma, quote or line break is quoted, and a text cell
//! that a spreadsheet would take for a formula (it begins with `=`, `+`, `-`, `@`, tab or return) gets a `'` in front.

use std::fmt::Write as _;

use serde_json::json;

use super::keys::Name;
use super::ledger::Row;

/// The columns, in order.
pub const COLUMNS: [&str; 17] = [
    "account",
    "period",
    "id",
    "at",
    "at_ms",
    "session",
    "key",
    "lease",
    "granted",
    "charged",
    "excess",
    "how",
    "model",
    "units_per_second",
    "tags",
    "ending",
    "worker",
];

/// One row as one line of JSON, with its line end.
pub fn json_line(account: &Name, row: &Row) -> String {
    let cells = cells(account, row);
    let mut line = String::with_capacity(512);
    for (i, (name, cell)) in COLUMNS.iter().zip(&cells).enumerate() {
        let value = match cell {
            Cell::Text(text) => json!(text),
            Cell::Number(number) => json!(number),
        };
        // Writing to a String can't fail.
        let _ = write!(line, "{}\"{name}\":{value}", if i == 0 { '{' } else { ',' });
    }
    line.push_str("}\n");
    line
}

/// The first line of a CSV file.
pub fn csv_header() -> String {
    format!("{}\n", COLUMNS.join(","))
}

/// One row as one line of CSV, with its line end.
pub fn csv_line(account: &Name, row: &Row) -> String {
    let cells = cells(account, row).map(|cell| match cell {
        Cell::Text(text) => quoted(&text),
        Cell::Number(number) => number.to_string(),
    });
    format!("{}\n", cells.join(","))
}

enum Cell {
    Text(String),
    Number(u64),
}

fn cells(account: &Name, row: &Row) -> [Cell; 17] {
    let text = |text: &str| Cell::Text(text.to_owned());
    [
        text(account.as_str()),
        text(&row.period),
        text(&row.id),
        Cell::Text(utc(row.at_ms)),
        Cell::Number(row.at_ms),
        text(&row.session),
        text(&row.key),
        Cell::Number(row.lease),
        Cell::Number(row.granted.get()),
        Cell::Number(row.charged.get()),
        Cell::Number(row.excess.get()),
        text(row.how.word()),
        text(&row.model),
        Cell::Number(u64::from(row.units_per_second)),
        text(&row.tags),
        text(&row.ending),
        text(&row.worker),
    ]
}

/// RFC 3339 with milliseconds; empty beyond the calendar.
fn utc(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map(|at| format!("{at:.3}")).unwrap_or_default()
}

fn quoted(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::ledger::How;
    use crate::units::Units;

    fn row(session: &str, tags: &str) -> Row {
        Row {
            period: "d1764460800".into(),
            id: "1764460800123-0".into(),
            at_ms: 1_764_460_800_123,
            session: session.into(),
            key: "ab12".into(),
            lease: 3,
            granted: Units::MAX,
            charged: Units::from(400),
            excess: Units::ZERO,
            how: How::Settled,
            model: "nova".into(),
            units_per_second: 1000,
            tags: tags.into(),
            ending: "client_done".into(),
            worker: "w1".into(),
        }
    }

    #[test]
    fn csv_line_keeps_its_columns() {
        let line = csv_line(&Name::parse("acme").unwrap(), &row("s", ""));
        let expected = "acme,d1764460800,1764460800123-0,2025-11-30T00:00:00.123Z,1764460800123,s,ab12,3,\
                        9007199254740991,400,0,settled,nova,1000,,client_done,w1\n";
        assert_eq!(line, expected);
        assert_eq!(csv_header().split(',').count(), line.split(',').count());
    }

    #[test]
    fn formulas_stay_text() {
        for (text, cell) in [
            ("=1+1", "'=1+1"),
            ("-x", "'-x"),
            ("@a", "'@a"),
            ("+a", "'+a"),
            ("a,b", "\"a,b\""),
            ("a\"b", "\"a\"\"b\""),
            ("a\nb", "\"a\nb\""),
            ("=a,\"b\"", "\"'=a,\"\"b\"\"\""),
            ("plain", "plain"),
            ("", ""),
        ] {
            assert_eq!(quoted(text), cell, "{text:?}");
        }
    }

    #[test]
    fn json_line_is_one_line_of_json() {
        let line = json_line(&Name::parse("acme").unwrap(), &row("s", "a\"b\nc"));
        assert_eq!(line.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["granted"], 9_007_199_254_740_991_u64);
        assert_eq!(value["tags"], "a\"b\nc");
        assert_eq!(value.as_object().unwrap().len(), COLUMNS.len());
        assert!(line.starts_with(r#"{"account":"acme","period":"d1764460800","id":"#), "{line}");
    }
}
