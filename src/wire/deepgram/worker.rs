//! The worker's side of the dialect: what it is asked, and its words made safe to pass on.
//!
//! A worker is believed about words and times, never about identity or money. Nothing is invented: a word without
//! times is left out of `words`, it stays in `transcript`.

use http::Uri;
use serde_json::{Map, Value, json};

use super::excerpt;
use super::server::Model;
use crate::limits;

/// What a worker's message means. The JSON texts are ready for the client.
#[derive(Clone, Debug, PartialEq)]
pub enum FromWorker {
    /// Words, provisional or final.
    Results(Results),
    /// Speech began.
    SpeechStarted(String),
    /// A pause after the last word.
    UtteranceEnd(String),
    /// The answer to `Configure`, good or bad.
    Configured(String),
    /// The worker is done. Not for the client, which gets the gateway's own.
    Metadata {
        /// Seconds of audio that the worker says it heard.
        duration: Option<f64>,
    },
    /// The worker complains; at most 256 characters of it, for the log. Not for the client.
    Error(String),
    /// A type that clients don't know. Dropped, to be counted.
    Other,
}

/// Words for one stretch of audio.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// The message for the client.
    pub json: String,
    /// The stretch will not be revised.
    pub is_final: bool,
    /// It answers a `Finalize`.
    pub from_finalize: bool,
    /// The best alternative; empty for silence.
    pub transcript: String,
    /// Where the stretch begins, in seconds of audio sent on the worker's connection.
    pub start: f64,
    /// How long it is, in seconds.
    pub duration: f64,
}

/// What the gateway knows better than its worker.
#[derive(Clone, Copy, Debug)]
pub struct RelayFacts<'a> {
    /// The stream's id; replaces the worker's.
    pub request_id: &'a str,
    /// Named where the worker doesn't name its model.
    pub model: &'a Model,
    /// Audio time left in milliseconds, to be told when it gets low.
    pub quota_left_ms: Option<u64>,
}

/// Why a worker's message, or its address, can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerFault {
    /// Larger than a client could be sent.
    #[error("the worker sent a message of more than {} bytes", limits::WORKER_TEXT_BYTES_MAX)]
    Large,
    /// Not a JSON object.
    #[error("the worker sent text that is not a JSON object: {0}")]
    NotJson(String),
    /// An object without `type`.
    #[error("the worker sent a message without `type`")]
    NoType,
    /// An address that no stream can be opened at.
    #[error("the worker address must be ws://HOST[:PORT][/PATH] or wss://..., not {0}")]
    Address(String),
}

/// Reads a worker's message and makes it what a client may get.
///
/// # Errors
/// The message is too large or not an object with a `type`.
pub fn relay(text: &str, facts: &RelayFacts<'_>) -> Result<FromWorker, WorkerFault> {
    if text.len() > limits::WORKER_TEXT_BYTES_MAX {
        return Err(WorkerFault::Large);
    }
    let mut message: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| WorkerFault::NotJson(error.to_string()))?;
    message.remove("voxgate");
    let kind = message.get("type").and_then(Value::as_str).ok_or(WorkerFault::NoType)?.to_owned();
    Ok(match kind.as_str() {
        "Results" => FromWorker::Results(results(message, facts)?),
        "SpeechStarted" => FromWorker::SpeechStarted(vad(message, "timestamp")?),
        "UtteranceEnd" => FromWorker::UtteranceEnd(vad(message, "last_word_end")?),
        "ConfigureSuccess" => FromWorker::Configured(configured(message, facts, "keyterms", json!([]))?),
        "ConfigureFailure" => {
            message.entry("code").or_insert_with(|| json!("CONFIGURE_INTERNAL_ERROR"));
            FromWorker::Configured(configured(message, facts, "description", json!(""))?)
        }
        "Metadata" => FromWorker::Metadata { duration: message.get("duration").and_then(time) },
        "Error" => FromWorker::Error(complaint(&message)),
        _ => FromWorker::Other,
    })
}

/// What a worker is sent as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToWorker {
    /// Final words for what was sent so far.
    Finalize {
        /// Only this channel.
        channel: Option<u32>,
    },
    /// The stream is held, not dead.
    KeepAlive,
    /// No more audio comes.
    CloseStream,
    /// The client's own settings, passed on as they came.
    Configure(String),
}

impl ToWorker {
    /// The text of the frame.
    pub fn text(self) -> String {
        match self {
            Self::Finalize { channel: None } => r#"{"type":"Finalize"}"#.to_owned(),
            Self::Finalize { channel: Some(channel) } => {
                json!({ "type": "Finalize", "channel": channel }).to_string()
            }
            Self::KeepAlive => r#"{"type":"KeepAlive"}"#.to_owned(),
            Self::CloseStream => r#"{"type":"CloseStream"}"#.to_owned(),
            Self::Configure(json) => json,
        }
    }
}

/// Where to open a worker's stream: its address, `/v1/listen` if that has no path, and the client's query. Where
/// the address has a query of its own, its parameters win.
///
/// # Errors
/// The address is no WebSocket address.
pub fn worker_request(address: &str, query: &str) -> Result<Uri, WorkerFault> {
    let fault = || WorkerFault::Address(without_secrets(address));
    let base: Uri = address.parse().map_err(|_| fault())?;
    let (Some("ws" | "wss"), Some(authority)) = (base.scheme_str(), base.authority()) else {
        return Err(fault());
    };
    let own: Vec<_> = form_urlencoded::parse(base.query().unwrap_or_default().as_bytes()).collect();
    let theirs =
        form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| !own.iter().any(|(n, _)| n == name));
    let merged =
        form_urlencoded::Serializer::new(String::new()).extend_pairs(&own).extend_pairs(theirs).finish();
    let path = if base.path() == "/" { "/v1/listen" } else { base.path() };
    let mark = if merged.is_empty() { "" } else { "?" };
    Uri::builder()
        .scheme(base.scheme_str().unwrap_or_default())
        .authority(authority.clone())
        .path_and_query(format!("{path}{mark}{merged}"))
        .build()
        .map_err(|_| fault())
}

