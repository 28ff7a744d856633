//! What a meter must always get right: cutting never changes the price, nothing is free, nothing panics.

use proptest::prelude::*;

use super::{AudioFault, Encoding, Format, Meter, Tariff};
use crate::limits;
use crate::units::Units;

#[test]
fn table_of_fixed_sizes_holds() {
    let cases = [
        (Encoding::Linear16, 16_000, 1, 3200, 100),
        (Encoding::Linear16, 48_000, 2, 3840, 20),
        (Encoding::Linear32, 16_000, 1, 6400, 100),
        (Encoding::Mulaw, 8_000, 1, 160, 20),
        (Encoding::Alaw, 8_000, 1, 800, 100),
        (Encoding::Linear16, 24_000, 1, 4800, 100),
    ];
    for (encoding, rate, channels, bytes, ms) in cases {
        let mut meter = raw(encoding, rate, channels);
        assert_eq!(meter.price(&vec![0; bytes]), Ok(Units::from(ms)), "{encoding:?} {rate} {channels}");
    }
}

/// 512 samples are 11.609 ms: rounded up in total, so the first costs 12 and ten seconds exactly 10 000.
#[test]
fn odd_rates_never_drift() {
    let mut meter = raw(Encoding::Linear16, 44_100, 1);
    let costs: Vec<u64> = (0..7).map(|_| price(&mut meter, &[1; 1024])).collect();
    assert_eq!(costs, [12, 12, 11, 12, 12, 11, 12]);

    let mut meter = raw(Encoding::Linear16, 44_100, 1);
    let total: u64 = (0..441_000 / 49).map(|_| price(&mut meter, &[1; 98])).sum();
    assert_eq!((total, meter.samples(), meter.seconds()), (10_000, 441_000, 10.0));
}

#[test]
fn half_samples_are_carried() {
    let mut meter = raw(Encoding::Linear16, 16_000, 1);
    assert_eq!(price(&mut meter, &[0; 3201]), 100);
    assert_eq!(meter.samples(), 1600);
    assert_eq!(price(&mut meter, &[0; 1]), 1, "the second half of the sample begins the next millisecond");
    assert_eq!(meter.samples(), 1601);
}

#[test]
fn stereo_counts_time_once() {
    let mut billed_once = raw(Encoding::Linear16, 16_000, 2);
    let mut billed_twice =
        meter(Format::Raw { encoding: Encoding::Linear16, rate: 16_000, channels: 2 }, true);
    let second = vec![0; 64_000];
    assert_eq!(price(&mut billed_once, &second), 1000);
    assert_eq!(price(&mut billed_twice, &second), 2000);
    assert_eq!((billed_twice.seconds(), billed_twice.rate()), (1.0, Some(16_000)));
}

#[test]
fn refused_chunk_leaves_the_meter() {
    let meter = raw(Encoding::Mulaw, 8_000, 1);
    let mut next = meter.clone();
    assert_eq!(price(&mut next, &[0; 160]), 20);
    assert_eq!((meter.samples(), meter.seconds(), next.samples()), (0, 0.0, 160));
}

#[test]
fn long_chunks_are_refused() {
    let mut most = raw(Encoding::Mulaw, 1000, 1);
    assert_eq!(price(&mut most, &vec![0; 30_000]), 30_000);
    assert_eq!(raw(Encoding::Mulaw, 1000, 1).price(&vec![0; 30_001]), Err(AudioFault::TooLong));
    assert_eq!(raw(Encoding::Mulaw, 1000, 1).fit(&vec![0; 30_001], Units::MAX), 0);
    assert_eq!(price(&mut most, &vec![0; 30_000]), 30_000, "the bound is on a chunk, not on a stream");
}

#[test]
fn containers_sent_as_raw_are_named() {
    for (lead, found) in
        [(&b"\x1A\x45\xDF\xA3...."[..], "WebM"), (&b"OggS...."[..], "Ogg"), (&b"fLaC...."[..], "FLAC")]
    {
        let whole = raw(Encoding::Linear16, 16_000, 1).price(lead).expect_err("a container");
        assert!(whole.to_string().contains(found) && whole.to_string().contains("linear16"), "{whole}");

        let mut meter = raw(Encoding::Linear16, 16_000, 1);
        let split = lead.iter().find_map(|byte| meter.price(&[*byte]).err());
        assert_eq!(split, Some(whole), "found as well byte by byte");
    }
}

#[test]
fn whole_wav_as_linear16_passes() {
    let mut meter = raw(Encoding::Linear16, 16_000, 1);
    assert_eq!(price(&mut meter, &wav(1, 1, 16_000, 16, &[0; 320])), 12, "its header counts as audio");
}

