"""Turns the bytes of one stream into mono float samples, however the bytes were cut.

Pure: bytes in, arrays out; no socket, clock or log. Never trusts a size written in a header.
"""

import struct
from dataclasses import dataclass
from typing import Optional

import numpy as np

RATE_MIN, RATE_MAX = 4_000, 192_000  # Hz
CHANNELS_MAX = 20
HEADER_MAX = 64 * 1024  # bytes of WAV header before the first sample


class AudioFault(ValueError):
    """The bytes are not the audio that was announced."""


@dataclass(frozen=True)
class Format:
    """How raw audio is coded: `kind` is a key of `KINDS`, `rate` in Hz, `channels` interleaved."""

    kind: str
    rate: int
    channels: int

    def __post_init__(self):
        if not RATE_MIN <= self.rate <= RATE_MAX:
            raise AudioFault(f"sample rate must be {RATE_MIN} to {RATE_MAX} Hz")
        if not 1 <= self.channels <= CHANNELS_MAX:
            raise AudioFault(f"channels must be 1 to {CHANNELS_MAX}")

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample on every channel."""
        return KINDS[self.kind][0] * self.channels


class Decoder:
    """Raw bytes of one known format to mono samples in -1..1; keeps an incomplete frame for later."""

    def __init__(self, form: Format):
        self.form = form
        self._rest = b""

    def push(self, data: bytes) -> np.ndarray:
        """The samples completed by `data`, all channels averaged into one."""
        data = self._rest + data
        whole = len(data) - len(data) % self.form.frame_bytes
        self._rest = data[whole:]
        flat = KINDS[self.form.kind][1](data[:whole])
        if self.form.channels > 1:
            flat = flat.reshape(-1, self.form.channels).mean(axis=1)
        return np.ascontiguousarray(flat, dtype=np.float32)


class WavDecoder:
    """A stream that carries its own WAV header: reads the header, then is a `Decoder`."""

    def __init__(self):
        self.form: Optional[Format] = None
        self._header = bytearray()
        self._decoder: Optional[Decoder] = None

    def push(self, data: bytes) -> np.ndarray:
        """The samples completed by `data`; none while the header is incomplete. AudioFault if it is no WAV."""
        if self._decoder is not None:
            return self._decoder.push(data)
        self._header += data
        parsed = parse_wav_header(bytes(self._header))
        if parsed is None:
            if len(self._header) > HEADER_MAX:
                raise AudioFault("no audio in the first 64 KiB of the WAV stream")
            return EMPTY
        self.form, start = parsed
        self._decoder = Decoder(self.form)
        first = bytes(self._header[start:])
        self._header.clear()
        return self._decoder.push(first)


def parse_wav_header(head: bytes) -> Optional[tuple]:
    """(Format, where the samples start), or None if more bytes are needed. AudioFault if it is no WAV.

    Sizes may be 0 or all ones in a streamed file; only those of chunks before the data are used.
    """
    if not b"RIFF".startswith(head[:4]) or not b"WAVE".startswith(head[8:12]):
        raise AudioFault("without an encoding the audio must start with a WAV header")
    at, form = 12, None
    while len(head) >= at + 8:
        name, size = head[at : at + 4], struct.unpack_from("<I", head, at + 4)[0]
        at += 8
        if name == b"data":
            if form is None:
                raise AudioFault("the WAV stream has no format before its data")
            return form, at
        if size > HEADER_MAX:
            raise AudioFault("a chunk of the WAV header is too large")
        if name == b"fmt ":
            if len(head) < at + size:
                return None
            form = parse_wav_format(head[at : at + size])
        at += size + size % 2
    return None


def parse_wav_format(body: bytes) -> Format:
    """The `fmt ` chunk; AudioFault when its coding is not one of ours."""
    if len(body) < 16:
        raise AudioFault("the WAV format chunk is too short")
    tag, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", body)
    if tag == 0xFFFE and len(body) >= 26:
        tag = struct.unpack_from("<H", body, 24)[0]
    kind = WAV_KINDS.get((tag, bits))
    if kind is None:
        raise AudioFault(f"WAV coding {tag} with {bits} bits is not supported")
    form = Format(kind, rate, channels)
    if align != form.frame_bytes:
        raise AudioFault("the WAV header contradicts itself")
    return form


def decoder_for(encoding: Optional[str], rate: Optional[int], channels: int):
    """The decoder for what a client announced; no encoding means that a WAV header comes in the stream."""
    if encoding is None:
        return WavDecoder()
    if encoding not in ENCODINGS:
        raise AudioFault(f"encoding must be one of {', '.join(ENCODINGS)}, or absent for WAV")
    if rate is None:
        raise AudioFault("sample_rate is needed with an encoding")
    return Decoder(Format(encoding, rate, channels))


def _ints(dtype: str, scale: float):
    return lambda raw: np.frombuffer(raw, dtype).astype(np.float32) / np.float32(scale)


def _floats(dtype: str):
    """Floats from outside may be anything: one NaN would silence the model for the rest of the stream."""

    def decode(raw: bytes) -> np.ndarray:
        wide = np.frombuffer(raw, dtype).astype(np.float64)
        return np.clip(np.nan_to_num(wide, posinf=1.0, neginf=-1.0), -1.0, 1.0)

    return decode


def _table(table: np.ndarray):
    return lambda raw: table[np.frombuffer(raw, np.uint8)]


def _bytes8(raw: bytes) -> np.ndarray:
    return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / np.float32(128)


def _ints24(raw: bytes) -> np.ndarray:
    parts = np.frombuffer(raw, np.uint8).reshape(-1, 3).astype(np.int32)
    value = parts[:, 0] | parts[:, 1] << 8 | parts[:, 2] << 16
    return (value - ((value & 0x800000) << 1)).astype(np.float32) / np.float32(1 << 23)


def _mulaw_table() -> np.ndarray:
    code = ~np.arange(256, dtype=np.uint8)
    size = ((((code & 15).astype(np.int32) << 3) + 132) << ((code >> 4) & 7)) - 132
    return (np.where(code & 128, -size, size) / 32768).astype(np.float32)


def _alaw_table() -> np.ndarray:
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    low, step = (code & 15).astype(np.int32) << 4, ((code >> 4) & 7).astype(np.int32)
    size = np.where(step == 0, low + 8, (low + 264) << np.maximum(step - 1, 0))
    return (np.where(code & 128, size, -size) / 32768).astype(np.float32)


# kind -> (bytes of one sample, bytes to floats)
KINDS = {
    "linear16": (2, _ints("<i2", 1 << 15)),
    "linear32": (4, _floats("<f4")),
    "mulaw": (1, _table(_mulaw_table())),
    "alaw": (1, _table(_alaw_table())),
    "unsigned8": (1, _bytes8),
    "integer24": (3, _ints24),
    "integer32": (4, _ints("<i4", 1 << 31)),
    "float64": (8, _floats("<f8")),
}
ENCODINGS = ("linear16", "linear32", "mulaw", "alaw")
WAV_KINDS = {
    (1, 8): "unsigned8",
    (1, 16): "linear16",
    (1, 24): "integer24",
    (1, 32): "integer32",
    (3, 32): "linear32",
    (3, 64): "float64",
    (6, 8): "alaw",
    (7, 8): "mulaw",
}
EMPTY = np.zeros(0, dtype=np.float32)
