//! Test audio of exact lengths, WAV files with every kind of header, and the word error rate.

use std::path::{Path, PathBuf};

/// How a WAV header tells the size of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The usual 44 bytes with true sizes.
    Plain,
    /// A `LIST` chunk between format and data, as editors write it.
    List,
    /// Sizes unknown (`0xFFFFFFFF`), as a program writes that streams.
    Streamed,
}

/// `samples` of a 440 Hz sine at half scale: linear16, mono.
pub fn sine(rate: u32, samples: usize) -> Vec<u8> {
    let step = 440.0 * std::f64::consts::TAU / f64::from(rate);
    (0..samples).flat_map(|n| (((n as f64 * step).sin() * 16_383.0) as i16).to_le_bytes()).collect()
}

/// `samples` of noise from a seed: linear16, mono. No two stretches are alike, so a lost byte shows.
pub fn noise(seed: u64, samples: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..samples).flat_map(|_| random.i16(-8_000..8_000).to_le_bytes()).collect()
}

/// `ms` milliseconds of [`noise`] at 16 kHz.
pub fn noise_ms(seed: u64, ms: usize) -> Vec<u8> {
    noise(seed, ms * 16)
}

/// A WAV file of linear16 samples.
pub fn wav(header: Header, rate: u32, channels: u16, pcm: &[u8]) -> Vec<u8> {
    let list: &[u8] = if header == Header::List { b"LIST\x0e\0\0\0INFOISFT\x02\0\0\0x\0" } else { b"" };
    let exact = u32::try_from(pcm.len()).expect("a small file");
    let list_bytes = u32::try_from(list.len()).expect("a small chunk");
    let (all, data) = match header {
        Header::Plain | Header::List => (36 + list_bytes + exact, exact),
        Header::Streamed => (u32::MAX, u32::MAX),
    };
    let frame = channels * 2;
    let mut file = Vec::with_capacity(44 + list.len() + pcm.len());
    file.extend_from_slice(b"RIFF");
    file.extend_from_slice(&all.to_le_bytes());
    file.extend_from_slice(b"WAVEfmt \x10\0\0\0\x01\0");
    file.extend_from_slice(&channels.to_le_bytes());
    file.extend_from_slice(&rate.to_le_bytes());
    file.extend_from_slice(&(rate * u32::from(frame)).to_le_bytes());
    file.extend_from_slice(&frame.to_le_bytes());
    file.extend_from_slice(&16_u16.to_le_bytes());
    file.extend_from_slice(list);
    file.extend_from_slice(b"data");
    file.extend_from_slice(&data.to_le_bytes());
    file.extend_from_slice(pcm);
    file
}

/// Writes a plain WAV file into `folder` and gives its path.
pub fn wav_file(folder: &Path, name: &str, rate: u32, pcm: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, wav(Header::Plain, rate, 1, pcm)).expect("a writable folder");
    path
}

/// Word errors (replaced, left out, put in) per word of `reference`, without case and punctuation.
pub fn word_error_rate(reference: &str, heard: &str) -> f64 {
    let (reference, heard) = (words(reference), words(heard));
    let mut row: Vec<usize> = (0..=heard.len()).collect();
    for (i, wanted) in reference.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, word) in heard.iter().enumerate() {
            let replaced = corner + usize::from(wanted != word);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
        }
    }
    row[heard.len()] as f64 / reference.len().max(1) as f64
}

fn words(text: &str) -> Vec<String> {
    let plain = |c: char| if c.is_alphanumeric() || c == '\'' { c.to_ascii_lowercase() } else { ' ' };
    text.chars().map(plain).collect::<String>().split_whitespace().map(str::to_owned).collect()
}
