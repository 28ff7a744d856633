//! The HTML page: headline, charts, tables, notes, and the report itself as JSON for machines.
//!
//! It needs nothing besides itself: no script runs, nothing is fetched. Every text that comes from outside is escaped.

use std::fmt::Write as _;

use serde_json::Value;

use super::chart::{NARROW, WIDE, legend, svg};
use super::scale::number;
use super::{Chart, Figure, Report, Table};

/// One page of all these reports, below [`BYTES_MAX`] if leaving out raw data does it.
pub(super) fn html(reports: &[Report]) -> String {
    let body = body(reports);
    let mut kept = reports.to_vec();
    let whole = with_data(&body, &kept);
    if whole.len() <= BYTES_MAX {
        return whole;
    }
    for report in &mut kept {
        report.data = Value::String("left out here: see the JSON file of this run".into());
    }
    let short = with_data(&body, &kept);
    if short.len() <= BYTES_MAX {
        return short;
    }
    for series in kept.iter_mut().flat_map(|report| &mut report.charts).flat_map(|chart| &mut chart.series) {
        series.points.clear();
    }
    with_data(&body, &kept)
}

/// How large a page may be.
const BYTES_MAX: usize = 500 * 1024;

fn with_data(body: &str, reports: &[Report]) -> String {
    let title = match reports {
        [one] => format!("load {}", one.run),
        _ => format!("Voxgate load: {} runs", reports.len()),
    };
    // Inside a script element only `<` could end it early.
    let data = serde_json::json!(reports).to_string().replace('<', "\\u003c");
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{0}</title><style>\n{STYLE}</style></head>\n<body><main><h1>{0}</h1>\n{body}</main>\n\
         <script type=\"application/json\" id=\"data\">{data}</script></body></html>\n",
        escape(&title)
    )
}

const STYLE: &str = include_str!("style.css");

fn body(reports: &[Report]) -> String {
    let mut out = String::new();
    if let [one] = reports {
        run(&mut out, one, 0);
        return out;
    }
    out += "<nav aria-label=\"Runs\"><ul>";
    for (n, report) in reports.iter().enumerate() {
        let _ = write!(out, "<li><a href=\"#run{n}\">{}</a></li>", escape(&report.run));
    }
    out += "</ul></nav>";
    for (n, report) in reports.iter().enumerate() {
        let _ = write!(out, "<section class=\"run\" id=\"run{n}\"><h2>load {}</h2>", escape(&report.run));
        run(&mut out, report, n);
        out += "</section>\n";
    }
    out
}

fn run(out: &mut String, report: &Report, n: usize) {
    about(out, &report.environment);
    figures(out, &report.headline);
    if !report.charts.is_empty() {
        *out += "<div class=\"charts\">\n";
        for chart in &report.charts {
            figure(out, chart);
        }
        *out += "</div>\n";
    }
    for (at, shown) in report.tables.iter().enumerate() {
        table(out, shown, &format!("t{n}.{at}"));
    }
    if !report.notes.is_empty() {
        *out += "<h3>How to read this</h3><ul class=\"notes\">";
        for note in &report.notes {
            let _ = write!(out, "<li>{}</li>", escape(note));
        }
        *out += "</ul>\n";
    }
    pairs(out, "What the run was told", &report.options);
    pairs(out, "Where it ran", &report.environment);
}

/// One line on machine, store and day.
fn about(out: &mut String, environment: &Value) {
    let word = |name: &str| environment.get(name).filter(|value| !value.is_null()).map(plain);
    let at = word("at").map(|at| match at.split_once('.') {
        Some((seconds, _)) => format!("{} UTC", seconds.replace('T', " ")),
        None => at,
    });
    let parts = [
        word("store"),
        word("cpu"),
        word("cores").map(|cores| format!("{cores} cores")),
        word("kernel").map(|kernel| format!("kernel {kernel}")),
        word("voxgate").map(|version| format!("voxgate {version}")),
        at,
    ];
    *out += "<p class=\"about\">";
    for part in parts.into_iter().flatten() {
        let _ = write!(out, "<span>{}</span>", escape(&part));
    }
    *out += "</p>\n";
    let figure = |name: &str| environment.get(name).and_then(Value::as_f64);
    if let (Some(load), Some(cores)) = (figure("loadavg"), figure("cores"))
        && load > cores
    {
        let _ = writeln!(
            out,
            "<p class=\"warn\">Other work was running: load {load:.1} on {cores} cores before the run. Times and rates \
             are worse than this machine's own.</p>"
        );
    }
    if environment.get("debug") == Some(&Value::Bool(true)) {
        *out +=
            "<p class=\"warn\">Debug build: slower than what ships. Use a release build for figures.</p>\n";
    }
}

fn figures(out: &mut String, figures: &[Figure]) {
    if figures.is_empty() {
        return;
    }
    // One row, or two of nearly the same length; narrower pages fill theirs.
    let columns = if figures.len() <= 6 { figures.len().max(4) } else { figures.len().div_ceil(2) };
    let _ = writeln!(out, "<dl class=\"figures\" style=\"--n:{columns}\">");
    for figure in figures {
        let verdict = match figure.good {
            Some(true) => " <span class=\"verdict good\">✓ meets it</span>",
            Some(false) => " <span class=\"verdict bad\">✗ misses it</span>",
            None => "",
        };
        let _ = writeln!(
            out,
            "<div><dt>{}</dt><dd class=\"value\">{}</dd><dd class=\"unit\">{}{verdict}</dd></div>",
            escape(&figure.name),
            number(figure.value),
            escape(&figure.unit)
        );
    }
    *out += "</dl>\n";
}

