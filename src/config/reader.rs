//! Takes single values out of the settings, typed and within bounds; notes every fault and goes on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::fault::{Fault, Origin};
use super::keys;
use super::settings::{Entry, Raw, Settings, general};
use super::values::{parse_size, parse_time, show_size, show_time};

/// One pass over the settings.
pub(super) struct Reader<'a> {
    settings: &'a Settings,
    pub(super) faults: Vec<Fault>,
    /// What holds, for `config show`.
    pub(super) shown: BTreeMap<String, (String, Origin)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(settings: &'a Settings, faults: Vec<Fault>) -> Self {
        Self { settings, faults, shown: BTreeMap::new() }
    }

    pub(super) fn is_said(&self, name: &str) -> bool {
        self.settings.entries.contains_key(name)
    }

    pub(super) fn origin(&self, name: &str) -> Origin {
        self.settings.entries.get(name).map_or(Origin::Default, |entry| entry.origin.clone())
    }

    pub(super) fn fault(&mut self, name: &str, reason: impl Into<String>) {
        let origin = self.origin(name);
        self.faults.push(Fault { origin, key: name.to_owned(), reason: reason.into() });
    }

    /// The text, or the default.
    pub(super) fn text(&mut self, name: &str) -> String {
        let text = self.raw_text(name);
        self.show(name, format!("{text:?}"));
        text
    }

    /// The text where one was said or is the default; never shown.
    pub(super) fn hidden(&mut self, name: &str) -> Option<String> {
        let text = self.raw_text(name);
        self.show(name, if text.is_empty() { "\"\"" } else { "\"***\"" }.to_owned());
        Some(text).filter(|text| !text.is_empty())
    }

    /// A text that `parse` takes; `allowed` tells people what that is. The default parses.
    pub(super) fn parsed<T>(
        &mut self,
        name: &str,
        allowed: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.text(name);
        let value = parse(&text);
        if value.is_none() {
            self.fault(name, format!("{text:?} is not allowed; must be {allowed}"));
            return parse(default_of(name));
        }
        value
    }

    /// One word of a few.
    pub(super) fn choice(&mut self, name: &str, words: &[&'static str]) -> &'static str {
        let text = self.text(name);
        if let Some(word) = words.iter().find(|word| **word == text) {
            return word;
        }
        let near = keys::nearest(&text, words.iter().copied());
        let hint = near.map_or(String::new(), |near| format!("; did you mean {near:?}?"));
        self.fault(name, format!("{text:?} is not allowed; must be one of {}{hint}", words.join(", ")));
        words.first().copied().unwrap_or_default()
    }

    /// An address with its port.
    pub(super) fn address(&mut self, name: &str) -> SocketAddr {
        let allowed = "an IP address and a port, such as 127.0.0.1:8080 or [::1]:8080";
        self.parsed(name, allowed, |text| text.replace("localhost:", "127.0.0.1:").parse().ok())
            .unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    pub(super) fn list(&mut self, name: &str) -> Vec<String> {
        let list = self.raw_list(name);
        self.show(name, format!("{list:?}"));
        list
    }

    /// A list of which only the length is ever shown.
    pub(super) fn hidden_list(&mut self, name: &str) -> Vec<String> {
        let list = self.raw_list(name);
        self.show(name, format!("{:?}", vec!["***"; list.len()]));
        list
    }

    pub(super) fn whole(&mut self, name: &str, range: RangeInclusive<u64>) -> u64 {
        let text = self.raw_text(name);
        let bounds = format!("a whole number from {} to {}", range.start(), range.end());
        let value = text.parse().ok();
        self.bounded(name, (text, value), &range, bounds)
    }

    /// As [`Reader::whole`], for numbers that fit 32 bits.
    pub(super) fn whole32(&mut self, name: &str, range: RangeInclusive<u32>) -> u32 {
        let wide = self.whole(name, u64::from(*range.start())..=u64::from(*range.end()));
        u32::try_from(wide).unwrap_or(*range.start())
    }

    pub(super) fn time(&mut self, name: &str, range: RangeInclusive<Duration>) -> Duration {
        let text = self.raw_text(name);
        let bounds =
            format!("a time with its unit from {} to {}", show_time(*range.start()), show_time(*range.end()));
        let value = parse_time(&text).ok();
        self.bounded(name, (format!("{text:?}"), value), &range, bounds)
    }

    pub(super) fn size(&mut self, name: &str, range: RangeInclusive<usize>) -> usize {
        let text = self.raw_text(name);
        let bounds =
            format!("a size with its unit from {} to {}", show_size(*range.start()), show_size(*range.end()));
        let value = parse_size(&text).ok();
        self.bounded(name, (format!("{text:?}"), value), &range, bounds)
    }

    fn bounded<T: PartialOrd + Copy>(
        &mut self,
        name: &str,
        (text, value): (String, Option<T>),
        range: &RangeInclusive<T>,
        bounds: String,
    ) -> T {
        self.show(name, text.clone());
        match value.filter(|value| range.contains(value)) {
            Some(value) => value,
            None => {
                self.fault(name, format!("{text} is not allowed; must be {bounds}"));
                *range.start()
            }
        }
    }

    fn raw_list(&self, name: &str) -> Vec<String> {
        match self.settings.entries.get(name) {
            Some(Entry { raw: Raw::Many(list), .. }) => list.clone(),
            Some(Entry { raw: Raw::One(text), .. }) => vec![text.clone()],
            None => Vec::new(),
        }
    }

    fn raw_text(&self, name: &str) -> String {
        match self.settings.entries.get(name) {
            Some(Entry { raw: Raw::One(text), .. }) => text.clone(),
            Some(Entry { raw: Raw::Many(list), .. }) => list.join(","),
            None => default_of(name).to_owned(),
        }
    }

    fn show(&mut self, name: &str, value: String) {
        let origin = self.origin(name);
        self.shown.insert(name.to_owned(), (value, origin));
    }
}

fn default_of(name: &str) -> &'static str {
    keys::find(&general(name)).map_or("", |key| key.default)
}
