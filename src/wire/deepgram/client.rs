//! What a client sends on an open stream, as events. Knows one thing of the past: whether JSON ever came.

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::excerpt;
use crate::wire::FromClient;

/// Reads one client's frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientCodec {
    spoke_json: bool,
}

impl ClientCodec {
    /// A text frame; its size is the socket's to bound ([`crate::limits::TEXT_BYTES_MAX`]).
    ///
    /// Text that is no JSON object with a known `type` is a [`FromClient::Fault`], never a reason to close.
    pub fn text(&mut self, text: &str) -> FromClient {
        let Some(message) = Message::read(text) else {
            self.spoke_json |= serde_json::from_str::<IgnoredAny>(text).is_ok();
            return FromClient::Fault(format!("this is not a JSON object with a `type`; {HELP}"));
        };
        self.spoke_json = true;
        match message.kind.as_str() {
            "KeepAlive" => FromClient::KeepAlive,
            "Finalize" => FromClient::Finalize { channel: message.channel },
            "CloseStream" => FromClient::Finish,
            "Configure" => FromClient::Configure(text.to_owned()),
            other => FromClient::Fault(format!("unknown type `{}`; {HELP}", excerpt(other, 64))),
        }
    }

    /// A binary frame. An empty one ends the stream only of a client that never sent JSON: old clients end so,
    /// newer ones send it by accident.
    pub fn binary(&mut self, audio: Bytes) -> FromClient {
        match (audio.is_empty(), self.spoke_json) {
            (false, _) => FromClient::Audio(audio),
            (true, false) => FromClient::Finish,
            (true, true) => FromClient::Empty,
        }
    }
}

#[derive(Deserialize)]
struct Message {
    #[serde(rename = "type")]
    kind: String,
    channel: Option<u32>,
}

impl Message {
    /// An object only: the derived reader alone would take an array as well.
    fn read(text: &str) -> Option<Self> {
        if text.trim_start().starts_with('{') { serde_json::from_str(text).ok() } else { None }
    }
}

const HELP: &str =
    "known types: KeepAlive, Finalize, CloseStream, Configure; audio goes into binary messages";
