//! What the gateway itself says to a client: `Metadata`, `Error`, and how each ending closes the socket.
//!
//! Every field that the SDKs declare as required is always there, numbers are always finite.

use serde_json::{Map, Value, json};

use super::excerpt;
use crate::ending::Ending;
use crate::limits;
use crate::units::Units;

/// Who transcribes, as clients are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// A UUID that stays the same for the model.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its kind.
    pub arch: String,
}

impl Model {
    /// The `model_info` object.
    pub(super) fn info(&self) -> Value {
        json!({ "name": self.name, "version": self.version, "arch": self.arch })
    }
}

/// What `Metadata` tells at the end of a stream.
#[derive(Clone, Debug)]
pub struct MetadataFacts<'a> {
    /// The same as in the `dg-request-id` header.
    pub request_id: &'a str,
    /// SHA-256 of the admitted audio, 64 hex digits.
    pub sha256: &'a str,
    /// When the stream began, ISO 8601 in UTC.
    pub created: &'a str,
    /// Admitted audio, in seconds of one channel.
    pub duration: f64,
    /// Channels of the stream.
    pub channels: u16,
    /// Who transcribed.
    pub model: &'a Model,
    /// What the stream was charged.
    pub admitted: Units,
    /// The session that was charged.
    pub session_id: &'a str,
    /// Why the stream ends.
    pub ending: Ending,
    /// The duration that the worker claims, in seconds, if it claims one.
    pub worker_duration: Option<f64>,
}

/// The last message of a stream before the close.
pub fn metadata(facts: &MetadataFacts<'_>) -> String {
    let model = facts.model;
    let mut voxgate = json!({
        "admitted_units": facts.admitted.get(),
        "session_id": facts.session_id,
        "ending": facts.ending.word(),
    });
    if let (Some(seconds), Some(own)) = (facts.worker_duration, voxgate.as_object_mut()) {
        own.insert("worker_duration".to_owned(), json!(finite(seconds)));
    }
    json!({
        "type": "Metadata",
        "transaction_key": "deprecated",
        "request_id": facts.request_id,
        "sha256": facts.sha256,
        "created": facts.created,
        "duration": finite(facts.duration),
        "channels": facts.channels,
        "models": [model.uuid],
        "model_info": { (model.uuid.as_str()): model.info() },
        "voxgate": voxgate,
    })
    .to_string()
}

/// An `Error` message; `extras` are added as they are and never replace one of its own fields.
pub fn error(variant: &str, description: &str, message: &str, extras: Map<String, Value>) -> String {
    let mut fields = extras;
    for (name, text) in
        [("type", "Error"), ("variant", variant), ("description", description), ("message", message)]
    {
        fields.insert(name.to_owned(), json!(text));
    }
    Value::Object(fields).to_string()
}

/// The answer to text that makes no sense; repeats at most 256 characters of it.
pub fn schema_error(description: &str, offending: &str) -> String {
    error("SchemaError", description, &excerpt(offending, 256), Map::new())
}

/// A Close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// A code that may be sent: never 1005, 1006 or 1015.
    pub code: u16,
    /// A token, at most 123 bytes.
    pub reason: &'static str,
}

/// How a stream says goodbye: an `Error` unless all went well, then the Close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// `variant` and `description` of the `Error` that goes first.
    pub error: Option<(&'static str, &'static str)>,
    /// What follows.
    pub close: Close,
}

/// How each ending is told; `None` where nobody is left to tell.
pub const fn farewell(ending: Ending) -> Option<Farewell> {
    let (variant, description, code, reason) = match ending {
        Ending::ClientDone => {
            return Some(Farewell { error: None, close: Close { code: 1000, reason: "" } });
        }
        Ending::ClientGone => return None,
        Ending::ClientIdle => (
            "IDLE_TIMEOUT",
            "No audio and no KeepAlive came in time (KeepAlive counts only after the first audio).",
            1011,
            "NET-0001",
        ),
        Ending::ClientFast => {
            ("RATE_EXCEEDED", "Audio came faster than it can be taken, for too long.", 1008, "RATE-0000")
        }
        Ending::ClientSlow => {
            ("RATE_EXCEEDED", "Transcripts were not read in time; read while you send.", 1008, "RATE-0001")
        }
        Ending::ClientFault => (
            "SchemaError",
            "Too many messages made no sense; audio goes into binary messages, JSON into text.",
            1008,
            "DATA-0001",
        ),
        Ending::ChunkLarge => ("MESSAGE_TOO_LARGE", CHUNK_LARGE, 1009, CHUNK_REASON),
        Ending::AudioFault => {
            ("DATA_ERROR", "The bytes are not the audio that was announced.", 1008, "DATA-0000")
        }
        Ending::BudgetSpent => {
            ("QUOTA_EXCEEDED", "The budget for this period is used up.", 1008, "QUOTA-0000")
        }
        Ending::SessionSpent => ("QUOTA_EXCEEDED", "The cap of this session is used up.", 1008, "QUOTA-0001"),
        Ending::BudgetHeld => {
            ("QUOTA_EXCEEDED", "What is left of the budget is held by other streams.", 1008, "QUOTA-0002")
        }
        Ending::LeaseLapsed => {
            ("QUOTA_LAPSED", "The units held for this session are gone: it was ended.", 1008, "QUOTA-0003")
        }
        Ending::Revoked => ("REVOKED", "The key or the account was revoked or frozen.", 1008, "AUTH-0000"),
        Ending::StoreCorrupt => {
            ("SERVER_ERROR", "The record of this session can't be read.", 1011, "STORE-0001")
        }
        Ending::StoreBusy => {
            ("UNAVAILABLE", "Audio could not be paid for in time; please try again.", 1013, "STORE-0000")
        }
        Ending::WorkerGone => {
            ("WORKER_LOST", "No transcription worker is left; please try again.", 1011, "NET-0002")
        }
        Ending::StreamLong => {
            ("STREAM_TOO_LONG", "The stream lasted as long as one may; open another.", 1008, "TIME-0000")
        }
        Ending::Drained => ("RESTART", "The gateway is restarting; please reconnect.", 1012, "DRAIN-0000"),
        Ending::Panicked => ("SERVER_ERROR", "The gateway failed.", 1011, "INTERNAL-0000"),
    };
    Some(Farewell { error: Some((variant, description)), close: Close { code, reason } })
}

/// A number that JSON can carry; 0.0 for what is none.
pub(super) const fn finite(number: f64) -> f64 {
    if number.is_finite() { number } else { 0.0 }
}

const CHUNK_LARGE: &str = "A message was larger than 65536 bytes of audio or 16384 of text.";
const CHUNK_REASON: &str = "SIZE-0000 at most 65536 bytes of audio, 16384 of text";
const _: () = assert!(limits::CHUNK_BYTES_MAX == 65_536 && limits::TEXT_BYTES_MAX == 16_384);