#[test]
fn tariff_bounds_hold() {
    assert_eq!(Tariff::new(0, false), None);
    assert_eq!(Tariff::new(Tariff::UNITS_PER_SECOND_MAX + 1, false), None);
    let dearest = Tariff::new(Tariff::UNITS_PER_SECOND_MAX, true).expect("in bounds");
    let mut meter =
        Meter::new(Format::Raw { encoding: Encoding::Mulaw, rate: 384_000, channels: 20 }, dearest);
    assert_eq!(price(&mut meter, &vec![0; 20 * 384_000]), 20_000_000);
    let mut nothing = Meter::new(Format::Raw { encoding: Encoding::Mulaw, rate: 0, channels: 0 }, dearest);
    assert_eq!(price(&mut nothing, &[0]), 1_000_000, "no division by zero");
}

#[test]
fn wav_header_costs_nothing() {
    let stream = wav(1, 1, 16_000, 16, &[0; 3200]);
    for cut in 0..=stream.len() {
        let mut meter = sniffed();
        let (head, tail) = stream.split_at(cut);
        let costs = price(&mut meter, head) + price(&mut meter, tail);
        assert_eq!((costs, meter.samples(), meter.rate()), (100, 1600, Some(16_000)), "cut at {cut}");
    }
    let mut meter = sniffed();
    assert_eq!(price(&mut meter, &stream[..44]), 0);
    assert_eq!((meter.seconds(), meter.channels()), (0.0, Some(1)));
}

/// The 78 bytes that ffmpeg writes when it can't seek: sizes 0xFFFFFFFF and a LIST chunk.
#[test]
fn ffmpeg_stream_header_is_read() {
    let header = hex::decode(concat!(
        "52494646ffffffff57415645666d74201000000001000100803e0000007d0000020010004c4953541a000000494e464f",
        "49534654",
        "0e0000004c61766635392e32372e31303000",
        "64617461ffffffff"
    ))
    .expect("hex");
    assert_eq!(header.len(), 78);
    let mut meter = sniffed();
    assert_eq!(price(&mut meter, &header), 0);
    assert_eq!(price(&mut meter, &[0; 32_000]), 1000);
}

#[test]
fn declared_sizes_are_not_believed() {
    for size in [0, 1, 4, 0x7FFF_FFFF, u32::MAX] {
        let mut stream = wav(1, 1, 16_000, 16, &[0; 3200]);
        stream[4..8].copy_from_slice(&size.to_le_bytes());
        stream[40..44].copy_from_slice(&size.to_le_bytes());
        assert_eq!(price(&mut sniffed(), &stream), 100, "data size {size}");
    }
}

/// A chunk behind the audio costs like audio: a worker that ignores sizes would hear it.
#[test]
fn bytes_behind_the_data_are_charged() {
    let mut stream = wav(1, 1, 16_000, 16, &[0; 3200]);
    stream[40..44].copy_from_slice(&3200_u32.to_le_bytes());
    stream.extend(b"LIST\x18\0\0\0");
    stream.extend([0; 24]);
    assert_eq!(price(&mut sniffed(), &stream), 101);
}

#[test]
fn accepted_wav_kinds_are_counted() {
    let kinds = [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (6, 8), (7, 8)];
    for (tag, bits) in kinds {
        for channels in [1, 2, 6] {
            let audio = vec![0; 800 * usize::from(bits / 8 * channels)];
            let plain = wav(tag, channels, 8_000, bits, &audio);
            let extended = extensible(tag, channels, 8_000, bits, &audio);
            assert_eq!(price(&mut sniffed(), &plain), 100, "tag {tag}, {bits} bits, {channels} channels");
            assert_eq!(price(&mut sniffed(), &extended), 100, "extensible {tag}, {bits} bits");
            let mut each = meter(Format::Sniffed, true);
            assert_eq!(price(&mut each, &plain), 100 * u64::from(channels), "multichannel");
        }
    }
}

#[test]
fn chunks_before_data_are_skipped() {
    let plain = wav(1, 1, 16_000, 16, &[0; 3200]);
    for size in [0_u32, 1, 2, 39, 40, 41, 4000] {
        let mut stream = plain[..12].to_vec();
        for _ in 0..2 {
            stream.extend(b"junk");
            stream.extend(size.to_le_bytes());
            stream.extend(vec![0; (size + size % 2) as usize]);
        }
        stream.extend(&plain[12..]);
        assert_eq!(price(&mut sniffed(), &stream), 100, "chunk of {size} bytes");
        let mut meter = sniffed();
        let bytewise: u64 = stream.iter().map(|byte| price(&mut meter, &[*byte])).sum();
        assert_eq!(bytewise, 100, "byte by byte, chunk of {size} bytes");
    }
}

