//! From bytes to units: how much audio a chunk holds and what it costs.
//!
//! Pure: bytes in, integers out; no clock, no socket, no log, no decoding. A total is always computed from the
//! whole stream so far, so cutting the same bytes differently never changes the price. Container timestamps and
//! declared sizes are never believed. What can't be counted is a fault, never free.

mod wav;

#[cfg(test)]
mod tests;

use crate::limits;
use crate::units::Units;
use wav::Header;

/// Counts one stream and says what each chunk of it costs.
///
/// Price a clone and keep the clone when the chunk was admitted: a clone is a copy of a few dozen bytes.
#[derive(Clone, Debug)]
pub struct Meter {
    tariff: Tariff,
    stage: Stage,
}

impl Meter {
    /// A meter at the start of a stream. A rate or channel count of 0 counts as 1.
    pub fn new(format: Format, tariff: Tariff) -> Self {
        let stage = match format {
            Format::Raw { encoding, rate, channels } => {
                Stage::Audio(Count::new(Layout::raw(encoding, rate, channels), Some(Lead::default())))
            }
            Format::Sniffed => Stage::Header(Header::default()),
        };
        Self { tariff, stage }
    }

    /// What the stream costs with this chunk less what it cost without it, rounded up in total.
    ///
    /// A frame (one sample of every channel) counts when its last byte is here; the bytes of an unfinished frame
    /// are carried to the next chunk; header bytes cost nothing.
    ///
    /// # Errors
    /// The bytes are not what was announced, or more than [`limits::CHUNK_SECONDS_MAX`] at once. The meter is of
    /// no use after an error.
    pub fn price(&mut self, chunk: &[u8]) -> Result<Units, AudioFault> {
        let Some((count, audio)) = self.stage.enter(chunk)? else { return Ok(Units::ZERO) };
        let before = count.due(self.tariff);
        count.push(audio)?;
        Ok(Units::saturating(count.due(self.tariff).saturating_sub(before)))
    }

    /// How many leading bytes of this chunk cost at most `units`: all of it, or up to the end of the last frame
    /// that is still paid for. 0 for a chunk that [`Meter::price`] would not take.
    pub fn fit(&self, chunk: &[u8], units: Units) -> usize {
        let mut whole = self.clone();
        match whole.price(chunk) {
            Ok(cost) if cost <= units => return chunk.len(),
            Ok(_) => {}
            Err(_) => return 0,
        }
        let mut start = self.clone();
        let Ok(Some((count, audio))) = start.stage.enter(chunk) else { return 0 };
        let header = chunk.len().saturating_sub(audio.len());
        header.saturating_add(count.affordable(self.tariff, units))
    }

    /// Whole frames so far: samples per channel.
    pub fn samples(&self) -> u64 {
        match &self.stage {
            Stage::Header(_) => 0,
            Stage::Audio(count) => count.frames(),
        }
    }

    /// Seconds of audio so far, by the declared rate; 0.0 while nothing was counted.
    pub fn seconds(&self) -> f64 {
        match &self.stage {
            Stage::Header(_) => 0.0,
            Stage::Audio(count) => count.frames() as f64 / f64::from(count.layout.rate),
        }
    }

    /// Samples per second and channel; `None` until the header of a sniffed stream is complete.
    pub fn rate(&self) -> Option<u32> {
        self.layout().map(|layout| layout.rate)
    }

    /// Interleaved channels; `None` until the header of a sniffed stream is complete.
    pub fn channels(&self) -> Option<u16> {
        self.layout().map(|layout| layout.channels)
    }

    fn layout(&self) -> Option<Layout> {
        match &self.stage {
            Stage::Header(_) => None,
            Stage::Audio(count) => Some(count.layout),
        }
    }
}

/// How a stream says what its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Bare samples, as the handshake declared them.
    Raw {
        /// How one sample is coded.
        encoding: Encoding,
        /// Samples per second and channel, in Hz.
        rate: u32,
        /// Interleaved channels.
        channels: u16,
    },
    /// The stream carries its own header. For now only RIFF/WAVE; anything else is an [`AudioFault`].
    Sniffed,
}

/// How one raw sample is coded. Every variant has a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Signed 16-bit integers, little endian.
    Linear16,
    /// 32-bit floats, little endian.
    Linear32,
    /// G.711 µ-law.
    Mulaw,
    /// G.711 A-law.
    Alaw,
}

impl Encoding {
    /// Every encoding, in the order that error texts list them.
    pub const ALL: [Self; 4] = [Self::Linear16, Self::Linear32, Self::Mulaw, Self::Alaw];

    /// The word in a query, a log or a table.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Linear16 => "linear16",
            Self::Linear32 => "linear32",
            Self::Mulaw => "mulaw",
            Self::Alaw => "alaw",
        }
    }

    /// Bytes of one sample of one channel.
    pub const fn sample_bytes(self) -> u16 {
        match self {
            Self::Linear16 => 2,
            Self::Linear32 => 4,
            Self::Mulaw | Self::Alaw => 1,
        }
    }
}

/// What a second of audio costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tariff {
    units_per_second: u32,
    multichannel: bool,
}

impl Tariff {
    /// Largest price of a second of one channel, in units.
    pub const UNITS_PER_SECOND_MAX: u32 = 1_000_000;

    /// A price per second (1 unit up to [`Tariff::UNITS_PER_SECOND_MAX`]; usual: 1000, so a unit is a
    /// millisecond), times the stream's channels if `multichannel`. `None` outside these bounds.
    pub const fn new(units_per_second: u32, multichannel: bool) -> Option<Self> {
        if units_per_second == 0 || units_per_second > Self::UNITS_PER_SECOND_MAX {
            return None;
        }
        Some(Self { units_per_second, multichannel })
    }

