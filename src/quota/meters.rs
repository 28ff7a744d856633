//! What the chunk path measures: handles that are looked up once, since a look-up costs more than the measurement.

use metrics::{Counter, Histogram, counter, histogram};

use super::script;
use super::store::Script;

/// Handles of one money room.
pub(super) struct Meters {
    /// One admission, refills and repeats not counted.
    pub(super) admit: Histogram,
    pub(super) admitted: Counter,
    pub(super) handed_over: Counter,
    pub(super) wasted: Counter,
    admit_script: Histogram,
}

impl Meters {
    pub(super) fn new() -> Self {
        let fate = |word| counter!("voxgate_units_total", "fate" => word);
        Self {
            admit: histogram!("voxgate_admit_seconds"),
            admitted: fate("admitted"),
            handed_over: fate("handed_over"),
            wasted: fate("wasted"),
            admit_script: of(script::ADMIT.name),
        }
    }

    /// The times of one script's complete calls.
    pub(super) fn script(&self, script: &Script) -> Histogram {
        if script.name == script::ADMIT.name { self.admit_script.clone() } else { of(script.name) }
    }
}

fn of(name: &'static str) -> Histogram {
    histogram!("voxgate_script_seconds", "script" => name)
}
