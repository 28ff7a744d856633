//! From settings to a checked [`Config`]: every bound, every relation between settings. Reads token files;
//! opens no socket.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use crate::limits;
use crate::telemetry::{Log, LogFormat};
use crate::worker::{self, WorkerSpec, WorkerUrl};

use super::fault::{Fault, Origin};
use super::reader::Reader;
use super::settings::{Raw, Settings};
use super::values::Secret;
use super::{Admin, Config, Limits, Listen, QuotaRules, store, tokens};

/// Hardest bounds of settings that `limits` leaves open.
const STREAMS_MAX: u32 = 65_536;
const WORKER_STREAMS_MAX: u32 = 65_536;
const SESSION_LONGEST: Duration = Duration::from_secs(24 * 3600);
const DRAIN_LONGEST: Duration = Duration::from_secs(3600);
const HELD_BYTES_MAX: usize = 16 * 1024 * 1024 * 1024;
const ENVELOPE_LONGEST: Duration = Duration::from_secs(3600);
const RETENTION_LONGEST: Duration = Duration::from_secs(400 * 24 * 3600);
const TOLERANCE_MAX: u64 = 60_000;
const UNITS_PER_SECOND_MAX: u64 = 1_000_000;
const TOKEN_BYTES: std::ops::RangeInclusive<usize> = 16..=512;

/// Reads everything and gives the configuration, or all that is wrong with it.
pub(super) fn check(settings: &Settings, faults: Vec<Fault>) -> Result<Config, Vec<Fault>> {
    let mut reader = Reader::new(settings, faults);
    let config = Config {
        listen: listen(&mut reader),
        admin: admin(&mut reader),
        store: store::store(&mut reader),
        quota: quota(&mut reader),
        tokens: tokens::secrets(&mut reader),
        workers: workers(&mut reader, settings),
        limits: limits_of(&mut reader),
        log: log(&mut reader),
        models: models(&mut reader, settings),
        shown: BTreeMap::new(),
    };
    same_address(&mut reader, config.listen.address, config.admin.address);
    let Reader { mut faults, shown, .. } = reader;
    if faults.is_empty() {
        return Ok(Config { shown, ..config });
    }
    faults.sort_by_key(|fault| match &fault.origin {
        Origin::File(_, line) => (0, *line),
        Origin::Environment(_) => (1, 0),
        Origin::Flag => (2, 0),
        Origin::Default => (3, 0),
    });
    Err(faults)
}

fn listen(reader: &mut Reader<'_>) -> Listen {
    let address = reader.address("listen.address");
    let origins = reader.list("listen.origins");
    for origin in &origins {
        if origin != "*" && !is_origin(origin) {
            let allowed = "such as \"https://app.example\", without a path; or \"*\" for any";
            reader.fault("listen.origins", format!("{origin:?} is not an origin; must be {allowed}"));
        }
    }
    Listen { address, origins }
}

fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else {
        return false;
    };
    matches!(scheme, "http" | "https") && !host.is_empty() && !host.contains(['/', '?', '#', '@', ' '])
}

fn admin(reader: &mut Reader<'_>) -> Admin {
    let address = reader.address("admin.address");
    let token = token(reader, "admin");
    if token.is_none() && !address.ip().is_loopback() {
        let reason = format!(
            "{address} can be reached from other machines, so a token is needed; set admin.token_file, or \
             listen on 127.0.0.1"
        );
        reader.fault("admin.address", reason);
    }
    Admin { address, token }
}

/// `<section>.token`, or what `<section>.token_file` holds.
fn token(reader: &mut Reader<'_>, section: &str) -> Option<Secret> {
    let (direct_name, file_name) = (format!("{section}.token"), format!("{section}.token_file"));
    let direct = reader.hidden(&direct_name);
    let path = reader.text(&file_name);
    let (name, token) = match (direct, path.as_str()) {
        (None, "") => return None,
        (Some(token), "") => (direct_name, token),
        (Some(_), _) => {
            reader.fault(&file_name, format!("give either this or {direct_name}, not both"));
            return None;
        }
        (None, path) => match std::fs::read_to_string(path) {
            Ok(text) => (file_name, text.trim_end().to_owned()),
            Err(error) => {
                reader.fault(&file_name, format!("{path:?} can't be read: {error}"));
                return None;
            }
        },
    };
    let plain = token.bytes().all(|b| b.is_ascii_graphic());
    if !plain || !TOKEN_BYTES.contains(&token.len()) {
        let (least, most) = (TOKEN_BYTES.start(), TOKEN_BYTES.end());
        reader
            .fault(&name, format!("a token must be {least} to {most} printable ASCII characters, no spaces"));
        return None;
    }
    Some(Secret::new(token))
}

