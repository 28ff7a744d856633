//! The HTML page.

use super::Report;

/// One page of all these reports, which needs nothing besides itself.
pub(super) fn html(reports: &[Report]) -> String {
    let mut text = String::from("<!doctype html><meta charset=\"utf-8\"><title>load</title>");
    for report in reports {
        text += &format!("<h1>{}</h1>", escape(&report.run));
        for chart in &report.charts {
            text += &super::chart::svg(chart, 560.0);
        }
    }
    text
}

/// A text as HTML content or attribute value.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            _ => out.push(letter),
        }
    }
    out
}
