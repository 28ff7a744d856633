//! Each script's contract, fact by fact, on every store: in process, Redis, and what else this run can use.

mod admit;
mod bench;
mod operators;
mod reserve;
mod servers;
mod settle;
