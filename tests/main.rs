//! The one integration test binary. Each file states facts about the whole program, seen from outside.

mod harness;
mod harness_facts;
mod tidy;
