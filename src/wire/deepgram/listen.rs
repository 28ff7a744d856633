//! The query of `/v1/listen`: what the gateway must know to count and route, and what the worker is to be told.
//!
//! What decides money (encoding, rate, channels) is read strictly and written to the worker in one spelling, so
//! that both read the same. Unknown names pass.

use form_urlencoded::Serializer;

use super::{Refusal, excerpt, plain};
use crate::audio::{Encoding, Format, Tariff};
use crate::limits;

/// A handshake's query, understood as far as the gateway needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// How to count the audio.
    pub format: Format,
    /// Each channel is transcribed, and billed, on its own.
    pub multichannel: bool,
    /// Model name; `general` if none was given. `A-Z a-z 0-9 - _ . : /`, at most [`limits::MODEL_BYTES_MAX`].
    pub model: String,
    /// Language, as given; the worker's default if none was.
    pub language: Option<String>,
    /// Labels for the ledger, at most [`limits::TAGS_MAX`] without control characters.
    pub tags: Vec<String>,
    /// `key:value` pairs that the worker echoes.
    pub extra: Vec<String>,
    /// The session to join or resume: `A-Z a-z 0-9 - _ .`, at most [`limits::NAME_BYTES_MAX`].
    pub session_id: Option<String>,
    /// The query for a worker of the same dialect: everything but the gateway's own parameters.
    pub worker_query: String,
}

impl Listen {
    /// Reads the part of the request target behind `?`, undecoded.
    ///
    /// # Errors
    /// 400 with a text that names the parameter, what was found and what is allowed.
    pub fn parse(query: &str) -> Result<Self, Refusal> {
        let pairs = Pairs::read(query)?;
        pairs.refuse_what_is_not_served()?;
        let encoding = pairs.single("encoding")?.map(encoding).transpose()?;
        let rate = pairs.number("sample_rate", limits::SAMPLE_RATE_MIN, limits::SAMPLE_RATE_MAX)?;
        let channels = pairs.number("channels", 1, u32::from(limits::CHANNELS_MAX))?;
        let listen = Self {
            format: format(encoding, rate, channels)?,
            multichannel: pairs.single("multichannel")?.map(boolean).transpose()?.unwrap_or(false),
            model: pairs.single("model")?.map(model).transpose()?.unwrap_or_else(|| "general".to_owned()),
            language: pairs.all("language").next().map(language).transpose()?,
            tags: pairs.bounded("tag", limits::TAGS_MAX, limits::TAG_CHARS_MAX)?,
            extra: pairs.bounded("extra", limits::QUERY_PARAMETERS_MAX, limits::EXTRA_CHARS_MAX)?,
            session_id: pairs.single("session_id")?.map(session).transpose()?,
            worker_query: String::new(),
        };
        let worker_query = listen.written(&pairs);
        Ok(Self { worker_query, ..listen })
    }

    /// The tariff of this stream at a price per second; `None` for a price out of bounds.
    pub const fn tariff(&self, units_per_second: u32) -> Option<Tariff> {
        Tariff::new(units_per_second, self.multichannel)
    }

    /// Channels that are charged as far as the query tells; a sniffed stream may turn out to have more.
    pub const fn billed_channels(&self) -> u16 {
        match self.format {
            Format::Raw { channels, .. } if self.multichannel => channels,
            Format::Raw { .. } | Format::Sniffed => 1,
        }
    }

    fn written(&self, pairs: &Pairs) -> String {
        let mut out = Serializer::new(String::new());
        for (name, value) in &pairs.0 {
            match name.as_str() {
                "session_id" => {}
                "encoding" | "multichannel" => {
                    out.append_pair(name, &value.to_ascii_lowercase());
                }
                _ => {
                    out.append_pair(name, value);
                }
            }
        }
        out.finish()
    }
}

/// The decoded parameters, in their order.
struct Pairs(Vec<(String, String)>);

