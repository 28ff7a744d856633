//! WebSocket frames as bytes, just enough for a cheap load: prepared once, read in place. Never touches a socket.
//!
//! Whoever measures must cost less than what it measures, so nothing here is general: no fragments, no extensions,
//! one mask for all.

use bytes::{Buf as _, BytesMut};

/// FIN and text.
pub(super) const TEXT: u8 = 0x81;
/// FIN and binary.
pub(super) const BINARY: u8 = 0x82;
/// FIN and close.
pub(super) const CLOSE: u8 = 0x88;

/// What every client frame here is masked with.
const MASK: [u8; 4] = [0x5a, 0xc3, 0x96, 0x3c];
/// Bytes of the number that an audio message begins with.
const NUMBER_BYTES: usize = 8;

/// Whole frame as a client must send it.
pub(super) fn masked(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = head(kind, 0x80, payload.len());
    frame.extend_from_slice(&MASK);
    frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

/// Whole frame as a server sends it, put behind what is there.
pub(super) fn plain(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    out.extend(head(kind, 0, payload.len()));
    out.extend_from_slice(payload);
}

fn head(kind: u8, flag: u8, length: usize) -> Vec<u8> {
    let mut head = vec![kind];
    match length {
        0..=125 => head.push(flag | length as u8),
        126..=0xFFFF => {
            head.push(flag | 126);
            head.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            head.push(flag | 127);
            head.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    head
}

/// An audio message of one size: all of it is made once, but for the number that it begins with.
#[derive(Debug)]
pub(super) struct Chunk {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Chunk {
    /// Of so many bytes, at least those of its number.
    pub(super) fn new(bytes: usize) -> Self {
        let bytes = bytes.max(NUMBER_BYTES);
        let mut head = head(BINARY, 0x80, bytes);
        head.extend_from_slice(&MASK);
        // The number is as long as two masks, so what follows begins with the mask's first byte again.
        let sound = (0..bytes - NUMBER_BYTES).map(|at| (at % 251) as u8);
        let tail = sound.zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        Self { head, tail }
    }

    /// Head of the message with this number, to be followed by [`Chunk::tail`].
    pub(super) fn start(&self, number: u64, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(&self.head);
        out.extend(number.to_be_bytes().iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    }

    /// Its constant rest.
    pub(super) fn tail(&self) -> &[u8] {
        &self.tail
    }
}

/// A frame in a buffer.
#[derive(Debug)]
pub(super) struct Frame {
    /// First byte: FIN and opcode.
    pub(super) kind: u8,
    mask: [u8; 4],
    /// Its payload, still masked.
    payload: BytesMut,
}

impl Frame {
    /// The next whole frame, taken out of the buffer; nothing while it is not complete.
    pub(super) fn next(buffer: &mut BytesMut) -> Option<Self> {
        let (&kind, &second) = (buffer.first()?, buffer.get(1)?);
        let (mut head, length) = match second & 0x7f {
            126 => (4, usize::from(u16::from_be_bytes(buffer.get(2..4)?.try_into().ok()?))),
            127 => (10, usize::try_from(u64::from_be_bytes(buffer.get(2..10)?.try_into().ok()?)).ok()?),
            short => (2, usize::from(short)),
        };
        let mut mask = [0; 4];
        if second & 0x80 != 0 {
            mask = buffer.get(head..head + 4)?.try_into().ok()?;
            head += 4;
        }
        if buffer.len() < head + length {
            buffer.reserve(head + length - buffer.len());
            return None;
        }
        buffer.advance(head);
        Some(Self { kind, mask, payload: buffer.split_to(length) })
    }

    /// How long its payload is.
    pub(super) fn len(&self) -> usize {
        self.payload.len()
    }

    /// The number that an audio message begins with.
    pub(super) fn number(&self) -> Option<u64> {
        let bytes: [u8; NUMBER_BYTES] = self.payload.get(..NUMBER_BYTES)?.try_into().ok()?;
        Some(u64::from_be_bytes(bytes) ^ u64::from_be_bytes(self.twice()))
    }

    /// Payload without mask.
    pub(super) fn text(&self) -> Vec<u8> {
        self.payload.iter().zip(self.mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect()
    }

    /// Payload of a frame that a server sent, as it is.
    pub(super) fn raw(&self) -> &[u8] {
        &self.payload
    }

    fn twice(&self) -> [u8; NUMBER_BYTES] {
        let [a, b, c, d] = self.mask;
        [a, b, c, d, a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use super::{BINARY, CLOSE, Chunk, Frame, TEXT, masked, plain};
    use bytes::BytesMut;

    #[test]
    fn chunk_carries_its_number() {
        for bytes in [8, 125, 640, 3200, 70_000] {
            let chunk = Chunk::new(bytes);
            let mut wire = Vec::new();
            chunk.start(77, &mut wire);
            wire.extend_from_slice(chunk.tail());
            let mut buffer = BytesMut::from(wire.as_slice());
            let frame = Frame::next(&mut buffer).expect("a whole frame");
            assert_eq!((frame.kind, frame.len(), frame.number()), (BINARY, bytes, Some(77)));
            assert!(frame.text().iter().skip(8).enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn half_a_frame_waits() {
        let mut wire = masked(TEXT, b"hello");
        plain(&mut wire, CLOSE, &[3, 232]);
        for cut in 0..wire.len() {
            let mut buffer = BytesMut::from(wire.get(..cut).expect("within"));
            let texts: Vec<Vec<u8>> =
                std::iter::from_fn(|| Frame::next(&mut buffer)).map(|frame| frame.text()).collect();
            assert_eq!(texts, if cut < 11 { vec![] } else { vec![b"hello".to_vec()] }, "cut at {cut}");
        }
    }
}
