//! Every setting there is: its name, kind, default and what it means. Nothing is read or checked here.

/// What a setting's value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text.
    Text,
    /// A text that is never shown.
    Secret,
    /// A list of texts; in the environment, separated by commas.
    List,
    /// A list of texts that is never shown.
    Secrets,
    /// A whole number.
    Whole,
    /// A time with its unit, such as `"30s"`.
    Time,
    /// A size with its unit, such as `"64KiB"`.
    Size,
}

impl Kind {
    /// How to write such a value.
    pub(super) const fn form(self) -> &'static str {
        match self {
            Self::Text | Self::Secret => "a text in quotes",
            Self::List | Self::Secrets => "a list of texts, such as [\"a\", \"b\"]",
            Self::Whole => "a whole number",
            Self::Time => "a time with its unit in quotes, such as \"250ms\" or \"30s\"",
            Self::Size => "a size with its unit in quotes, such as \"64KiB\"",
        }
    }
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    /// Section and key; `workers[].url` stands for the key of each worker.
    pub(super) name: &'static str,
    /// What its value looks like.
    pub(super) kind: Kind,
    /// What holds when nothing is said; empty: nothing.
    pub(super) default: &'static str,
    /// What it means, in one line.
    pub(super) help: &'static str,
}

const fn key(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Key {
    Key { name, kind, default, help }
}

/// The section whose keys are model names chosen by the operator.
pub(super) const MODELS: &str = "models";
/// The section that may be there many times.
pub(super) const WORKERS: &str = "workers";

/// Every setting, in the order of the sample file. `models.<name>` is not in it: its keys are free.
pub(super) const KEYS: &[Key] = &[
    key("listen.address", Kind::Text, "127.0.0.1:8080", "Where clients and browsers connect"),
    key("listen.origins", Kind::List, "", "Origins of web pages that may connect, besides this server's own"),
    key("admin.address", Kind::Text, "127.0.0.1:9090", "Where health, metrics and the admin API answer"),
    key("admin.token", Kind::Secret, "", "Bearer token of the admin API; rather use token_file"),
    key("admin.token_file", Kind::Text, "", "File that holds the bearer token of the admin API"),
    key(
        "store.url",
        Kind::Text,
        "embedded",
        "Where the books are kept: embedded, embedded:DIR, redis://…, redis+sentinel://… or redis+cluster://…",
    ),
    key("store.password_file", Kind::Text, "", "File that holds the store's password, instead of the URL"),
    key(
        "store.ca_file",
        Kind::Text,
        "",
        "Certificates (PEM) that sign the store's own, for rediss://; none: the machine's",
    ),
    key("store.cert_file", Kind::Text, "", "Our certificate chain (PEM), where the store asks for one"),
    key("store.key_file", Kind::Text, "", "Its private key (PEM)"),
    key(
        "store.wait_replicas",
        Kind::Whole,
        "0",
        "Replicas that must have a reserve, settle or top-up before it counts",
    ),
    key("store.prefix", Kind::Text, "vox:", "What every key in the store begins with"),
    key(
        "quota.share",
        Kind::Whole,
        "8",
        "One session reserves at most 1/share of what is free (new accounts)",
    ),
    key("quota.envelope_first", Kind::Time, "10s", "Audio reserved when a stream opens"),
    key("quota.envelope_longest", Kind::Time, "5m", "Most audio reserved at once"),
    key("quota.floor", Kind::Time, "250ms", "Least audio that must be left for a stream to open"),
    key("quota.tolerance", Kind::Whole, "0", "Units by which a settle may exceed what was reserved"),
    key("quota.retention", Kind::Time, "35days", "How long books of a period are kept after its end"),
    key(
        "tokens.secrets",
        Kind::Secrets,
        "",
        "Secrets of short-lived tokens: the first signs, all verify; none: the store keeps one",
    ),
    key("tokens.secrets_file", Kind::Text, "", "File that holds them, one on each line"),
    key("workers[].name", Kind::Text, "", "Name in logs and metrics; default worker-1, worker-2, ..."),
    key("workers[].url", Kind::Text, "", "Its WebSocket address, such as ws://127.0.0.1:7000/v1/listen"),
    key("workers[].dialect", Kind::Text, "deepgram", "The protocol it speaks"),
    key("workers[].models", Kind::List, "", "Models it serves; none named: all"),
    key("workers[].streams_max", Kind::Whole, "16", "Streams it takes at once"),
    key("workers[].weight", Kind::Whole, "1", "Its share of new streams against the others'"),
    key("workers[].token", Kind::Secret, "", "Token sent to it; rather use token_file"),
    key("workers[].token_file", Kind::Text, "", "File that holds the token sent to it"),
    key("limits.streams_max", Kind::Whole, "4096", "Connections to this gateway at once"),
    key(
        "limits.per_address",
        Kind::Whole,
        "256",
        "Connections from one client address at once; raise it behind a proxy",
    ),
    key("limits.held_bytes", Kind::Size, "256MiB", "Audio held unpaid for all streams together"),
    key("limits.idle", Kind::Time, "10s", "Silence, without audio or KeepAlive, that ends a stream"),
    key("limits.session_longest", Kind::Time, "4h", "How long one stream may last"),
    key("limits.drain", Kind::Time, "30s", "How long live streams may go on after SIGTERM"),
    key("log.format", Kind::Text, "auto", "auto (pretty on a terminal, else json), json or pretty"),
    key(
        "log.level",
        Kind::Text,
        "info",
        "error, warn, info, debug, trace, or filters like voxgate=debug,info",
    ),
];

/// The setting of that name (`workers[].url` form).
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The valid name that looks most like `name`, if any is close.
pub(super) fn nearest<'a>(name: &str, valid: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    valid
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 5)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::{KEYS, Kind, find, nearest};

    #[test]
    fn every_key_has_help() {
        for key in KEYS {
            assert!(!key.help.is_empty(), "{}", key.name);
            assert!(
                !matches!(key.kind, Kind::Secret | Kind::Secrets) || key.default.is_empty(),
                "{}",
                key.name
            );
        }
        assert!(find("listen.address").is_some());
    }

    #[test]
    fn typos_find_their_key() {
        let names = || KEYS.iter().map(|key| key.name);
        assert_eq!(nearest("limits.idel", names()), Some("limits.idle"));
        assert_eq!(nearest("workers[].modles", names()), Some("workers[].models"));
        assert_eq!(nearest("weather.today", names()), None);
    }
}
