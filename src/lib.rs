//! Voxgate: a WebSocket gateway that pays for every audio chunk before it reaches a transcription worker.
//!
//! # The path of one chunk
//! 1. [`gateway`] waits for the client's next message; no money is in flight.
//! 2. [`wire`] makes it an audio chunk, a control message or a protocol fault.
//! 3. [`audio`] prices it; [`quota`] takes the units with `lua/admit.lua` on one key, through its store.
//! 4. Granted: counted in the lease's tally and queued, bounded, on its [`worker`] link.
//! 5. The worker's words come back through [`wire`] to the client.
//!
//! # The rooms
//! Arrows point one way: `main` to [`gateway`] and [`admin`]; those to [`quota`] and [`worker`]; those to
//! [`wire`], [`audio`] and the leaves ([`units`], [`ending`], [`limits`], [`telemetry`]). Quota and worker
//! never meet. `tests/tidy.rs` fails a back arrow.

pub mod admin;
pub mod audio;
pub mod config;
pub mod ending;
pub mod gateway;
pub mod limits;
pub mod quota;
pub mod telemetry;
pub mod units;
pub mod wire;
pub mod worker;
