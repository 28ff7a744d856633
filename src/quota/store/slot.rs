//! The hash slot of a key, as Redis Cluster counts it; pure.

/// The slot (0 .. 16383) of `key`: CRC16 of its hash tag, or of all of it when it has none.
pub fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % 16_384
}

/// What stands between the first `{` and the next `}`, unless that is nothing.
fn tag(key: &[u8]) -> &[u8] {
    let inside = |key: &'_ [u8]| -> Option<std::ops::Range<usize>> {
        let open = key.iter().position(|byte| *byte == b'{')? + 1;
        let length = key.get(open..)?.iter().position(|byte| *byte == b'}')?;
        (length > 0).then_some(open..open + length)
    };
    inside(key).and_then(|range| key.get(range)).unwrap_or(key)
}

/// CRC16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        let place = usize::from((crc >> 8) ^ u16::from(*byte));
        (crc << 8) ^ TABLE.get(place).copied().unwrap_or_default()
    })
}

const TABLE: [u16; 256] = table();

#[expect(clippy::indexing_slicing, reason = "runs at compile time, where a fault stops the build")]
const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut place: u16 = 0;
    while place < 256 {
        let mut crc = place << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[place as usize] = crc;
        place += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_equal_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (key, expected) in [("foo", 12182), ("bar", 5061), ("{foo}.x", 12182), ("a{foo}{bar}", 12182)] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn empty_tag_is_no_tag() {
        assert_eq!(tag(b"foo{}{bar}"), b"foo{}{bar}");
        assert_eq!(tag(b"foo{{bar}}zap"), b"{bar");
        assert_eq!(tag(b"foo{bar"), b"foo{bar");
    }
}
