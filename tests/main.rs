//! The one integration test binary. Each file states facts about the whole program, seen from outside.
#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]
#![allow(unreachable_pub, reason = "one binary: `pub` here means: for the other tests")]

mod admin;
mod bounds;
mod crash;
mod deepgram;
mod differential;
mod disk;
mod export;
mod faults;
mod harness;
mod harness_facts;
mod load;
mod load_live;
mod money;
mod operation;
mod probe;
mod scripts;
mod shared;
mod survive;
mod tidy;
mod tokens;
mod topology;
mod words;