#[test]
fn bad_wav_headers_are_faults() {
    let cases = [
        (wav(2, 1, 16_000, 4, &[]), "tag 2 with 4 bits"),
        (wav(1, 1, 16_000, 12, &[]), "12 bits"),
        (wav(3, 1, 16_000, 64, &[]), "64 bits"),
        (wav(0x55, 2, 44_100, 0, &[]), "tag 85"),
        (wav(1, 0, 16_000, 16, &[]), "0 channels"),
        (wav(1, 21, 16_000, 16, &[]), "21 channels"),
        (wav(1, 1, 0, 16, &[]), "0 Hz"),
        (wav(1, 1, u32::MAX, 16, &[]), "4294967295 Hz"),
    ];
    for (stream, found) in cases {
        let fault = sniffed().price(&stream).expect_err(found);
        assert!(fault.to_string().contains(found), "{fault}");
        assert!(fault.to_string().contains("accepted: PCM"), "{fault}");
    }
    let mut align = wav(1, 1, 16_000, 16, &[0; 320]);
    align[32] = 200;
    let fault = sniffed().price(&align).expect_err("a frame that hides its samples");
    assert!(fault.to_string().contains("200 bytes for a frame"), "{fault}");
}

#[test]
fn broken_wav_headers_are_faults() {
    let plain = wav(1, 1, 16_000, 16, &[0; 320]);
    let no_fmt = [&plain[..12], &plain[36..]].concat();
    let two_fmt = [&plain[..36], &plain[12..]].concat();
    let mut short_fmt = plain.clone();
    short_fmt[16] = 15;
    for (stream, word) in [(no_fmt, "before `fmt `"), (two_fmt, "two"), (short_fmt, "less than 16")] {
        let fault = sniffed().price(&stream).expect_err(word);
        assert!(fault.to_string().contains(word), "{fault}");
    }
    let mut endless = plain[..36].to_vec();
    endless.extend(b"LIST\xFF\xFF\xFF\xFF");
    let mut meter = sniffed();
    let passed = std::iter::repeat_n([0_u8; 1000], 70).try_for_each(|part| meter.price(&part).map(drop));
    assert!(passed.is_err(), "bytes that are no RIFF");
    let mut meter = sniffed();
    assert_eq!(meter.price(&endless), Ok(Units::ZERO));
    let parts = std::iter::repeat_n([0_u8; 1000], 70).take_while(|part| meter.price(part).is_ok()).count();
    assert_eq!(parts, limits::AUDIO_HEADER_BYTES_MAX / 1000, "a header is bounded");
}

#[test]
fn foreign_streams_are_named() {
    let cases: [(&[u8], &str); 8] = [
        (b"\x1A\x45\xDF\xA3\x9F\x42\x86\x81\x01\x42\xF7\x81", "WebM"),
        (b"OggS\0\x02\0\0\0\0\0\0", "Ogg"),
        (b"fLaC\0\0\0\x22\x10\0\x10\0", "FLAC"),
        (b"ID3\x04\0\0\0\0\0\x22\0\0", "MP3"),
        (b"\0\0\0\x1Cftypiso5", "MP4"),
        (b"#!AMR\n<\x91\x17\x16\xBE\x66", "AMR"),
        (b"RIFF\x10\0\0\0AVI ", "RIFF without WAVE"),
        (b"\x01\0\x02\0\x03\0\x04\0\x05\0\x06\0", "unknown bytes 01000200"),
    ];
    for (lead, found) in cases {
        let fault = sniffed().price(lead).expect_err(found);
        assert!(fault.to_string().contains(found), "{fault}");
        assert!(fault.to_string().contains("set encoding and sample_rate"), "{fault}");
    }
}

