//! What a file or pipe holds: a WAV header, or raw audio as the options say. Decodes nothing.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::Failure;

/// How raw audio is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Name on the wire.
    pub(super) encoding: &'static str,
    /// Bytes of one sample of one channel.
    pub(super) width: u32,
    /// Samples per second.
    pub(super) rate: u32,
    /// Interleaved channels.
    pub(super) channels: u32,
}

impl Shape {
    /// Bytes of this much time, whole samples, at least one.
    pub(super) fn bytes(&self, time: Duration) -> usize {
        let frame = u64::from(self.width * self.channels);
        let samples = u64::from(self.rate) * u64::try_from(time.as_micros()).unwrap_or(u64::MAX) / 1_000_000;
        usize::try_from(samples.max(1) * frame).unwrap_or(usize::MAX)
    }

    /// Time that this many bytes last.
    pub(super) fn time(&self, bytes: u64) -> Duration {
        let per_second = u64::from(self.width * self.channels * self.rate);
        Duration::from_nanos(
            u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(per_second)).unwrap_or(0),
        )
    }
}

/// Encodings that can be sent, with the bytes of one sample.
pub(super) const ENCODINGS: [(&str, u32); 4] = [("linear16", 2), ("linear32", 4), ("mulaw", 1), ("alaw", 1)];

/// Bytes before `data` that are looked through.
const HEADER_BYTES_MAX: usize = 64 * 1024;

/// What a WAV header says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wav {
    /// How the audio is coded.
    pub(super) shape: Shape,
    /// Bytes of audio that the header promises; `None` for a header written before the end was known.
    pub(super) length: Option<u64>,
}

/// Reads a WAV header and leaves the reader at the first byte of audio.
pub(super) async fn read_wav(reader: &mut (impl AsyncRead + Unpin)) -> Result<Wav, Failure> {
    let mut lead = [0_u8; 12];
    reader.read_exact(&mut lead).await.map_err(|_| no_wav("it is shorter than a WAV header"))?;
    if !lead.starts_with(b"RIFF") || !lead.ends_with(b"WAVE") {
        return Err(no_wav("it is not a WAV file"));
    }
    let (mut shape, mut seen) = (None, lead.len());
    loop {
        let mut head = [0_u8; 8];
        reader.read_exact(&mut head).await.map_err(|_| no_wav("it has no data chunk"))?;
        let [a, b, c, d, size @ ..] = head;
        let size = u32::from_le_bytes(size);
        if [a, b, c, d] == *b"data" {
            let shape = shape.ok_or_else(|| no_wav("it has no format chunk before the audio"))?;
            let length = Some(u64::from(size)).filter(|_| size != 0 && size != u32::MAX);
            return Ok(Wav { shape, length });
        }
        let padded = usize::try_from(size).unwrap_or(usize::MAX).saturating_add(usize::from(size % 2 == 1));
        seen = seen.saturating_add(padded);
        if seen > HEADER_BYTES_MAX {
            return Err(no_wav("its header is too long"));
        }
        let mut body = vec![0; padded];
        reader.read_exact(&mut body).await.map_err(|_| no_wav("its header is cut off"))?;
        if [a, b, c, d] == *b"fmt " {
            shape = Some(read_format(&body)?);
        }
    }
}

fn read_format(body: &[u8]) -> Result<Shape, Failure> {
    let word = |at: usize| {
        let bytes: [u8; 2] = body.get(at..at + 2)?.try_into().ok()?;
        Some(u16::from_le_bytes(bytes))
    };
    let rate: Option<[u8; 4]> = body.get(4..8).and_then(|bytes| bytes.try_into().ok());
    let (Some(tag), Some(channels), Some(rate), Some(bits)) = (word(0), word(2), rate, word(14)) else {
        return Err(no_wav("its format chunk is cut off"));
    };
    // An extensible header tells the real tag at the start of its subformat.
    let tag = if tag == 0xFFFE { word(24).unwrap_or(tag) } else { tag };
    let (encoding, width) = match (tag, bits) {
        (1, 16) => ("linear16", 2),
        (3, 32) => ("linear32", 4),
        (7, 8) => ("mulaw", 1),
        (6, 8) => ("alaw", 1),
        (tag, bits) => {
            let reason = format!(
                "it holds {bits}-bit audio of format {tag}; make it 16-bit PCM: ffmpeg -i IN -c:a pcm_s16le OUT.wav"
            );
            return Err(no_wav(&reason));
        }
    };
    let (rate, channels) = (u32::from_le_bytes(rate), u32::from(channels));
    if !(1000..=384_000).contains(&rate) || !(1..=32).contains(&channels) {
        return Err(no_wav("its header makes no sense"));
    }
    Ok(Shape { encoding, width, rate, channels })
}

fn no_wav(reason: &str) -> Failure {
    Failure::failed(format!(
        "can't use the audio: {reason}\nraw audio needs --encoding and --rate, other files become WAV with: ffmpeg \
         -i IN -ac 1 -ar 16000 -c:a pcm_s16le OUT.wav"
    ))
}

#[cfg(test)]
mod tests {
    use super::{Shape, read_wav};
    use std::time::Duration;

    fn wav(tag: u16, bits: u16, extra: &[u8], size: u32) -> Vec<u8> {
        let mut file = b"RIFF\0\0\0\0WAVE".to_vec();
        file.extend_from_slice(extra);
        file.extend_from_slice(b"fmt \x10\0\0\0");
        file.extend_from_slice(&tag.to_le_bytes());
        file.extend_from_slice(&2_u16.to_le_bytes());
        file.extend_from_slice(&16_000_u32.to_le_bytes());
        file.extend_from_slice(&[0; 6]);
        file.extend_from_slice(&bits.to_le_bytes());
        file.extend_from_slice(b"data");
        file.extend_from_slice(&size.to_le_bytes());
        file.extend_from_slice(b"audio");
        file
    }

    #[tokio::test]
    async fn headers_are_read_to_the_audio() {
        for (tag, bits, name) in [(1, 16, "linear16"), (3, 32, "linear32"), (7, 8, "mulaw"), (6, 8, "alaw")] {
            let file = wav(tag, bits, b"LIST\x03\0\0\0abc\0", 5);
            let mut reader = file.as_slice();
            let read = read_wav(&mut reader).await.unwrap();
            assert_eq!((read.shape.encoding, read.shape.rate, read.shape.channels), (name, 16_000, 2));
            assert_eq!((read.length, reader), (Some(5), b"audio".as_slice()));
        }
        let streamed = wav(1, 16, b"", u32::MAX);
        assert_eq!(read_wav(&mut streamed.as_slice()).await.unwrap().length, None);
    }

    #[tokio::test]
    async fn other_files_are_refused() {
        let whole = wav(1, 16, b"", 5);
        for file in [b"".as_slice(), b"OggS", b"RIFF\0\0\0\0AVI ", &wav(1, 24, b"", 5), &whole[..30]] {
            assert!(read_wav(&mut &*file).await.is_err());
        }
    }

    #[test]
    fn bytes_and_time_agree() {
        let shape = Shape { encoding: "linear16", width: 2, rate: 16_000, channels: 1 };
        assert_eq!(shape.bytes(Duration::from_millis(100)), 3200);
        assert_eq!(shape.time(3200), Duration::from_millis(100));
        assert_eq!(shape.bytes(Duration::ZERO), 2);
    }
}