fn figure(out: &mut String, chart: &Chart) {
    let _ = write!(out, "<figure><figcaption><h3>{}</h3>", escape(&chart.title));
    if !chart.note.is_empty() {
        let _ = write!(out, "<p>{}</p>", escape(&chart.note));
    }
    let _ =
        writeln!(out, "</figcaption>{}{}{}</figure>", legend(chart), svg(chart, WIDE), svg(chart, NARROW));
}

fn table(out: &mut String, table: &Table, id: &str) {
    let numeric =
        |column: usize| table.rows.iter().filter_map(|row| row.get(column)).all(|cell| is_number(cell));
    let classes: Vec<&str> =
        (0..table.head.len()).map(|column| if numeric(column) { " class=\"n\"" } else { "" }).collect();
    let _ = write!(out, "<div class=\"table\"><h3 id=\"{id}\">{}</h3>", escape(&table.title));
    if !table.note.is_empty() {
        let _ = write!(out, "<p class=\"note\">{}</p>", escape(&table.note));
    }
    let _ = write!(
        out,
        "<div class=\"scroll\" role=\"region\" aria-labelledby=\"{id}\" tabindex=\"0\"><table><thead><tr>"
    );
    for (name, class) in table.head.iter().zip(&classes) {
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", escape(name));
    }
    *out += "</tr></thead><tbody>\n";
    for row in &table.rows {
        *out += "<tr>";
        for (cell, class) in row.iter().zip(&classes) {
            let _ = write!(out, "<td{class}>{}</td>", escape(cell));
        }
        *out += "</tr>\n";
    }
    *out += "</tbody></table></div></div>\n";
}

/// Whether a cell is a number, perhaps with a unit, or a dash where there is none.
fn is_number(cell: &str) -> bool {
    let cell = cell.trim_start_matches(['-', '+', '\u{2212}', '<', '>', '≤', '≥', ' ']);
    cell.is_empty() || cell == "–" || cell.starts_with(|letter: char| letter.is_ascii_digit())
}

fn pairs(out: &mut String, title: &str, value: &Value) {
    let Value::Object(fields) = value else { return };
    let _ = write!(out, "<details><summary>{title}</summary><dl>");
    for (name, value) in fields {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(&plain(value)));
    }
    *out += "</dl></details>\n";
}

/// A value without the quotes and brackets of JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Null => "–".into(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
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

#[cfg(test)]
mod tests {
    use super::super::{Axis, Series, Span};
    use super::*;

    /// A report that has `text` in every place.
    fn report(text: &str, points: usize) -> Report {
        let axis = |log| Axis { label: text.into(), log };
        let series = |n: usize| Series {
            name: format!("{text}{n}"),
            points: (0..points).map(|x| (x as f64, ((x * 7919 + n) % 1000) as f64)).collect(),
        };
        Report {
            run: text.into(),
            environment: serde_json::json!({ "cpu": text, "debug": true }),
            options: serde_json::json!({ text: text }),
            headline: vec![Figure { name: text.into(), value: 1.5, unit: text.into(), good: Some(true) }],
            charts: vec![Chart {
                title: text.into(),
                note: text.into(),
                x: axis(false),
                y: axis(true),
                series: (0..4).map(series).collect(),
                spans: vec![Span { from: 1.0, to: 2.0, label: text.into() }],
            }],
            tables: vec![Table {
                title: text.into(),
                note: text.into(),
                head: vec![text.into()],
                rows: vec![vec![text.into()]],
            }],
            notes: vec![text.into()],
            data: Value::String(text.into()),
        }
    }

    #[test]
    fn no_text_becomes_markup() {
        let evil = r#"</script><img src=x onerror="alert('1')">&"#;
        for points in [3, 300] {
            let page = html(&[report(evil, points), report(evil, points)]);
            assert!(!page.contains("<img"), "an element got in");
            assert!(!page.contains("onerror=\""), "an attribute got in");
            assert_eq!(page.matches("</script>").count(), 1, "the data ends early");
        }
    }

    #[test]
    fn embedded_data_reads_back() {
        let page = html(&[report("a<b", 5)]);
        let (_, data) = page.split_once("id=\"data\">").unwrap();
        let reports: Vec<Report> = serde_json::from_str(data.split("</script>").next().unwrap()).unwrap();
        assert_eq!(reports[0].run, "a<b");
        assert_eq!(reports[0].charts[0].series[3].points.len(), 5);
    }

    #[test]
    fn long_runs_stay_below_the_bound() {
        let mut long = report("x", 20_000);
        long.charts = vec![long.charts[0].clone(); 5];
        long.data = Value::String("y".repeat(BYTES_MAX));
        let page = html(&[long]);
        assert!(page.len() <= BYTES_MAX, "{} bytes", page.len());
    }

    #[test]
    fn number_columns_are_found() {
        for cell in ["1", "1,234", "−3", "2.5 ms", "–", "", "> 99", "12×"] {
            assert!(is_number(cell), "{cell}");
        }
        for cell in ["script", "a1", "p50"] {
            assert!(!is_number(cell), "{cell}");
        }
    }
}
