//! File, environment and flags become one checked [`Config`], or a list of all that is wrong.
//!
//! Flags win over `VOXGATE_SECTION__KEY`, that over the file, that over the defaults. After
//! [`Config::load`] no code reads an environment variable, a default or a raw text. A configuration may
//! tighten a bound of [`crate::limits`], never lift it; secrets never show in `Debug` or [`Config::show`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

mod check;
mod fault;
mod keys;
mod reader;
mod settings;
mod store;
mod tokens;
mod values;

pub use fault::{Fault, Faults, Origin};
pub use values::{Secret, StoreUrl, mask_url, parse_size, parse_time, show_size, show_time};

use settings::Settings;

use crate::quota::store::redis::Options;

use crate::telemetry::Log;
use crate::worker::WorkerSpec;

/// Everything the program may be told, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The public listener.
    pub listen: Listen,
    /// The operators' listener.
    pub admin: Admin,
    /// Where the books are.
    pub store: Store,
    /// How money is cut up.
    pub quota: QuotaRules,
    /// What short-lived tokens are signed with, the first of them, and verified with; none: the store keeps one.
    pub tokens: Vec<Secret>,
    /// Who transcribes; may be empty, then no stream can run.
    pub workers: Vec<WorkerSpec>,
    /// Bounds that the operator drew.
    pub limits: Limits,
    /// What is logged, and how.
    pub log: Log,
    /// Units per second of audio by model name; a model that is not in it costs 1000.
    pub models: BTreeMap<String, u32>,
    shown: BTreeMap<String, (String, Origin)>,
}

/// The public listener.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Port 0 asks the system for a free one.
    pub address: SocketAddr,
    /// Origins of foreign web pages that may connect; `*` means any.
    pub origins: Vec<String>,
}

/// The operators' listener.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Port 0 asks the system for a free one. Loopback, unless there is a token.
    pub address: SocketAddr,
    /// What `Authorization: Bearer` must hold; `None`: one is made at the start.
    pub token: Option<Secret>,
}

/// Where the books are.
#[derive(Clone, Debug)]
pub struct Store {
    /// Which store.
    pub url: StoreUrl,
    /// What the URL can't hold; of use to Redis and Valkey only.
    pub options: Options,
    /// What every key begins with, 1 to 32 bytes.
    pub prefix: String,
}

/// How money is cut up.
#[derive(Clone, Debug)]
pub struct QuotaRules {
    /// Default of new accounts: one session reserves at most 1/share of what is free. 1 to 1024.
    pub share: u32,
    /// Audio reserved at the start of a stream.
    pub envelope_first: Duration,
    /// Most audio reserved at once; not shorter than `envelope_first`.
    pub envelope_longest: Duration,
    /// Least audio that must be left for a stream to open; not longer than `envelope_first`.
    pub floor: Duration,
    /// Units by which a settle may exceed its lease.
    pub tolerance: u64,
    /// How long books outlive their period.
    pub retention: Duration,
}

/// Bounds that the operator drew, each within those of [`crate::limits`].
#[derive(Clone, Debug)]
pub struct Limits {
    /// Live streams of this gateway.
    pub streams_max: u32,
    /// Live streams from one client address.
    pub per_address: u32,
    /// Audio held unpaid for all streams together, in bytes.
    pub held_bytes: usize,
    /// Silence that ends a stream.
    pub idle: Duration,
    /// How long one stream may last.
    pub session_longest: Duration,
    /// How long live streams may go on once the program is asked to stop.
    pub drain: Duration,
}

/// Where a configuration comes from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file, where one was named.
    pub file: Option<PathBuf>,
    /// The environment; only names like `VOXGATE_SECTION__KEY` count.
    pub environment: Vec<(String, String)>,
    /// Settings given as options, by name.
    pub flags: Vec<(&'static str, String)>,
    /// Addresses of workers given as options; any stand in place of all others.
    pub workers: Vec<String>,
}

impl Config {
    /// Reads the sources and gives the configuration, or every fault of all of them at once.
    ///
    /// # Errors
    /// All faults found, ordered by line.
    pub fn load(sources: &Sources) -> Result<Self, Faults> {
        let mut faults = Vec::new();
        let mut settings = Settings::default();
        if let Some(path) = &sources.file {
            match std::fs::read_to_string(path) {
                Ok(text) => settings.add_file(path, &text, &mut faults),
                Err(error) => faults.push(Fault {
                    origin: Origin::File(path.clone().into(), 0),
                    key: String::new(),
                    reason: format!("can't be read: {error}"),
                }),
            }
        }
        settings.add_environment(sources.environment.iter().cloned(), &mut faults);
        settings.add_flags(&sources.flags);
        settings.replace_workers(&sources.workers);
        check::check(&settings, faults).map_err(Faults)
    }

    /// Every setting with what it means, its value and where that came from, as TOML; secrets masked.
    pub fn show(&self) -> String {
        let mut page = String::new();
        for (name, (value, origin)) in &self.shown {
            if let Some(key) = keys::find(&settings::general(name)) {
                _ = writeln!(page, "# {}.", key.help);
            }
            let line = format!("{name} = {value}");
            _ = writeln!(page, "{line:<60} # {origin}");
        }
        page
    }
}

#[cfg(test)]
mod tests;
