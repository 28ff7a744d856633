//! The Deepgram live dialect, `/v1/listen`: both the client's and the worker's side.
//!
//! - [`Listen`] reads the query, [`Credential`] the headers; [`Refusal`] is every answer before the upgrade.
//! - [`ClientCodec`] reads what a client sends; [`metadata`], [`error`] and [`farewell`] say what it is sent.
//! - [`relay`] reads what a worker sends and makes it safe to pass on; [`ToWorker`] is what the worker is sent.
//!
//! Only the seven message types that SDKs know ever reach a client; facts of the gateway travel as extra fields.

mod client;
mod credential;
mod listen;
mod refusal;
mod server;
mod worker;

pub use client::ClientCodec;
pub use credential::{Credential, Secret, check_origin, correlation};
pub use listen::Listen;
pub use refusal::Refusal;
pub use server::{Close, Farewell, MetadataFacts, Model, error, farewell, metadata, schema_error};
pub use worker::{FromWorker, RelayFacts, Results, ToWorker, WorkerFault, relay, worker_request};

#[cfg(test)]
mod tests;

/// Whether a name is one of ours: 1 to `most` bytes of `A-Z a-z 0-9 - _ .` and nothing else.
fn plain(name: &str, most: usize) -> bool {
    (1..=most).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// A piece of foreign text for a message: cut at `most` characters, control characters replaced.
fn excerpt(text: &str, most: usize) -> String {
    let mut piece: String = text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(most).is_some() {
        piece.push_str("...");
    }
    piece
}