impl Pairs {
    fn read(query: &str) -> Result<Self, Refusal> {
        if query.len() > limits::TARGET_BYTES_MAX {
            return Err(bad(format!("The query has more than {} bytes.", limits::TARGET_BYTES_MAX)));
        }
        let pairs: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        if pairs.len() > limits::QUERY_PARAMETERS_MAX {
            return Err(bad(format!("The query has more than {} parameters.", limits::QUERY_PARAMETERS_MAX)));
        }
        if pairs.iter().any(|(name, value)| name.contains('\u{FFFD}') || value.contains('\u{FFFD}')) {
            return Err(bad("The query is not percent-encoded UTF-8.".to_owned()));
        }
        Ok(Self(pairs))
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The value of a parameter that decides something: two of them would be read differently by somebody.
    fn single<'a>(&'a self, name: &'a str) -> Result<Option<&'a str>, Refusal> {
        let mut values = self.all(name);
        let first = values.next();
        if values.next().is_some() {
            Err(bad(format!("Give `{name}` once, not several times.")))
        } else {
            Ok(first)
        }
    }

    /// A plain decimal number within bounds.
    fn number(&self, name: &str, least: u32, most: u32) -> Result<Option<u32>, Refusal> {
        let Some(text) = self.single(name)? else { return Ok(None) };
        let plain = !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse().ok().filter(|n| plain && (least..=most).contains(n));
        number.map(Some).ok_or_else(|| {
            bad(format!(
                "`{name}` must be a whole number from {least} to {most}, not `{}`.",
                excerpt(text, 32)
            ))
        })
    }

    fn bounded(&self, name: &str, most: usize, chars: usize) -> Result<Vec<String>, Refusal> {
        let values: Vec<String> = self.all(name).map(str::to_owned).collect();
        if values.len() > most {
            return Err(bad(format!("Give `{name}` at most {most} times.")));
        }
        if values.iter().any(|value| value.chars().count() > chars || value.chars().any(char::is_control)) {
            return Err(bad(format!(
                "`{name}` must have at most {chars} characters, no control characters."
            )));
        }
        Ok(values)
    }

    fn refuse_what_is_not_served(&self) -> Result<(), Refusal> {
        if self.all("callback").chain(self.all("callback_method")).next().is_some() {
            return Err(bad("`callback` is not served here: results come back on the WebSocket.".to_owned()));
        }
        if self.all("keyterm").count() > limits::KEYTERMS_MAX {
            return Err(bad(format!("Give `keyterm` at most {} times.", limits::KEYTERMS_MAX)));
        }
        let newest = self.all("model").any(|model| model.to_ascii_lowercase().starts_with("nova-3"));
        if newest && self.all("keywords").next().is_some() {
            return Err(bad("`keywords` does not work with nova-3 models; use `keyterm`.".to_owned()));
        }
        Ok(())
    }
}

fn format(encoding: Option<Encoding>, rate: Option<u32>, channels: Option<u32>) -> Result<Format, Refusal> {
    let Some(encoding) = encoding else { return Ok(Format::Sniffed) };
    let Some(rate) = rate else {
        return Err(bad(format!("`encoding={}` needs `sample_rate`.", encoding.word())));
    };
    let channels = channels.and_then(|n| u16::try_from(n).ok()).unwrap_or(1);
    Ok(Format::Raw { encoding, rate, channels })
}

fn encoding(text: &str) -> Result<Encoding, Refusal> {
    let lower = text.to_ascii_lowercase();
    Encoding::ALL.into_iter().find(|encoding| encoding.word() == lower).ok_or_else(|| {
        let known = NOT_YET.contains(&lower.as_str());
        let verdict = if known { "is not supported yet" } else { "is unknown" };
        let served = Encoding::ALL.map(Encoding::word).join(", ");
        bad(format!(
            "`encoding={}` {verdict}; supported: {served}, or WAV without `encoding`.",
            excerpt(text, 32)
        ))
    })
}

fn boolean(text: &str) -> Result<bool, Refusal> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(bad(format!("`multichannel` must be true or false, not `{}`.", excerpt(text, 32)))),
    }
}

fn model(text: &str) -> Result<String, Refusal> {
    let bare = text.replace([':', '/'], ".");
    if plain(&bare, limits::MODEL_BYTES_MAX) {
        return Ok(text.to_owned());
    }
    Err(bad(format!("`model` must be 1 to {} of A-Z a-z 0-9 - _ . : /", limits::MODEL_BYTES_MAX)))
}

fn language(text: &str) -> Result<String, Refusal> {
    if plain(text, limits::NAME_BYTES_MAX) {
        return Ok(text.to_owned());
    }
    Err(bad("`language` must be a language tag such as `en` or `en-US`.".to_owned()))
}

fn session(text: &str) -> Result<String, Refusal> {
    if plain(text, limits::NAME_BYTES_MAX) {
        return Ok(text.to_owned());
    }
    Err(bad(format!("`session_id` must be 1 to {} of A-Z a-z 0-9 - _ .", limits::NAME_BYTES_MAX)))
}

fn bad(text: String) -> Refusal {
    Refusal::bad_query(&text)
}

/// Encodings of the dialect that can't be counted yet.
const NOT_YET: [&str; 7] = ["flac", "amr-nb", "amr-wb", "opus", "ogg-opus", "speex", "g729"];