fn quota(reader: &mut Reader<'_>) -> QuotaRules {
    let second = Duration::from_secs(1);
    let floor = reader.time("quota.floor", Duration::from_millis(1)..=Duration::from_secs(60));
    let rules = QuotaRules {
        share: reader.whole32("quota.share", 1..=1024),
        envelope_first: reader.time("quota.envelope_first", second..=ENVELOPE_LONGEST),
        envelope_longest: reader.time("quota.envelope_longest", second..=ENVELOPE_LONGEST),
        floor,
        tolerance: reader.whole("quota.tolerance", 0..=TOLERANCE_MAX),
        retention: reader.time("quota.retention", Duration::from_secs(3600)..=RETENTION_LONGEST),
    };
    if rules.envelope_longest < rules.envelope_first {
        reader.fault("quota.envelope_longest", "must not be shorter than quota.envelope_first");
    }
    if rules.floor > rules.envelope_first {
        reader.fault("quota.floor", "must not be longer than quota.envelope_first");
    }
    rules
}

fn workers(reader: &mut Reader<'_>, settings: &Settings) -> Vec<WorkerSpec> {
    let mut names = BTreeSet::new();
    let mut workers = Vec::new();
    for (index, origin) in &settings.workers {
        let section = format!("workers[{index}]");
        let url = format!("{section}.url");
        if !reader.is_said(&url) {
            let reason = "missing; such as url = \"ws://127.0.0.1:7000/v1/listen\"".to_owned();
            reader.faults.push(Fault { origin: origin.clone(), key: url, reason });
        }
        let Some(worker) = worker(reader, &section, *index) else {
            continue;
        };
        if !names.insert(worker.name.clone()) {
            reader.fault(&format!("{section}.name"), format!("{:?} is another worker's name", worker.name));
        }
        workers.push(worker);
    }
    workers
}

/// The worker of one section; `None` where its address is no address, which is noted.
fn worker(reader: &mut Reader<'_>, section: &str, index: usize) -> Option<WorkerSpec> {
    let key = |name: &str| format!("{section}.{name}");
    let mut name = format!("worker-{}", index + 1);
    if reader.is_said(&key("name")) {
        let allowed = "1 to 64 of A-Z a-z 0-9 - _ .";
        name = reader
            .parsed(&key("name"), allowed, |text| is_name(text).then(|| text.to_owned()))
            .unwrap_or_default();
    }
    let text = reader.text(&key("url"));
    let url = WorkerUrl::parse(&text);
    if let (Err(reason), false) = (&url, text.is_empty()) {
        reader.fault(&key("url"), format!("{reason}; such as \"ws://127.0.0.1:7000/v1/listen\""));
    }
    reader.choice(&key("dialect"), &["deepgram"]);
    let models = reader.list(&key("models"));
    let streams_max = reader.whole32(&key("streams_max"), 1..=WORKER_STREAMS_MAX);
    let weight = reader.whole32(&key("weight"), 1..=1000);
    let token = token(reader, section).map(|token| worker::Secret::new(token.expose()));
    Some(WorkerSpec { name, url: url.ok()?, models, streams_max, weight, token })
}

fn is_name(text: &str) -> bool {
    (1..=limits::NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn limits_of(reader: &mut Reader<'_>) -> Limits {
    let second = Duration::from_secs(1);
    let limits = Limits {
        streams_max: reader.whole32("limits.streams_max", 1..=STREAMS_MAX),
        per_address: reader.whole32("limits.per_address", 1..=STREAMS_MAX),
        held_bytes: reader.size("limits.held_bytes", limits::HOLD_BYTES_MAX..=HELD_BYTES_MAX),
        idle: reader.time("limits.idle", second..=limits::CLIENT_IDLE),
        session_longest: reader.time("limits.session_longest", second..=SESSION_LONGEST),
        drain: reader.time("limits.drain", Duration::ZERO..=DRAIN_LONGEST),
    };
    if reader.is_said("limits.per_address") && limits.per_address > limits.streams_max {
        reader.fault("limits.per_address", "must not be more than limits.streams_max");
    }
    limits
}

fn log(reader: &mut Reader<'_>) -> Log {
    let format = match reader.choice("log.format", &["auto", "json", "pretty"]) {
        "json" => LogFormat::Json,
        "pretty" => LogFormat::Pretty,
        _ => LogFormat::Auto,
    };
    let allowed = "a level (error, warn, info, debug, trace) or filters like \"voxgate=debug,info\"";
    let level = reader.parsed("log.level", allowed, |text| {
        crate::telemetry::filter(text).is_some().then(|| text.to_owned())
    });
    Log { format, level: level.unwrap_or_default() }
}

fn models(reader: &mut Reader<'_>, settings: &Settings) -> BTreeMap<String, u32> {
    let mut models = BTreeMap::new();
    for (full, entry) in &settings.entries {
        let Some(model) = full.strip_prefix("models.") else {
            continue;
        };
        if !is_name(model) {
            reader.fault(full, "a model's name must be 1 to 64 of A-Z a-z 0-9 - _ .");
        }
        if let Raw::One(_) = &entry.raw {
            let most = u32::try_from(UNITS_PER_SECOND_MAX).unwrap_or(u32::MAX);
            models.insert(model.to_owned(), reader.whole32(full, 1..=most));
        }
    }
    models
}

fn same_address(reader: &mut Reader<'_>, public: SocketAddr, admin: SocketAddr) {
    let wild = public.ip().is_unspecified() || admin.ip().is_unspecified();
    if public.port() != 0 && public.port() == admin.port() && (wild || public.ip() == admin.ip()) {
        reader.fault("admin.address", "is the public address too; give the admin API a port of its own");
    }
}
