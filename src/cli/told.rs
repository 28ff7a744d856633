//! What commands print: text and tables on stdout. A reader that went away is no failure.

use std::io::Write as _;

use serde_json::Value;

/// Prints text as it is.
pub(super) fn out(text: &str) {
    let mut stdout = std::io::stdout().lock();
    _ = stdout.write_all(text.as_bytes());
    _ = stdout.flush();
}

/// Prints one line.
pub(super) fn line(text: &str) {
    out(&format!("{}\n", plain(text)));
}

/// Prints a JSON value on one line.
pub(super) fn json(value: &Value) {
    out(&format!("{value}\n"));
}

/// The value at a JSON pointer such as `/a/0/b`; null where there is none.
pub(super) fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

/// The text without control characters: what comes from a peer must not drive the terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A table with a head, columns as wide as needed.
pub(super) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut all: Vec<Vec<String>> = vec![head.iter().map(|name| (*name).to_uppercase()).collect()];
    all.extend(rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()));
    let width = |column: usize| {
        all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut page = String::new();
    for row in &all {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        page.push_str(cells.join("  ").trim_end());
        page.push('\n');
    }
    page
}

/// Prints named fields of an object, one a line.
pub(super) fn pairs(object: &Value, names: &[&str]) {
    for name in names {
        line(&format!("{name:<11} {}", cell(at(object, &format!("/{name}")))));
    }
}

/// Prints named fields of the objects of a list as a table.
pub(super) fn list(list: &Value, names: &[&str]) {
    let items = list.as_array().into_iter().flatten();
    let row = |item| names.iter().map(|name| cell(at(item, &format!("/{name}")))).collect();
    out(&table(names, &items.map(row).collect::<Vec<_>>()));
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{plain, table};

    #[test]
    fn tables_line_up() {
        let rows = vec![vec!["acme".to_owned(), "1".to_owned()], vec!["b".to_owned(), "23".to_owned()]];
        assert_eq!(table(&["id", "cap"], &rows), "ID    CAP\nacme  1\nb     23\n");
    }

    #[test]
    fn escape_codes_do_not_pass() {
        assert_eq!(plain("a\u{1b}[2J\r\nb"), "a\u{fffd}[2J\u{fffd}\u{fffd}b");
    }
}
