//! File, environment and flags, laid over each other as raw values that remember where they came from.
//!
//! Only names and shapes are judged here: unknown keys, numbers where a unit is due. What values mean is
//! the business of `check`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{Fault, Origin};
use super::keys::{self, KEYS, Kind, MODELS, WORKERS};

/// A value as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Raw {
    One(String),
    Many(Vec<String>),
}

/// A value and where it came from.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) raw: Raw,
    pub(super) origin: Origin,
}

/// Everything that was said, by full name (`limits.idle`, `workers[0].url`, `models.nova-3`).
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) entries: BTreeMap<String, Entry>,
    /// Where each `[[workers]]` begins.
    pub(super) workers: BTreeMap<usize, Origin>,
}

/// Workers that one file may name.
const WORKERS_MAX: usize = 256;

impl Settings {
    /// Adds what a file says.
    pub(super) fn add_file(&mut self, path: &Path, text: &str, faults: &mut Vec<Fault>) {
        let page = Page { path: Arc::new(path.to_owned()), text };
        let (document, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            faults.push(page.fault(
                at,
                "",
                format!("not valid TOML: {}", error.message().replace('\n', "; ")),
            ));
        }
        for (name, value) in document.get_ref() {
            self.add_section(&page, name, value, faults);
        }
    }

    fn add_section(
        &mut self,
        page: &Page<'_>,
        name: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        faults: &mut Vec<Fault>,
    ) {
        let at = name.span().start;
        let section: &str = name.get_ref();
        let known = section == MODELS || KEYS.iter().any(|key| section_of(key.name) == section);
        if !known {
            let near = keys::nearest(section, KEYS.iter().map(|key| section_of(key.name)).chain([MODELS]));
            faults.push(page.fault(at, section, unknown("section", near)));
            return;
        }
        match (section, value.get_ref()) {
            (WORKERS, DeValue::Array(workers)) => self.add_workers(page, workers, faults),
            (WORKERS, _) => {
                faults.push(page.fault(at, section, "write [[workers]], once for each".to_owned()))
            }
            (_, DeValue::Table(table)) => self.add_table(page, section, table, faults),
            _ => faults.push(page.fault(at, section, format!("a section; write [{section}]"))),
        }
    }

    fn add_workers(&mut self, page: &Page<'_>, workers: &[Spanned<DeValue<'_>>], faults: &mut Vec<Fault>) {
        for (index, worker) in workers.iter().enumerate() {
            let at = worker.span().start;
            if index >= WORKERS_MAX {
                faults.push(page.fault(at, WORKERS, format!("more than {WORKERS_MAX} workers")));
                return;
            }
            if let DeValue::Table(table) = worker.get_ref() {
                self.workers.insert(index, page.origin(at));
                self.add_table(page, &format!("{WORKERS}[{index}]"), table, faults);
            } else {
                faults.push(page.fault(at, WORKERS, "write [[workers]], once for each".to_owned()));
            }
        }
    }

    fn add_table(&mut self, page: &Page<'_>, section: &str, table: &DeTable<'_>, faults: &mut Vec<Fault>) {
        for (name, value) in table {
            let full = format!("{section}.{}", name.get_ref());
            let origin = page.origin(name.span().start);
            let outcome = match kind_of(&full) {
                Ok(kind) => raw_of(value.get_ref(), kind),
                Err(near) => Err(unknown("key", near)),
            };
            match outcome {
                Ok(raw) => _ = self.entries.insert(full, Entry { raw, origin }),
                Err(reason) => faults.push(Fault { origin, key: full, reason }),
            }
        }
    }

    /// Adds every `VOXGATE_SECTION__KEY`; `VOXGATE_WORKERS__0__URL` is the first worker's. Other names are
    /// left alone.
    pub(super) fn add_environment(
        &mut self,
        variables: impl Iterator<Item = (String, String)>,
        faults: &mut Vec<Fault>,
    ) {
        for (variable, value) in variables {
            let Some(full) = name_of(&variable) else {
                continue;
            };
            let origin = Origin::Environment(variable);
            match kind_of(&full) {
                Ok(kind) => self.add_text(full, &value, kind, origin),
                Err(near) => faults.push(Fault { origin, key: full, reason: unknown("key", near) }),
            }
        }
    }

    /// Adds command line options, which win over all else. A flag that clap itself took from the
    /// environment is already there and keeps that origin.
    pub(super) fn add_flags(&mut self, flags: &[(&'static str, String)]) {
        for (name, value) in flags {
            let kind = keys::find(name).map_or(Kind::Text, |key| key.kind);
            let same = self.entries.get(*name).is_some_and(|entry| {
                matches!(entry.origin, Origin::Environment(_)) && entry.raw == split(value, kind)
            });
            if !same {
                self.add_text((*name).to_owned(), value, kind, Origin::Flag);
            }
        }
    }

    /// Puts these workers in place of all that file and environment named; none: changes nothing.
    pub(super) fn replace_workers(&mut self, urls: &[String]) {
        if urls.is_empty() {
            return;
        }
        self.workers.clear();
        self.entries.retain(|full, _| worker_index(full).is_none());
        for (index, url) in urls.iter().enumerate() {
            self.add_text(format!("{WORKERS}[{index}].url"), url, Kind::Text, Origin::Flag);
        }
    }

    fn add_text(&mut self, full: String, value: &str, kind: Kind, origin: Origin) {
        if let Some(index) = worker_index(&full) {
            self.workers.entry(index).or_insert_with(|| origin.clone());
        }
        self.entries.insert(full, Entry { raw: split(value, kind), origin });
    }
}

/// One file, for its line numbers.
struct Page<'a> {
    path: Arc<std::path::PathBuf>,
    text: &'a str,
}

