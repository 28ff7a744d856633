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
