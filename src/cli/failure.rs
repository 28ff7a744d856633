//! How a command fails: what is told on stderr, and the exit code that scripts go by.

use std::fmt::Display;

use voxgate::config::Faults;
use voxgate::quota::store::StoreError;

/// It ran and failed.
pub(crate) const FAILED: u8 = 1;
/// The server refused the stream at the handshake.
pub(crate) const REFUSED: u8 = 3;
/// The stream was ended because a budget or cap is used up.
pub(crate) const QUOTA: u8 = 4;
/// The stream was ended for another reason.
pub(crate) const ENDED: u8 = 5;
/// Something that is needed can't be reached.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The configuration is wrong.
pub(crate) const CONFIG: u8 = 78;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The process's exit code.
    pub(crate) code: u8,
    text: String,
}

impl Failure {
    /// A failure told by one text: what is wrong, then what to do.
    pub(crate) fn new(code: u8, text: impl Display) -> Self {
        Self { code, text: text.to_string() }
    }

    pub(crate) fn failed(text: impl Display) -> Self {
        Self::new(FAILED, text)
    }

    pub(crate) fn unavailable(text: impl Display) -> Self {
        Self::new(UNAVAILABLE, text)
    }

    /// What is told.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Says it on stderr, each line in front of the program's name.
    pub(crate) fn tell(&self) {
        for line in self.text.lines() {
            eprintln!("voxgate: {line}");
        }
    }
}

impl From<Faults> for Failure {
    fn from(faults: Faults) -> Self {
        Self::new(CONFIG, faults)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::unavailable(format!("{error}; `voxgate check` tells more"))
    }
}