impl Page<'_> {
    fn origin(&self, at: usize) -> Origin {
        let before = self.text.as_bytes().iter().take(at);
        Origin::File(Arc::clone(&self.path), 1 + before.filter(|byte| **byte == b'\n').count())
    }

    fn fault(&self, at: usize, key: &str, reason: String) -> Fault {
        Fault { origin: self.origin(at), key: key.to_owned(), reason }
    }
}

fn section_of(name: &'static str) -> &'static str {
    let section = name.split_once('.').map_or(name, |(section, _)| section);
    section.trim_end_matches("[]")
}

/// `workers[3].url` to 3.
fn worker_index(full: &str) -> Option<usize> {
    full.strip_prefix("workers[")?.split_once(']')?.0.parse().ok()
}

/// `workers[3].url` to `workers[].url`; other names stay.
pub(super) fn general(full: &str) -> String {
    match worker_index(full) {
        Some(index) => full.replacen(&format!("[{index}]"), "[]", 1),
        None => full.to_owned(),
    }
}

/// The kind of a setting by its full name, or the nearest valid name in the same spelling.
fn kind_of(full: &str) -> Result<Kind, Option<String>> {
    if full.strip_prefix("models.").is_some_and(|model| !model.is_empty()) {
        return Ok(Kind::Whole);
    }
    let wanted = general(full);
    if let Some(key) = keys::find(&wanted) {
        return Ok(key.kind);
    }
    let near = keys::nearest(&wanted, KEYS.iter().map(|key| key.name));
    Err(near.map(|name| match worker_index(full) {
        Some(index) => name.replacen("[]", &format!("[{index}]"), 1),
        None => name.to_owned(),
    }))
}

fn unknown(what: &str, near: Option<impl std::fmt::Display>) -> String {
    match near {
        Some(near) => format!("unknown {what}; did you mean `{near}`?"),
        None => format!("unknown {what}; `voxgate config show` lists all"),
    }
}

/// `VOXGATE_LIMITS__IDLE` to `limits.idle`, `VOXGATE_WORKERS__0__URL` to `workers[0].url`.
fn name_of(variable: &str) -> Option<String> {
    let (section, rest) = variable.strip_prefix("VOXGATE_")?.split_once("__")?;
    let (section, rest) = (section.to_lowercase(), rest.to_lowercase());
    let indexed = rest.split_once("__").filter(|_| section == WORKERS);
    match indexed.map(|(index, key)| (index.parse::<usize>(), key)) {
        Some((Ok(index), key)) if index < WORKERS_MAX => Some(format!("{section}[{index}].{key}")),
        Some(_) | None => Some(format!("{section}.{rest}")),
    }
}

fn split(value: &str, kind: Kind) -> Raw {
    match kind {
        Kind::List | Kind::Secrets => {
            let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
            Raw::Many(parts.map(str::to_owned).collect())
        }
        Kind::Text | Kind::Secret | Kind::Whole | Kind::Time | Kind::Size => Raw::One(value.to_owned()),
    }
}

/// A TOML value as the kind wants it, or what it should be.
fn raw_of(value: &DeValue<'_>, kind: Kind) -> Result<Raw, String> {
    match (kind, value) {
        (Kind::Text | Kind::Secret | Kind::Time | Kind::Size, DeValue::String(text)) => {
            Ok(Raw::One(text.to_string()))
        }
        (Kind::Whole, DeValue::Integer(number)) if number.radix() == 10 => {
            Ok(Raw::One(number.as_str().replace('_', "")))
        }
        (Kind::List | Kind::Secrets, DeValue::Array(items)) => items
            .iter()
            .map(|item| item.get_ref().as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()
            .map(Raw::Many)
            .ok_or_else(|| format!("must be {}", kind.form())),
        (Kind::Time | Kind::Size, DeValue::Integer(_) | DeValue::Float(_)) => {
            Err(format!("a number without a unit; must be {}", kind.form()))
        }
        _ => Err(format!("is a TOML {}, must be {}", value.type_str(), kind.form())),
    }
}
