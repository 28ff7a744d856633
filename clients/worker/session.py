"""One stream: audio from the socket to the engine, words back, until someone ends it.

The reader decodes and queues; the pump feeds what is queued to the engine, one bounded step at a time,
and sends what the engine says. Neither holds more than BUFFER seconds: a full queue stops the reading
of the socket, and so holds back the sender; nothing is dropped. Never logs audio or words.
"""

import asyncio
import hashlib
import json
import logging
from collections import deque
from dataclasses import dataclass

import numpy as np
from websockets.exceptions import ConnectionClosed

from audio import EMPTY, AudioFault
from engine import Engine, Line
from messages import Ask, Writer

STEP = 0.5  # seconds of audio that make a look worth its cost, with provisional results
STEP_FINAL = 1.0  # the same without them
TAKE = 4.0  # most seconds of audio in one engine step, so that streams take turns
BUFFER = 30.0  # seconds of audio queued before the socket is no longer read
LULL = 1.0  # seconds without new audio after which a rest shorter than a step is heard too
ECHO = 200  # characters of an unreadable message that are sent back

log = logging.getLogger("worker")


@dataclass(frozen=True)
class Ending:
    """Why a stream ends. No `code`: the peer is gone. With a `description`, an Error goes out first."""

    word: str
    code: int = 0
    reason: str = ""
    description: str = ""


DONE = Ending("done", 1000)
GONE = Ending("gone")
IDLE = Ending("idle", 1011, "NET-0001", "Neither audio nor KeepAlive came in time.")
ENGINE = Ending("engine", 1011, "NET-0000", "The speech engine failed.")
RESTART = Ending("restart", 1012, "restart")


