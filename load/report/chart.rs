//! A chart as SVG that follows the page's colours: axes, grid, lines with marks, shaded spans, and a word on hover.
//!
//! Colours come from the page's style by class, so one drawing serves light and dark. Long lines are thinned to what
//! the pixels can show, their peaks kept.

use std::fmt::Write as _;

use super::page::escape;
use super::scale::{Scale, number, tick};
use super::{Chart, Series};

/// How large a drawing is, in pixels.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The class that the page shows or hides it by.
    pub class: &'static str,
    pub width: f64,
    pub height: f64,
    /// Columns that answer the pointer, at most.
    pub columns: usize,
}

/// The drawing for a page of usual width.
pub(super) const WIDE: Place = Place { class: "wide", width: 560.0, height: 320.0, columns: 80 };
/// The drawing for a telephone.
pub(super) const NARROW: Place = Place { class: "narrow", width: 344.0, height: 260.0, columns: 40 };

/// What a chart is drawn by.
struct Drawing<'a> {
    chart: &'a Chart,
    place: Place,
    x: Scale,
    y: Scale,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    /// Whether each point has a mark and each line its last value.
    marked: bool,
    /// Whether that value has its line's name before it.
    named: bool,
    /// Every x that was measured, in order.
    columns: Vec<f64>,
}

/// The chart, drawn for one place.
pub(super) fn svg(chart: &Chart, place: Place) -> String {
    let drawing = Drawing::new(chart, place);
    let mut out = String::new();
    let label = escape(&format!("{}: {} by {}", chart.title, chart.y.label, chart.x.label));
    let Place { class, width, height, .. } = place;
    let _ = write!(
        out,
        r#"<svg class="{class}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{label}">"#
    );
    drawing.spans(&mut out);
    drawing.axes(&mut out);
    for (n, series) in chart.series.iter().enumerate() {
        drawing.line(&mut out, n, series);
    }
    if drawing.marked {
        drawing.ends(&mut out);
    }
    drawing.hover(&mut out);
    out + "</svg>"
}

