//! What an error reply of Redis or Valkey means, by its first word: the one table; README's shows the same rows.
//!
//! None of the calls in the table ran: the servers refuse each of them before a script's first command, as our scripts begin with
//! `#!lua` and touch every key's type before they write. So each may be repeated at will, `admit` too. Source of the
//! words: Redis 7.0 and 7.4, Valkey 9.1, asked one by one.

use super::StoreError;

/// What follows from an error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Hold what waits; the same again after a pause with jitter.
    Hold,
    /// Load the script, then the same again at once.
    Load,
    /// Look for the server that serves this key, then the same again after a pause.
    Find,
    /// As [`Then::Hold`], and somebody has to mend the server: readiness is red, with an alert of its own.
    Mend,
    /// The configuration is wrong: the stream ends, readiness is red.
    Deny,
    /// A key holds what no script of ours writes: the stream ends, its lease goes to quarantine when it is reaped.
    Quarantine,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// The reply's first word.
    pub word: &'static str,
    /// The metric label (`kind`).
    pub label: &'static str,
    /// What the gateway does.
    pub then: Then,
}

const fn code(word: &'static str, label: &'static str, then: Then) -> Code {
    Code { word, label, then }
}

/// Every error reply that has a meaning of its own. Anything else is [`StoreError::Odd`].
pub const CODES: &[Code] = &[
    code("BUSY", "busy", Then::Hold),
    code("NOSCRIPT", "noscript", Then::Load),
    code("LOADING", "loading", Then::Find),
    code("CLUSTERDOWN", "clusterdown", Then::Find),
    code("TRYAGAIN", "tryagain", Then::Find),
    code("MASTERDOWN", "masterdown", Then::Find),
    code("READONLY", "readonly", Then::Find),
    code("MOVED", "moved", Then::Find),
    code("ASK", "ask", Then::Find),
    code("OOM", "oom", Then::Mend),
    code("MISCONF", "misconf", Then::Mend),
    code("NOREPLICAS", "noreplicas", Then::Mend),
    code("NOAUTH", "noauth", Then::Deny),
    code("NOPERM", "noperm", Then::Deny),
    code("WRONGPASS", "wrongpass", Then::Deny),
    code("WRONGTYPE", "corrupt", Then::Quarantine),
];

/// Texts without a word of their own that say that a value is no integer.
const NO_INTEGER: [&str; 2] = ["ERR value is not an integer", "ERR hash value is not an integer"];

/// Texts without a word of their own that say that our user may not run a command, or reach a key, inside a script. What
/// the script did before stays: hence [`crate::quota::Quota::missing_permissions`], before the first stream.
const NO_PERMISSION: [&str; 2] = ["ERR The user executing the script can't ", "ERR ACL failure in script"];

/// The row of a reply's first word.
pub fn find(text: &str) -> Option<&'static Code> {
    let word = text.split([' ', '\r', '\n']).next().unwrap_or_default();
    CODES.iter().find(|code| code.word == word)
}

/// The error that a reply's error text means; the first word decides, never the rest, but for texts that have no
/// word of their own.
pub fn error(text: &str) -> StoreError {
    let own = || text.to_owned();
    match find(text).map(|code| code.then) {
        Some(Then::Hold) => StoreError::Busy,
        Some(Then::Load | Then::Find) => StoreError::Away(own()),
        Some(Then::Mend) => StoreError::Refuses(own()),
        Some(Then::Deny) => StoreError::Denied(own()),
        Some(Then::Quarantine) => StoreError::Corrupt(own()),
        None if NO_PERMISSION.iter().any(|none| text.starts_with(none)) => StoreError::Denied(own()),
        None if NO_INTEGER.iter().any(|none| text.starts_with(none)) => StoreError::Corrupt(own()),
        None => StoreError::Odd(own()),
    }
}

/// Whether a script may have done a part of its work: it was denied a command inside. The start asks for all of them
/// ([`crate::quota::Quota::missing_permissions`]), so this takes somebody who changes the user later.
pub fn stopped_half_way(error: &StoreError) -> bool {
    let denied = |text: &String| NO_PERMISSION.iter().any(|none| text.starts_with(none));
    matches!(error, StoreError::Denied(text) if denied(text))
}

/// The metric label of a text that an error carries.
pub fn label(text: &str, otherwise: &'static str) -> &'static str {
    find(text).map_or(otherwise, |code| code.label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_word_has_one_row_and_label() {
        let words: BTreeSet<_> = CODES.iter().map(|code| code.word).collect();
        let labels: BTreeSet<_> = CODES.iter().map(|code| code.label).collect();
        assert_eq!((words.len(), labels.len()), (CODES.len(), CODES.len()));
        for code in CODES {
            assert_eq!(error(&format!("{} and more", code.word)).word(), code.label);
        }
    }

    /// What servers really answered, to the letter.
    #[test]
    fn first_word_decides_the_error() {
        for (text, word) in [
            ("BUSY Valkey is busy running a script.", "busy"),
            ("LOADING Redis is loading the dataset in memory", "loading"),
            ("MOVED 3999 127.0.0.1:6381", "moved"),
            ("READONLY You can't write against a read only replica.", "readonly"),
            ("NOSCRIPT No matching script.", "noscript"),
            ("OOM command not allowed when used memory > 'maxmemory'. script: 12", "oom"),
            ("NOREPLICAS Not enough good replicas to write.", "noreplicas"),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value script: on @user_script:3.",
                "corrupt",
            ),
            ("ERR value is not an integer or out of range script: on @user_script:3.", "corrupt"),
            ("ERR hash value is not an integer", "corrupt"),
            ("NOAUTH Authentication required.", "noauth"),
            ("WRONGPASS invalid username-password pair", "wrongpass"),
            ("ERR The user executing the script can't run this command or subcommand script: 12", "denied"),
            ("ERR ACL failure in script: User v has no permissions to run the 'decrby' command", "denied"),
            ("ERR increment or decrement would overflow", "odd"),
            ("CROSSSLOT Keys in request don't hash to the same slot", "odd"),
            ("BUSYKEY Target key name already exists.", "odd"),
            ("", "odd"),
        ] {
            assert_eq!(error(text).word(), word, "{text}");
        }
    }
}