class Session:
    """A stream from its handshake to its close."""

    def __init__(self, socket, ask: Ask, engine: Engine, idle: float, leave):
        """`leave` is called once the stream costs nothing any more, before the peer can know of its end."""
        self.socket, self.ask, self.engine, self.idle, self.leave = socket, ask, engine, idle, leave
        self.writer = Writer(engine, ask)
        self.decoder = ask.decoder()
        self.voice = None
        self.queue: deque = deque()
        self.queued = self.heard = 0  # samples waiting, samples in all
        self.digest = hashlib.sha256()
        self.turn = asyncio.Lock()  # one engine step at a time
        self.wake, self.room = asyncio.Event(), asyncio.Event()
        self.room.set()
        self.closing = False
        self.reader = self.pump = None

    async def run(self) -> Ending:
        """Serves the stream to its end; returns when the socket is closed and the engine's part freed."""
        self.reader = asyncio.create_task(self._read())
        self.pump = asyncio.create_task(self._feed())
        try:
            await asyncio.wait({self.reader, self.pump}, return_when=asyncio.FIRST_COMPLETED)
            ending = await self._stop_tasks()
            return await self._say_goodbye(ending)
        finally:
            await self._free_voice()

    def drain(self):
        """Asks the stream to end now, with the words of all audio that came so far."""
        if self.reader is not None:
            self.reader.cancel()

    @property
    def rate(self) -> int:
        """Samples a second; 0 while an announced header has not come."""
        return self.decoder.form.rate if self.decoder.form else 0

    @property
    def waiting(self) -> float:
        """Seconds of audio queued for the engine."""
        return self.queued / self.rate if self.rate else 0.0

    async def _read(self) -> Ending:
        while True:
            try:
                message = await asyncio.wait_for(self.socket.recv(), self.idle or None)
            except asyncio.TimeoutError:
                return IDLE
            except ConnectionClosed:
                return GONE
            if isinstance(message, bytes):
                try:
                    await self._hear(message)
                except AudioFault as fault:
                    return Ending("audio", 1008, "DATA-0000", str(fault))
            elif await self._obey(message):
                return DONE

    async def _hear(self, data: bytes):
        """Queues audio; waits here while the queue is full. An empty message means nothing."""
        samples = self.decoder.push(data)
        self.digest.update(data)
        if len(samples) == 0:
            return
        self.queue.append(samples)
        self.queued += len(samples)
        self.heard += len(samples)
        self.wake.set()
        if self.waiting > BUFFER:
            self.room.clear()
            await self.room.wait()

    async def _obey(self, text: str) -> bool:
        """Does what a text message asks; True if it ends the stream."""
        try:
            kind = json.loads(text).get("type")
        except (ValueError, AttributeError, RecursionError):
            kind = None
        if kind == "CloseStream":
            return True
        if kind == "Finalize":
            # Shielded: a drain must not tear an engine step from the words that it gives.
            await asyncio.shield(asyncio.ensure_future(self._flush(answer=True)))
        elif kind != "KeepAlive":
            fault = "The message is not one of KeepAlive, Finalize, CloseStream."
            await self._send(self.writer.error("SchemaError", fault, text[:ECHO]))
        return False

    async def _feed(self):
        """The pump: lives as long as the stream, ends early only by an engine fault."""
        step = STEP if self.ask.interim else STEP_FINAL
        while not self.closing:
            try:
                await asyncio.wait_for(self.wake.wait(), LULL)
            except asyncio.TimeoutError:
                pass
            lull = not self.wake.is_set()
            self.wake.clear()
            while not self.closing and self.queued and (lull or self.waiting >= step):
                async with self.turn:
                    await self._step()

    async def _step(self):
        """Lets the engine hear some of the queue, and sends what it says. Needs the turn."""
        samples = self._take()
        if len(samples) == 0:
            return
        if self.voice is None:
            self.voice = await self._on_engine(self.engine.voice, self.rate)
        for line in await self._on_engine(self.voice.feed, samples):
            if line.final or self.ask.interim:
                await self._send(self.writer.results(line))

    def _take(self) -> np.ndarray:
        """Up to TAKE seconds off the queue, as one array."""
        parts, most = [], int(TAKE * self.rate)
        while self.queue and most > 0:
            part = self.queue.popleft()
            if len(part) > most:
                self.queue.appendleft(part[most:])
                part = part[:most]
            most -= len(part)
            parts.append(part)
        taken = np.concatenate(parts) if parts else EMPTY
        self.queued -= len(taken)
        if self.waiting <= BUFFER - TAKE:
            self.room.set()
        return taken

    async def _flush(self, answer: bool):
        """All audio so far becomes final words; with `answer` the last of them says `from_finalize`."""
        async with self.turn:
            while self.queued:
                await self._step()
            lines = await self._on_engine(self.voice.finish) if self.voice else []
            if answer and not lines:
                at = self.heard / self.rate if self.rate else 0.0
                lines = [Line("", round(at, 3), 0.0, True)]
            for number, line in enumerate(lines, start=1):
                await self._send(self.writer.results(line, answer and number == len(lines)))

    async def _stop_tasks(self) -> Ending:
        """Ends reader and pump, whichever still runs, and says how the stream ended."""
        if self.reader.done():
            ending = RESTART if self.reader.cancelled() else self.reader.result()
        else:
            ending = ENGINE
            self.reader.cancel()
            await asyncio.wait({self.reader})
        self.closing = True
        self.wake.set()
        await asyncio.wait({self.pump})
        fault = self.pump.exception()
        if fault is not None:
            log.error("engine step failed: %s", type(fault).__name__)
            return ENGINE
        return ending

    async def _say_goodbye(self, ending: Ending) -> Ending:
        """Last words, Metadata and the close frame, as far as the peer is still there."""
        if not ending.code:
            return ending
        if ending is not ENGINE:
            await self._flush(answer=False)
        await self._free_voice()
        if ending.description:
            await self._send(self.writer.error(ending.reason, ending.description))
        duration = self.heard / self.rate if self.rate else 0.0
        await self._send(self.writer.metadata(duration, self.digest.hexdigest()))
        await self.socket.close(ending.code, ending.reason)
        return ending

    async def _free_voice(self):
        voice, self.voice = self.voice, None
        if voice is not None:
            await self._on_engine(voice.close)
        self.leave()

    async def _send(self, text: str):
        """Sends unless the peer is gone, which the reader finds out by itself."""
        try:
            await self.socket.send(text)
        except ConnectionClosed:
            pass

    async def _on_engine(self, call, *args):
        return await asyncio.get_running_loop().run_in_executor(self.engine.thread, call, *args)
