//! What is wrong with a configuration, said so that it can be mended. A secret's value is never repeated.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// A line of the file, counted from 1.
    File(Arc<PathBuf>, usize),
    /// An environment variable.
    Environment(String),
    /// A command line option.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, 0) => write!(f, "{}", path.display()),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag => f.write_str("command line"),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where it stands.
    pub origin: Origin,
    /// The setting, such as `limits.idle`; empty when the file as a whole is meant.
    pub key: String,
    /// What is wrong, and what is allowed instead.
    pub reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            write!(f, "{}: {}", self.origin, self.reason)
        } else {
            write!(f, "{}: {}: {}", self.origin, self.key, self.reason)
        }
    }
}

/// Everything that is wrong, one per line, in the order of the file. Never empty.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}
