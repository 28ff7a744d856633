//! What scripts cost, measured and counted: probes, what servers say of themselves, readiness, alerts, and what a script
//! does to everybody else.

mod alerts;
mod blocked;
mod cache;
mod halves;
mod largest;
mod plain;
mod red;
mod shards;
mod silent;
mod table;

/// Scripts that decide nothing: one lays out what the others are probed on, one asks what our user may run.
const NO_VERBS: [&str; 2] = ["probe", "permissions"];
