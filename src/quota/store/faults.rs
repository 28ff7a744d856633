//! A line to the store that loses answers on purpose: for tests, simulations and demonstrations only.
//!
//! Each call is decided by a seeded generator: delivered, cut before it arrives, cut after it ran, or kept back
//! and delivered later, when its caller has long given up. Nothing here is reachable from the configuration.

use std::sync::{Mutex, PoisonError};

use super::Script;

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is delivered and answered.
    None,
    /// It never arrives.
    Before,
    /// It runs, the answer is lost.
    After,
    /// It runs at some later time, unanswered.
    Later,
}

/// How many of 1000 calls suffer each fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// [`Fault::Before`]
    pub before: u32,
    /// [`Fault::After`]
    pub after: u32,
    /// [`Fault::Later`]
    pub later: u32,
}

/// One call kept back.
pub struct Late {
    script: Script,
    keys: Vec<String>,
    args: Vec<String>,
}

impl Late {
    /// What to run.
    pub const fn script(&self) -> &Script {
        &self.script
    }

    /// Its keys.
    pub fn keys(&self) -> Vec<&str> {
        self.keys.iter().map(String::as_str).collect()
    }

    /// Its arguments.
    pub fn args(&self) -> Vec<&str> {
        self.args.iter().map(String::as_str).collect()
    }
}

/// The faulty line.
pub struct Faults {
    dice: Mutex<(fastrand::Rng, Rates)>,
    kept: Mutex<Vec<Late>>,
    /// A damaged script that runs instead of the one of its name: proof that a check can fail.
    damaged: Option<Script>,
}

impl Faults {
    /// A line whose faults follow from `seed`.
    pub fn new(seed: u64, rates: Rates) -> Self {
        Self {
            dice: Mutex::new((fastrand::Rng::with_seed(seed), rates)),
            kept: Mutex::default(),
            damaged: None,
        }
    }

    /// The same line to a store whose script of this name is another one.
    #[must_use]
    pub fn with_damaged(mut self, script: Script) -> Self {
        self.damaged = Some(script);
        self
    }

    pub(super) fn damaged(&self, name: &str) -> Option<&Script> {
        self.damaged.as_ref().filter(|script| script.name == name)
    }

    /// Changes the rates; `Rates::default()` makes the line good.
    pub fn set(&self, rates: Rates) {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner).1 = rates;
    }

    /// Decides about the next call. Scripts that only read are never disturbed.
    pub(super) fn next(&self, script: &str) -> Fault {
        if script == "audit" {
            return Fault::None;
        }
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        let Rates { before, after, later } = dice.1;
        match dice.0.u32(0..1000) {
            roll if roll < before => Fault::Before,
            roll if roll < before + after => Fault::After,
            roll if roll < before + after + later => Fault::Later,
            _ => Fault::None,
        }
    }

    pub(super) fn keep(&self, script: &Script, keys: &[&str], args: &[&str]) {
        let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let late =
            Late { script: Script::new(script.name, script.text.clone()), keys: own(keys), args: own(args) };
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(late);
    }

    pub(super) fn take(&self) -> Vec<Late> {
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