    /// Units per second of this stream, all billed channels together.
    fn per_second(self, channels: u16) -> u128 {
        let billed = if self.multichannel { channels } else { 1 };
        u128::from(self.units_per_second) * u128::from(billed)
    }
}

/// Why bytes are not audio that can be counted. The texts tell the caller what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AudioFault {
    /// More audio in one message than a live source sends.
    #[error(
        "one message holds more than {} s of audio: check encoding, sample_rate and channels, and send smaller \
         messages",
        limits::CHUNK_SECONDS_MAX
    )]
    TooLong,
    /// A sniffed stream begins like nothing that can be counted yet.
    #[error(
        "the stream begins like {found}; without `encoding` only WAV is accepted: set encoding and sample_rate \
         for raw audio (linear16, linear32, mulaw, alaw), or send WAV"
    )]
    NotWav {
        /// What the first bytes look like.
        found: String,
    },
    /// Raw samples were announced and a container came.
    #[error(
        "encoding={declared} was announced but the stream begins like {found}: send raw samples, or leave \
         `encoding` out and send WAV"
    )]
    Container {
        /// The encoding in the handshake.
        declared: &'static str,
        /// What the first bytes look like.
        found: &'static str,
    },
    /// The WAV header announces audio of a kind that is not accepted.
    #[error(
        "the WAV header announces {found}; accepted: PCM of 8, 16, 24 or 32 bits, 32-bit float, A-law, mu-law, \
         1 to {} channels, {} to {} Hz",
        limits::CHANNELS_MAX,
        limits::SAMPLE_RATE_MIN,
        limits::SAMPLE_RATE_MAX
    )]
    WavKind {
        /// What the header says.
        found: String,
    },
    /// The WAV header contradicts itself or never ends.
    #[error("the WAV header is broken: {0}; write `fmt ` once, before `data`")]
    WavBroken(&'static str),
}

/// Where in its stream a meter is.
#[derive(Clone, Debug)]
enum Stage {
    Header(Header),
    Audio(Count),
}

impl Stage {
    /// Passes the header; gives the count and the part of the chunk that is audio, once there can be any.
    fn enter<'a>(&mut self, chunk: &'a [u8]) -> Result<Option<(&mut Count, &'a [u8])>, AudioFault> {
        let mut audio = chunk;
        if let Self::Header(header) = self {
            let (layout, rest) = header.push(chunk)?;
            let Some(layout) = layout else { return Ok(None) };
            audio = rest;
            *self = Self::Audio(Count::new(layout, None));
        }
        match self {
            Self::Header(_) => Ok(None),
            Self::Audio(count) => Ok(Some((count, audio))),
        }
    }
}

/// How frames lie in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    rate: u32,
    channels: u16,
    frame_bytes: u32,
    word: &'static str,
}

impl Layout {
    fn raw(encoding: Encoding, rate: u32, channels: u16) -> Self {
        let channels = channels.max(1);
        let frame_bytes = u32::from(channels) * u32::from(encoding.sample_bytes());
        Self { rate: rate.max(1), channels, frame_bytes, word: encoding.word() }
    }
}

/// The audio bytes so far. Everything else (frames, price) follows from them, so nothing can drift.
#[derive(Clone, Debug)]
struct Count {
    layout: Layout,
    bytes: u64,
    lead: Option<Lead>,
}

impl Count {
    const fn new(layout: Layout, lead: Option<Lead>) -> Self {
        Self { layout, bytes: 0, lead }
    }

    fn frames(&self) -> u64 {
        self.bytes / u64::from(self.layout.frame_bytes)
    }

    /// The price of all frames so far, rounded up.
    fn due(&self, tariff: Tariff) -> u64 {
        let units = u128::from(self.frames()) * tariff.per_second(self.layout.channels);
        u64::try_from(units.div_ceil(u128::from(self.layout.rate))).unwrap_or(u64::MAX)
    }

    fn push(&mut self, audio: &[u8]) -> Result<(), AudioFault> {
        if let Some(lead) = &mut self.lead
            && let Some(found) = lead.container(audio)
        {
            return Err(AudioFault::Container { declared: self.layout.word, found });
        }
        let before = self.frames();
        self.bytes = self.bytes.saturating_add(audio.len() as u64);
        let most = u64::from(self.layout.rate) * u64::from(limits::CHUNK_SECONDS_MAX);
        if self.frames().saturating_sub(before) > most { Err(AudioFault::TooLong) } else { Ok(()) }
    }

    /// Bytes from here to the end of the last frame that `units` more still pay for; 0 if that is behind us.
    fn affordable(&self, tariff: Tariff, units: Units) -> usize {
        let budget = u128::from(self.due(tariff)) + u128::from(units.get());
        let frames = budget * u128::from(self.layout.rate) / tariff.per_second(self.layout.channels);
        let end = frames * u128::from(self.layout.frame_bytes);
        usize::try_from(end.saturating_sub(u128::from(self.bytes))).unwrap_or(usize::MAX)
    }
}

/// The first four bytes of a raw stream, kept to recognise a container sent by mistake.
///
/// RIFF is let through: many callers stream a whole WAV file as linear16, and its header is 1 ms of click.
#[derive(Clone, Copy, Debug, Default)]
struct Lead {
    bytes: [u8; 4],
    seen: usize,
}

impl Lead {
    fn container(&mut self, audio: &[u8]) -> Option<&'static str> {
        if self.seen == self.bytes.len() {
            return None;
        }
        for (slot, byte) in self.bytes.iter_mut().skip(self.seen).zip(audio) {
            *slot = *byte;
            self.seen += 1;
        }
        if self.seen < self.bytes.len() { None } else { wav::container(&self.bytes) }
    }
}