proptest! {
    /// However the bytes are cut, the sum is the price of the whole.
    #[test]
    fn cutting_never_changes_the_sum(stream in stream(), cuts in prop::collection::vec(1_usize..700, 1..40)) {
        let (format, bytes, tariff) = stream;
        let whole = Meter::new(format, tariff).price(&bytes);
        let mut meter = Meter::new(format, tariff);
        let (mut rest, mut sum, mut cuts) = (bytes.as_slice(), Units::ZERO, cuts.iter().cycle());
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at(rest.len().min(*cuts.next().expect("a cycle")));
            sum = sum.saturating_add(meter.price(chunk).expect("whole audio"));
            rest = behind;
        }
        prop_assert_eq!(Ok(sum), whole);
    }

    /// What fits is paid for, and one frame more would not be.
    #[test]
    fn fit_is_exact(stream in stream(), before in 0_usize..600, units in 0_u64..5000) {
        let (format, bytes, tariff) = stream;
        let (head, chunk) = bytes.split_at(before.min(bytes.len()));
        let mut meter = Meter::new(format, tariff);
        meter.price(head).expect("whole audio");
        let units = Units::saturating(units);
        let fit = meter.fit(chunk, units);
        let mut paid = meter.clone();
        prop_assert!(paid.price(&chunk[..fit]).expect("a prefix") <= units);
        if fit < chunk.len() {
            let mut more = meter.clone();
            let over = (fit + frame_bytes(&format)).min(chunk.len());
            prop_assert!(more.price(&chunk[..over]).expect("a prefix") > units || over == chunk.len());
            prop_assert!(meter.clone().price(chunk).expect("a chunk") > units, "all of it would not fit");
            prop_assert!(fit == 0 || paid.samples() == samples_at(&format, before.min(bytes.len()) + fit));
        } else {
            prop_assert!(meter.clone().price(chunk).expect("a chunk") <= units);
        }
    }

    /// Whatever comes, there is an answer.
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0_usize..60, wavy: bool) {
        let mut stream = if wavy { wav(1, 2, 16_000, 16, &bytes) } else { bytes.clone() };
        for (slot, byte) in stream.iter_mut().skip(at).zip(bytes.iter().take(4)) {
            *slot = *byte;
        }
        let mut meter = sniffed();
        for chunk in stream.chunks(7) {
            let fit = meter.fit(chunk, Units::from(1));
            prop_assert!(fit <= chunk.len());
            if meter.price(chunk).is_err() {
                break;
            }
        }
    }
}

/// A stream of any kind, a little audio in it, and any tariff.
fn stream() -> impl Strategy<Value = (Format, Vec<u8>, Tariff)> {
    let kind = (0_usize..5, 1_000_u32..=384_000, 1_u16..=6);
    let tariff = (1_u32..=Tariff::UNITS_PER_SECOND_MAX, any::<bool>());
    (kind, prop::collection::vec(0_u8..4, 0..4000), tariff).prop_map(
        |((kind, rate, channels), audio, (price, each))| {
            let tariff = Tariff::new(price, each).expect("in bounds");
            match Encoding::ALL.get(kind) {
                Some(encoding) => (Format::Raw { encoding: *encoding, rate, channels }, audio, tariff),
                None => (Format::Sniffed, wav(1, 1, rate, 16, &audio), tariff),
            }
        },
    )
}

fn frame_bytes(format: &Format) -> usize {
    match format {
        Format::Raw { encoding, channels, .. } => usize::from(encoding.sample_bytes() * channels),
        Format::Sniffed => 2,
    }
}

fn samples_at(format: &Format, bytes: usize) -> u64 {
    let header = if *format == Format::Sniffed { 44 } else { 0 };
    (bytes.saturating_sub(header) / frame_bytes(format)) as u64
}

fn meter(format: Format, multichannel: bool) -> Meter {
    Meter::new(format, Tariff::new(1000, multichannel).expect("in bounds"))
}

fn raw(encoding: Encoding, rate: u32, channels: u16) -> Meter {
    meter(Format::Raw { encoding, rate, channels }, false)
}

fn sniffed() -> Meter {
    meter(Format::Sniffed, false)
}

fn price(meter: &mut Meter, chunk: &[u8]) -> u64 {
    meter.price(chunk).expect("audio").get()
}

fn wav(tag: u16, channels: u16, rate: u32, bits: u16, audio: &[u8]) -> Vec<u8> {
    riff(&fmt(tag, channels, rate, bits), audio)
}

fn extensible(tag: u16, channels: u16, rate: u32, bits: u16, audio: &[u8]) -> Vec<u8> {
    let mut fields = fmt(0xFFFE, channels, rate, bits);
    fields.extend([22, 0]);
    fields.extend(bits.to_le_bytes());
    fields.extend([0; 4]);
    fields.extend(tag.to_le_bytes());
    fields.extend([0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71]);
    riff(&fields, audio)
}

fn fmt(tag: u16, channels: u16, rate: u32, bits: u16) -> Vec<u8> {
    let align = channels * (bits / 8);
    let mut fields = Vec::new();
    fields.extend(tag.to_le_bytes());
    fields.extend(channels.to_le_bytes());
    fields.extend(rate.to_le_bytes());
    fields.extend(rate.wrapping_mul(u32::from(align)).to_le_bytes());
    fields.extend(align.to_le_bytes());
    fields.extend(bits.to_le_bytes());
    fields
}

fn riff(fmt: &[u8], audio: &[u8]) -> Vec<u8> {
    let mut stream = b"RIFF\0\0\0\0WAVEfmt ".to_vec();
    stream.extend((fmt.len() as u32).to_le_bytes());
    stream.extend(fmt);
    stream.extend(b"data\0\0\0\0");
    stream.extend(audio);
    stream
}
