//! The RIFF/WAVE header at the start of a stream, pushed in pieces of any size.
//!
//! Keeps at most 40 bytes, skips what it doesn't need, and never believes a size: the audio goes on until the
//! stream ends, and a chunk behind it (a few bytes of metadata in some files) costs like audio. Otherwise a small
//! declared size would make the rest free. Doesn't look at the audio itself.

use super::{AudioFault, Layout};
use crate::limits;

/// Where in the header we are, and the bytes of the part that is being read.
#[derive(Clone, Debug)]
pub(super) struct Header {
    want: Want,
    part: [u8; FMT_BYTES],
    have: usize,
    passed: usize,
    layout: Option<Layout>,
}

impl Default for Header {
    fn default() -> Self {
        Self { want: Want::Riff, part: [0; FMT_BYTES], have: 0, passed: 0, layout: None }
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug)]
enum Want {
    /// `RIFF`, a size, `WAVE`.
    Riff,
    /// A chunk's name and size.
    Chunk,
    /// `keep` bytes of `fmt `, then `skip` that don't matter.
    Fmt { keep: usize, skip: u64 },
    /// Bytes that don't matter.
    Skip(u64),
    /// Nothing: the audio begins.
    Audio,
}

impl Header {
    /// Reads on. Gives the layout once `data` has begun, and the bytes behind it; until then nothing.
    pub(super) fn push<'a>(&mut self, chunk: &'a [u8]) -> Result<(Option<Layout>, &'a [u8]), AudioFault> {
        let mut rest = chunk;
        loop {
            let want = self.want;
            let here = match want {
                Want::Audio => return Ok((self.layout, rest)),
                Want::Riff => self.fill(&mut rest, RIFF_BYTES)?,
                Want::Chunk => self.fill(&mut rest, CHUNK_BYTES)?,
                Want::Fmt { keep, .. } => self.fill(&mut rest, keep)?,
                Want::Skip(bytes) => self.skip(&mut rest, bytes)?,
            };
            if !here {
                return Ok((None, rest));
            }
            match want {
                Want::Riff => self.riff()?,
                Want::Chunk => self.chunk()?,
                Want::Fmt { keep, skip } => {
                    self.layout = Some(layout(self.part.get(..keep).unwrap_or_default())?);
                    self.next(Want::Skip(skip));
                }
                Want::Skip(_) => self.next(Want::Chunk),
                Want::Audio => {}
            }
        }
    }

    /// Steps over bytes that don't matter; whether all of them are behind us now.
    fn skip(&mut self, rest: &mut &[u8], bytes: u64) -> Result<bool, AudioFault> {
        let step = usize::try_from(bytes).unwrap_or(usize::MAX).min(rest.len());
        self.pass(rest, step)?;
        let left = bytes.saturating_sub(step as u64);
        self.want = Want::Skip(left);
        Ok(left == 0)
    }

    /// Moves bytes into the part until it has `bytes`; whether it has them now.
    fn fill(&mut self, rest: &mut &[u8], bytes: usize) -> Result<bool, AudioFault> {
        let step = bytes.saturating_sub(self.have).min(rest.len());
        for (slot, byte) in self.part.iter_mut().skip(self.have).zip(rest.iter().take(step)) {
            *slot = *byte;
        }
        self.have += step;
        self.pass(rest, step)?;
        Ok(self.have == bytes)
    }

    /// Steps over header bytes, within the bound on a header.
    fn pass(&mut self, rest: &mut &[u8], step: usize) -> Result<(), AudioFault> {
        self.passed = self.passed.saturating_add(step);
        if self.passed > limits::AUDIO_HEADER_BYTES_MAX {
            return Err(AudioFault::WavBroken("no `data` within the first 64 KiB"));
        }
        *rest = rest.get(step..).unwrap_or_default();
        Ok(())
    }

    fn next(&mut self, want: Want) {
        self.want = want;
        self.have = 0;
    }

    fn riff(&mut self) -> Result<(), AudioFault> {
        let head = self.part.first_chunk::<RIFF_BYTES>().copied().unwrap_or_default();
        if !head.starts_with(b"RIFF") || !head.ends_with(b"WAVE") {
            return Err(AudioFault::NotWav { found: describe(&head) });
        }
        self.next(Want::Chunk);
        Ok(())
    }

    fn chunk(&mut self) -> Result<(), AudioFault> {
        let [a, b, c, d, size @ ..] = self.part.first_chunk::<CHUNK_BYTES>().copied().unwrap_or_default();
        let size = u64::from(u32::from_le_bytes(size));
        let padded = size + size % 2;
        match &[a, b, c, d] {
            b"data" if self.layout.is_none() => {
                return Err(AudioFault::WavBroken("`data` comes before `fmt `"));
            }
            b"data" => self.next(Want::Audio),
            b"fmt " if self.layout.is_some() => return Err(AudioFault::WavBroken("two `fmt ` chunks")),
            b"fmt " if size < FMT_BYTES_MIN as u64 => {
                return Err(AudioFault::WavBroken("`fmt ` has less than 16 bytes"));
            }
            b"fmt " => {
                let keep = usize::try_from(size).unwrap_or(usize::MAX).min(FMT_BYTES);
                self.next(Want::Fmt { keep, skip: padded.saturating_sub(keep as u64) });
            }
            _ => self.next(Want::Skip(padded)),
        }
        Ok(())
    }
}

