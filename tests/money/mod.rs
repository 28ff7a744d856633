//! Money as a whole: random walks with lost answers, crashes, operators, failovers and period edges; races through two
//! gateways; answers foretold by a plain model; ledger, audit, rebuild and operators' deeds.

pub mod books;
pub mod house;
mod ledger;
mod model;
mod model_walk;
mod operators;
mod race;
mod walk;
mod walks;