/// The names of the lines, with how each is drawn. None for a single line.
pub(super) fn legend(chart: &Chart) -> String {
    if chart.series.len() < 2 {
        return String::new();
    }
    let marked = marked(chart);
    let mut out = String::from(r#"<ul class="legend">"#);
    for (n, series) in chart.series.iter().enumerate() {
        let class = class(n);
        let mark = if marked { mark(n, 12.0, 6.0) } else { String::new() };
        let _ = write!(
            out,
            r#"<li><svg width="24" height="12" aria-hidden="true" class="{class}"><path class="line" d="M0 6H24"/>{mark}</svg>{}</li>"#,
            escape(&series.name)
        );
    }
    out + "</ul>"
}

impl<'a> Drawing<'a> {
    fn new(chart: &'a Chart, place: Place) -> Self {
        let all = |pick: fn(&(f64, f64)) -> f64| -> Vec<f64> {
            chart.series.iter().flat_map(|series| series.points.iter().map(pick)).collect()
        };
        let (xs, ys) = (all(|point| point.0), all(|point| point.1));
        let marked = marked(chart);
        let (top, bottom) = (26.0, place.height - 40.0);
        let y = Scale::new(&chart.y, &ys, (bottom, top), true);
        let words = y.ticks(&[], TICK_ROOM).into_iter().map(|value| letters(&tick(value)));
        let left = words.fold(16.0, f64::max) + 10.0;
        // Names beside the ends of lines, where all of them are short; the legend has them anyway.
        let named =
            place.width > 400.0 && chart.series.iter().all(|series| series.name.chars().count() <= 14);
        let ends = chart.series.iter().map(|series| 1.12 * letters(&end_word(series, named)));
        let right = if marked { ends.fold(0.0, f64::max) + 14.0 } else { 12.0 };
        let right = place.width - right.clamp(12.0, place.width / 3.0);
        let mut columns: Vec<f64> = xs.iter().copied().filter(|x| x.is_finite()).collect();
        columns.sort_by(f64::total_cmp);
        columns.dedup();
        let spans = chart.spans.iter().flat_map(|span| [span.from, span.to]);
        let xs: Vec<f64> = if marked { xs } else { xs.iter().copied().chain(spans).collect() };
        let inset = if marked { 6.0 } else { 0.0 };
        let x = Scale::new(&chart.x, &xs, (left + inset, right - inset), false);
        Self { chart, place, x, y, left, right, top, bottom, marked, named, columns }
    }

    fn spans(&self, out: &mut String) {
        let mut free = f64::NEG_INFINITY;
        for span in &self.chart.spans {
            let (from, to) = (self.x.at(span.from), self.x.at(span.to));
            let (width, height) = ((to - from).max(1.0), self.bottom - self.top);
            let label = escape(&span.label);
            let _ = write!(
                out,
                r#"<rect class="span" x="{from:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}"><title>{label}</title></rect>"#,
                self.top
            );
            // A word that would run into the one before or out of the picture is left to the pointer.
            let at = from + 3.0;
            if at >= free && at + letters(&span.label) <= self.place.width {
                let _ = write!(
                    out,
                    r#"<text class="said" x="{at:.1}" y="{:.1}">{label}</text>"#,
                    self.top + 12.0
                );
                free = at + letters(&span.label) + 6.0;
            }
        }
    }

    fn axes(&self, out: &mut String) {
        let (left, right, bottom) = (self.left, self.right, self.bottom);
        for value in self.y.ticks(&[], TICK_ROOM) {
            let y = self.y.at(value);
            let _ = write!(
                out,
                r#"<path class="grid" d="M{left:.1} {y:.1}H{right:.1}"/><text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
                left - 7.0,
                y + 4.0,
                tick(value)
            );
        }
        for value in self.x.ticks(&self.columns, 40.0) {
            let x = self.x.at(value);
            let _ = write!(
                out,
                r#"<path class="tick" d="M{x:.1} {bottom:.1}v5"/><text x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                bottom + 18.0,
                tick(value)
            );
        }
        let _ = write!(
            out,
            r#"<path class="axis" d="M{left:.1} {bottom:.1}H{right:.1}"/><text class="label" x="2" y="12">{}</text><text class="label" x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            escape(&axis_word(&self.chart.y)),
            f64::midpoint(left, right),
            self.place.height - 5.0,
            escape(&axis_word(&self.chart.x)),
        );
    }

    fn line(&self, out: &mut String, n: usize, series: &Series) {
        let points = thin(&series.points, self.place.columns * 3);
        let mut path = String::new();
        let mut drawn = false;
        for (x, y) in &points {
            if !x.is_finite() || !y.is_finite() {
                drawn = false;
                continue;
            }
            let _ =
                write!(path, "{}{:.1} {:.1}", if drawn { 'L' } else { 'M' }, self.x.at(*x), self.y.at(*y));
            drawn = true;
        }
        let class = class(n);
        let _ = write!(out, r#"<g class="{class}"><path class="line" d="{path}"/>"#);
        if self.marked {
            for (x, y) in points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
                *out += &mark(n, self.x.at(*x), self.y.at(*y));
            }
        }
        *out += "</g>";
    }

    /// Each line's last value beside its end, moved apart where they would touch.
    fn ends(&self, out: &mut String) {
        let mut ends: Vec<(usize, &Series, f64)> = Vec::new();
        for (n, series) in self.chart.series.iter().enumerate() {
            if let Some((_, y)) = last(series) {
                ends.push((n, series, self.y.at(y)));
            }
        }
        ends.sort_by(|a, b| a.2.total_cmp(&b.2));
        let mut free = f64::NEG_INFINITY;
        for end in &mut ends {
            end.2 = end.2.max(free);
            free = end.2 + END_ROOM;
        }
        // Pushed below the axis: pulled up again from there.
        let mut room = self.bottom + 2.0;
        for end in ends.iter_mut().rev() {
            end.2 = end.2.min(room);
            room = end.2 - END_ROOM;
        }
        for (n, series, y) in ends {
            let (class, word) = (class(n), escape(&end_word(series, self.named)));
            let (x, y) = (self.right + 6.0, y + 4.0);
            let _ = write!(out, r#"<text class="end {class}" x="{x:.1}" y="{y:.1}">{word}</text>"#);
        }
    }

    /// Columns that tell all values at one x when pointed at.
    fn hover(&self, out: &mut String) {
        let every = self.columns.len().div_ceil(self.place.columns).max(1);
        let columns: Vec<f64> = self.columns.iter().copied().step_by(every).collect();
        let place = |n: usize| columns.get(n).map(|x| self.x.at(*x));
        for (n, value) in columns.iter().enumerate() {
            let x = self.x.at(*value);
            let before =
                n.checked_sub(1).and_then(place).map_or(self.left, |before| f64::midpoint(before, x));
            let after = place(n + 1).map_or(self.right, |after| f64::midpoint(x, after));
            let mut words = format!("{} {}", self.chart.x.label, number(*value));
            for series in &self.chart.series {
                if let Some((_, y)) = series.points.iter().find(|point| point.0 == *value) {
                    let _ = write!(words, "\n{}: {}", series.name, number(*y));
                }
            }
            let _ = write!(
                out,
                r#"<g class="at"><rect x="{before:.1}" y="{:.1}" width="{:.1}" height="{:.1}"/><path d="M{x:.1} {:.1}V{:.1}"/><title>{}</title></g>"#,
                self.top,
                (after - before).max(0.5),
                self.bottom - self.top,
                self.top,
                self.bottom,
                escape(&words)
            );
        }
    }
}

/// Few points: each one is shown.
fn marked(chart: &Chart) -> bool {
    chart.series.iter().all(|series| series.points.len() <= 24)
}

fn class(n: usize) -> String {
    format!("s{}", n % 8)
}

/// A mark whose form is its line's own, so that colour is not needed to tell lines apart.
fn mark(n: usize, x: f64, y: f64) -> String {
    let form = match n % 4 {
        0 => format!("M{:.1} {y:.1}a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0", x - 3.6),
        1 => format!("M{:.1} {:.1}h6.6v6.6h-6.6z", x - 3.3, y - 3.3),
        2 => format!("M{x:.1} {:.1}l4.4 7.6h-8.8z", y - 4.8),
        _ => format!("M{x:.1} {:.1}l4.6 4.6l-4.6 4.6l-4.6 -4.6z", y - 4.6),
    };
    format!(r#"<path class="mark" d="{form}"/>"#)
}

fn last(series: &Series) -> Option<(f64, f64)> {
    series.points.iter().rev().copied().find(|(x, y)| x.is_finite() && y.is_finite())
}

fn end_word(series: &Series, named: bool) -> String {
    let value = last(series).map_or_else(String::new, |(_, y)| number(y));
    if named { format!("{} {value}", series.name) } else { value }
}

fn axis_word(axis: &super::Axis) -> String {
    if axis.log { format!("{} (log)", axis.label) } else { axis.label.clone() }
}

/// About how wide a text is at the charts' size of letters.
fn letters(text: &str) -> f64 {
    text.chars().count() as f64 * 6.7
}

/// At most two points for each of `most` stretches: the lowest and the highest, in their order. Gaps stay.
fn thin(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if points.len() <= 2 * most {
        return points.to_vec();
    }
    let mut thinned = Vec::new();
    for stretch in points.chunks(points.len().div_ceil(most.max(1))) {
        let finite = || stretch.iter().enumerate().filter(|(_, point)| point.1.is_finite());
        let low = finite().min_by(|a, b| a.1.1.total_cmp(&b.1.1));
        let high = finite().max_by(|a, b| a.1.1.total_cmp(&b.1.1));
        if let Some(gap) = stretch.iter().find(|point| !point.1.is_finite()) {
            thinned.push(*gap);
        }
        let (Some(low), Some(high)) = (low, high) else { continue };
        let (first, second) = if low.0 <= high.0 { (low, high) } else { (high, low) };
        thinned.push(*first.1);
        if first.0 != second.0 {
            thinned.push(*second.1);
        }
    }
    thinned
}

/// Pixels between the words of two ticks on the y axis, and between two ends of lines.
const TICK_ROOM: f64 = 30.0;
const END_ROOM: f64 = 14.0;

#[cfg(test)]
mod tests {
    use super::super::Axis;
    use super::*;

    fn chart(series: Vec<Series>) -> Chart {
        let axis = |label: &str| Axis { label: label.into(), log: false };
        Chart {
            title: "t".into(),
            note: String::new(),
            x: axis("x"),
            y: axis("y"),
            series,
            spans: Vec::new(),
        }
    }

    #[test]
    fn a_peak_survives_thinning() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|n| (f64::from(n), 1.0)).collect();
        points[54_321].1 = 99.0;
        let thinned = thin(&points, 200);
        assert!(thinned.len() <= 400, "{}", thinned.len());
        assert!(thinned.contains(&(54_321.0, 99.0)));
    }

    #[test]
    fn a_gap_breaks_the_line() {
        let points = vec![(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 2.0), (4.0, 1.0)];
        let drawn = svg(&chart(vec![Series { name: "a".into(), points }]), WIDE);
        let (_, line) = drawn.split_once(r#"class="line" d=""#).unwrap();
        let line = line.split('"').next().unwrap();
        assert_eq!(line.matches('M').count(), 2, "{line}");
        assert!(!drawn.contains("NaN"), "{drawn}");
    }

    #[test]
    fn equal_ends_are_moved_apart() {
        let series = |name: &str| Series { name: name.into(), points: vec![(1.0, 0.0), (8.0, 0.0)] };
        let drawn = svg(&chart(vec![series("a"), series("b"), series("c")]), WIDE);
        let mut places: Vec<f64> = drawn
            .split(r#"<text class="end"#)
            .skip(1)
            .map(|end| end.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        places.sort_by(f64::total_cmp);
        assert_eq!(places.len(), 3);
        assert!(places.windows(2).all(|two| two[1] - two[0] >= END_ROOM - 0.2), "{places:?}");
        assert!(places[2] <= WIDE.height - 30.0, "{places:?}");
    }
}