/// The layout that a `fmt ` chunk announces.
fn layout(fmt: &[u8]) -> Result<Layout, AudioFault> {
    let announced = field(fmt, 0);
    let tag = if announced == EXTENSIBLE { extended(fmt)? } else { announced };
    let (channels, align, bits) = (field(fmt, 2), field(fmt, 12), field(fmt, 14));
    let rate = u32::from(field(fmt, 4)) | u32::from(field(fmt, 6)) << 16;
    let word = match (tag, bits) {
        (PCM, 8) => "8-bit PCM",
        (PCM, 16) => "16-bit PCM",
        (PCM, 24) => "24-bit PCM",
        (PCM, 32) => "32-bit PCM",
        (FLOAT, 32) => "32-bit float",
        (ALAW, 8) => "A-law",
        (MULAW, 8) => "mu-law",
        _ => return Err(kind(format!("format tag {tag} with {bits} bits"))),
    };
    if !(1..=limits::CHANNELS_MAX).contains(&channels) {
        return Err(kind(format!("{channels} channels")));
    }
    if !(limits::SAMPLE_RATE_MIN..=limits::SAMPLE_RATE_MAX).contains(&rate) {
        return Err(kind(format!("{rate} Hz")));
    }
    let frame_bytes = u32::from(channels) * u32::from(bits / 8);
    if u32::from(align) != frame_bytes {
        return Err(kind(format!("{align} bytes for a frame of {channels} x {bits} bits")));
    }
    Ok(Layout { rate, channels, frame_bytes, word })
}

/// The format tag inside an extensible `fmt ` chunk.
fn extended(fmt: &[u8]) -> Result<u16, AudioFault> {
    let guid = fmt.get(24..).unwrap_or_default();
    if guid.get(2..) != Some(SUBFORMAT_TAIL.as_slice()) {
        return Err(kind("an unknown extensible subformat".to_owned()));
    }
    Ok(field(guid, 0))
}

fn kind(found: String) -> AudioFault {
    AudioFault::WavKind { found }
}

/// The little-endian 16-bit field at an offset; 0 where there is none.
fn field(bytes: &[u8], offset: usize) -> u16 {
    let two = bytes.get(offset..).and_then(|rest| rest.first_chunk::<2>());
    u16::from_le_bytes(two.copied().unwrap_or_default())
}

/// The container that a stream begins with, other than RIFF, if four bytes tell.
pub(super) fn container(lead: &[u8; 4]) -> Option<&'static str> {
    match lead {
        [0x1A, 0x45, 0xDF, 0xA3] => Some("WebM or Matroska"),
        b"OggS" => Some("Ogg"),
        b"fLaC" => Some("FLAC"),
        _ => None,
    }
}

/// What the first bytes of a stream look like, in words.
fn describe(head: &[u8; RIFF_BYTES]) -> String {
    let lead = head.first_chunk::<4>().copied().unwrap_or_default();
    let known = match (&lead, head.get(4..8)) {
        (b"RIFF", _) => Some("RIFF without WAVE"),
        (b"RIFX" | b"RF64" | b"BW64", _) => Some("a big-endian or 64-bit variant of WAV"),
        ([b'I', b'D', b'3', _] | [0xFF, 0xE0..=0xFF, ..], _) => Some("MP3 or AAC"),
        (b"#!AM", _) => Some("AMR"),
        (_, Some(b"ftyp")) => Some("MP4"),
        _ => container(&lead),
    };
    known.map_or_else(|| format!("unknown bytes {}", hex::encode(lead)), str::to_owned)
}

const _: () = assert!(limits::AUDIO_HEADER_BYTES_MAX == 64 * 1024, "a fault text names it");
const RIFF_BYTES: usize = 12;
const CHUNK_BYTES: usize = 8;
const FMT_BYTES_MIN: usize = 16;
const FMT_BYTES: usize = 40;
const PCM: u16 = 1;
const FLOAT: u16 = 3;
const ALAW: u16 = 6;
const MULAW: u16 = 7;
const EXTENSIBLE: u16 = 0xFFFE;
/// What follows the tag in a subformat identifier that stands for a plain tag.
const SUBFORMAT_TAIL: [u8; 14] = [0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71];
