//! The wire protocols, as values: bytes and text to events and back.
//!
//! Pure: no socket, no clock, no log, no identifiers of its own making. A dialect is a folder: what its clients
//! send, what they are sent, and the worker's side of it. The gateway sees only the events below.

pub mod deepgram;

use bytes::Bytes;

/// What a client's message means, whatever dialect it speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromClient {
    /// The next audio bytes; where they were cut means nothing.
    Audio(Bytes),
    /// The client is still there.
    KeepAlive,
    /// Give final words for what was sent so far.
    Finalize {
        /// Only this channel.
        channel: Option<u32>,
    },
    /// A change of settings in mid-stream: the JSON text as it came, valid JSON.
    Configure(String),
    /// No more audio comes.
    Finish,
    /// An empty frame, to be counted and ignored.
    Empty,
    /// A message that makes no sense, and why. The connection stays open.
    Fault(String),
}
