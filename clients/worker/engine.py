"""The speech model: one engine, one thread, any number of voices (one voice per stream).

Every call into the model runs on the engine's own thread, in order of asking; so streams share the
machine fairly as long as each asks for one bounded step at a time. Never touches a socket.
"""

import ctypes
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from moonshine_voice import ModelArch, Transcriber
from moonshine_voice.utils import get_model_path

ROTATE_AFTER = 120.0  # seconds of audio; the model keeps over 1 MB for each, so it gets a fresh stream then
TAIL = 10.0  # seconds of audio kept, so that a fresh stream starts where the last finished line ended
MODEL = "tiny-en"
FORCE = Transcriber.MOONSHINE_FLAG_FORCE_UPDATE
NEVER = 1e12  # seconds; we say ourselves when the model shall look at what it has


@dataclass(frozen=True)
class Line:
    """Words with their place in the stream (seconds). `final` lines are said once and never revised."""

    text: str
    start: float
    duration: float
    final: bool


class Engine:
    """The loaded model and its thread. Loading takes about a second and 200 MB."""

    name = "moonshine"

    def __init__(self):
        # Audio inside results would be copied into Python lists at every look: minutes make that seconds.
        options = {"return_audio_data": "false"}
        path = str(get_model_path(MODEL))
        self._model = Transcriber(path, ModelArch.TINY, update_interval=NEVER, options=options)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        release = version("moonshine-voice")
        self.model_info = {"name": f"moonshine-{MODEL}", "version": release, "arch": "moonshine"}
        self.model_uuid = str(uuid.uuid5(uuid.NAMESPACE_URL, f"moonshine-voice/{release}/{MODEL}"))

    def voice(self, rate: int) -> "Voice":
        """A recogniser for one stream of `rate` Hz. To be called, and used, on the engine's thread only."""
        return Voice(self._model, rate)


class Voice:
    """One stream's recogniser. Rotates the model's stream now and then; times keep counting."""

    def __init__(self, model: Transcriber, rate: int):
        self._model, self._rate = model, rate
        self._tail = np.zeros(0, dtype=np.float32)
        self._heard = 0  # samples in all
        self._done = 0  # where the last finished line ended, in samples
        self._speaking = False  # whether a line is in progress
        self._origin = 0  # where in the stream the model's present stream began, in samples
        self._stream = self._open()
        self._told: set = set()  # lines of the present stream that were finished
        self._shown: set = set()  # lines of which a provisional text went out

    def feed(self, samples: np.ndarray) -> list:
        """Hears `samples` and says what is new: provisional lines, and each finished line once."""
        self._hear(samples)
        self._stream.add_audio(samples, self._rate)
        lines = self._news(self._stream.update_transcription(0))
        due = self._heard - self._origin >= ROTATE_AFTER * self._rate
        if due and (not self._speaking or any(line.final for line in lines)):
            self._rotate()
        return lines

    def finish(self) -> list:
        """Finishes the line in progress, as at the end of the stream. More audio may follow."""
        if self._heard == self._origin:
            return []
        first = self._news(self._stream.update_transcription(FORCE))
        lines = [line for line in first if line.final] + self._news(self._stream.stop())
        self._restart(self._heard)
        return [line for line in lines if line.final]

    def close(self):
        """Frees the model's stream; nothing may be called after it."""
        self._stream.close()
        give_memory_back()

    def _open(self):
        stream = self._model.create_stream()
        stream.start()
        return stream

    def _hear(self, samples: np.ndarray):
        self._heard += len(samples)
        keep = int(TAIL * self._rate)
        self._tail = np.concatenate((self._tail, samples))[-keep:]

    def _news(self, transcript) -> list:
        found = transcript.lines if transcript is not None else []
        self._speaking = any(not line.is_complete for line in found)
        lines = []
        for line in found:
            if line.line_id in self._told:
                continue
            text = line.text.strip()
            if line.is_complete:
                self._told.add(line.line_id)
                end = self._origin + int((line.start_time + line.duration) * self._rate)
                self._done = min(max(self._done, end), self._heard)
                if text or line.line_id in self._shown:
                    lines.append(self._placed(line, text, True))
            elif text and line.has_text_changed:
                self._shown.add(line.line_id)
                lines.append(self._placed(line, text, False))
        return lines

    def _placed(self, line, text: str, final: bool) -> Line:
        start = self._origin / self._rate + line.start_time
        return Line(text, round(start, 3), round(line.duration, 3), final)

    def _rotate(self):
        """Starts a fresh stream behind the last finished line; what came after it is heard again."""
        kept = min(self._heard - self._done, len(self._tail))
        again = self._tail[len(self._tail) - kept :]
        self._restart(self._heard - kept)
        if kept:
            self._stream.add_audio(again, self._rate)

    def _restart(self, origin: int):
        fresh = self._open()
        self._stream.close()
        give_memory_back()
        self._stream, self._origin = fresh, origin
        self._told.clear()
        self._shown.clear()


def give_memory_back():
    """Returns freed memory to the system, where the C library can: unasked it keeps about 5 MB a stream."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        pass  # not glibc