/// An address for an error text: no user, no password, no query.
fn without_secrets(address: &str) -> String {
    let place = address.split('?').next().unwrap_or_default();
    excerpt(place.rsplit('@').next().unwrap_or_default(), 128)
}

fn results(mut message: Map<String, Value>, facts: &RelayFacts<'_>) -> Result<Results, WorkerFault> {
    default_channels(&mut message, "channel_index");
    let start = default_time(&mut message, "start");
    let duration = default_time(&mut message, "duration");
    let transcript = alternatives(object(&mut message, "channel"));
    identify(object(&mut message, "metadata"), facts);
    if let Some(left) = facts.quota_left_ms {
        message.insert("voxgate".to_owned(), json!({ "quota_left_ms": left }));
    }
    let flag = |name| message.get(name).and_then(Value::as_bool).unwrap_or(false);
    let (is_final, from_finalize) = (flag("is_final"), flag("from_finalize"));
    Ok(Results { json: written(message)?, is_final, from_finalize, transcript, start, duration })
}

/// Makes `alternatives` legal; gives the first transcript.
fn alternatives(channel: &mut Map<String, Value>) -> String {
    let list = list(channel, "alternatives");
    list.retain(Value::is_object);
    if list.is_empty() {
        list.push(json!({}));
    }
    for alternative in list.iter_mut().filter_map(Value::as_object_mut) {
        default_text(alternative, "transcript", "");
        default_number(alternative, "confidence");
        let words = self::list(alternative, "words");
        words.retain_mut(|word| word.as_object_mut().is_some_and(timed_word));
    }
    let first = list.first().and_then(|best| best.get("transcript")).and_then(Value::as_str);
    first.unwrap_or_default().to_owned()
}

/// Whether this is a word with times; gives it a confidence if it has none.
fn timed_word(word: &mut Map<String, Value>) -> bool {
    default_number(word, "confidence");
    let timed = |name| word.get(name).is_some_and(|value: &Value| time(value).is_some());
    word.get("word").is_some_and(Value::is_string) && timed("start") && timed("end")
}

/// Makes `metadata` say whose stream it is and which model speaks.
fn identify(metadata: &mut Map<String, Value>, facts: &RelayFacts<'_>) {
    metadata.insert("request_id".to_owned(), json!(facts.request_id));
    default_text(metadata, "model_uuid", &facts.model.uuid);
    let info = object(metadata, "model_info");
    default_text(info, "name", &facts.model.name);
    default_text(info, "version", &facts.model.version);
    default_text(info, "arch", &facts.model.arch);
}

fn vad(mut message: Map<String, Value>, at: &str) -> Result<String, WorkerFault> {
    default_channels(&mut message, "channel");
    default_time(&mut message, at);
    written(message)
}

fn configured(
    mut message: Map<String, Value>,
    facts: &RelayFacts<'_>,
    field: &str,
    default: Value,
) -> Result<String, WorkerFault> {
    message.insert("request_id".to_owned(), json!(facts.request_id));
    message.entry(field).or_insert(default);
    written(message)
}

fn complaint(message: &Map<String, Value>) -> String {
    let part = |name| message.get(name).and_then(Value::as_str).unwrap_or_default();
    excerpt(&format!("{} {} {}", part("variant"), part("description"), part("message")), 256)
}

/// The text, unless the added fields made it larger than SDKs accept.
fn written(message: Map<String, Value>) -> Result<String, WorkerFault> {
    let json = Value::Object(message).to_string();
    if json.len() > limits::WORKER_TEXT_BYTES_MAX { Err(WorkerFault::Large) } else { Ok(json) }
}

/// A time that may be passed on: a number from 0 up.
fn time(value: &Value) -> Option<f64> {
    value.as_f64().filter(|seconds| seconds.is_finite() && *seconds >= 0.0)
}

fn default_time(fields: &mut Map<String, Value>, name: &str) -> f64 {
    let seconds = fields.get(name).and_then(time);
    if seconds.is_none() {
        fields.insert(name.to_owned(), json!(0.0));
    }
    seconds.unwrap_or(0.0)
}

fn default_number(fields: &mut Map<String, Value>, name: &str) {
    if !fields.get(name).is_some_and(Value::is_number) {
        fields.insert(name.to_owned(), json!(0.0));
    }
}

fn default_text(fields: &mut Map<String, Value>, name: &str, default: &str) {
    if !fields.get(name).is_some_and(Value::is_string) {
        fields.insert(name.to_owned(), json!(default));
    }
}

/// `[a, n]`: channel a of n.
fn default_channels(fields: &mut Map<String, Value>, name: &str) {
    let pair = fields.get(name).and_then(Value::as_array);
    if !pair.is_some_and(|pair| pair.len() == 2 && pair.iter().all(Value::is_u64)) {
        fields.insert(name.to_owned(), json!([0, 1]));
    }
}

/// The object of that name, made if it is missing or no object.
fn object<'a>(fields: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let value = fields.entry(name).or_insert(Value::Null);
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("it was just made an object")
}

/// The array of that name, made if it is missing or no array.
fn list<'a>(fields: &'a mut Map<String, Value>, name: &str) -> &'a mut Vec<Value> {
    let value = fields.entry(name).or_insert(Value::Null);
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut().expect("it was just made an array")
}
