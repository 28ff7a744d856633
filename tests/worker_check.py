#!/usr/bin/env python3
"""Checks the reference speech worker (`clients/worker/`) as a client sees it: real process, real model.

    python tests/worker_check.py [--paced N]

Needs the packages of clients/worker/requirements.txt. Prints a line per check, then 'N passed, N failed';
exits 1 if one failed. `--paced N` only streams the sample N times in real time and prints the word error rates.
"""

import argparse
import asyncio
import json
import re
import struct
import subprocess
import sys
import time
import traceback
import urllib.request
import wave
from pathlib import Path

import numpy as np
import websockets

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "clients" / "worker"
SAMPLE = ROOT / "clients" / "sample" / "two_cities.wav"
REFERENCE = (ROOT / "clients" / "sample" / "two_cities.txt").read_text(encoding="utf-8")
ERRORS_MAX = 0.15  # word error rate
RATE = 16_000

CHECKS = []


def check(test):
    """Registers a check; its name, a fact, is what gets printed."""
    CHECKS.append(test)
    return test


class Running:
    """A worker process of our own."""

    def __init__(self, *options, stdin=subprocess.DEVNULL):
        command = [sys.executable, str(WORKER / "worker.py"), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.ready = json.loads(self.process.stdout.readline())
        self.url = self.ready["url"]

    def stop(self):
        """SIGTERM; gives the exit status, standard output and standard error."""
        self.process.terminate()
        return self.end()

    def end(self):
        out, err = self.process.communicate(timeout=10)
        return self.process.returncode, out.decode(), err.decode()

    def status(self) -> dict:
        with urllib.request.urlopen(self.url.replace("ws:", "http:") + "/v1/status", timeout=5) as reply:
            return json.load(reply)


def words(text: str) -> list:
    return re.findall(r"[a-z']+", text.lower())


def error_rate(said: str, reference: str = REFERENCE) -> float:
    """Word error rate: edits to make one text the other, over the words of the reference."""
    want, got = words(reference), words(said)
    row = list(range(len(got) + 1))
    for i, wanted in enumerate(want, start=1):
        above, row[0] = row[0], i
        for j, heard in enumerate(got, start=1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (wanted != heard))
    return row[-1] / len(want)


def pcm() -> np.ndarray:
    with wave.open(str(SAMPLE)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


SOUND = pcm()
SECONDS = len(SOUND) / RATE


def mulaw(samples: np.ndarray) -> bytes:
    size = np.minimum(np.abs(samples.astype(np.int32)), 32635) + 132
    step = np.floor(np.log2(size)).astype(np.int32) - 7
    code = (step << 4) | ((size >> (step + 3)) & 15) | np.where(samples < 0, 128, 0)
    return (~code & 255).astype(np.uint8).tobytes()


def wav_stream(samples: np.ndarray) -> bytes:
    """As ffmpeg streams it: a LIST chunk before the data, sizes unknown."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    extra = b"LIST" + struct.pack("<I", 5) + b"abcde\0"
    unknown = struct.pack("<I", 0xFFFFFFFF)
    return b"RIFF" + unknown + b"WAVE" + form + extra + b"data" + unknown + samples.tobytes()


class Heard:
    """Everything a stream was sent."""

    def __init__(self):
        self.messages, self.code, self.reason = [], None, None

    def of(self, kind: str) -> list:
        return [message for message in self.messages if message["type"] == kind]

    def finals(self) -> list:
        return [message for message in self.of("Results") if message["is_final"]]

    def text(self) -> str:
        return " ".join(m["channel"]["alternatives"][0]["transcript"] for m in self.finals())

    async def listen(self, socket):
        try:
            async for message in socket:
                self.messages.append(json.loads(message))
        except websockets.ConnectionClosedError:
            pass
        self.code, self.reason = socket.close_code, socket.close_reason


def listen_url(url: str, query: str) -> str:
    return f"{url}/v1/listen?model=general&interim_results=true&{query}"


LINEAR = f"encoding=linear16&sample_rate={RATE}"


async def stream(url: str, query: str, data: bytes, chunk: int, byte_rate: int, speed: float = 0) -> Heard:
    """Streams `data` in chunks, `speed` times real time (0: at once), to a clean end."""
    heard = Heard()
    async with websockets.connect(listen_url(url, query)) as socket:
        listening = asyncio.create_task(heard.listen(socket))
        begun = time.monotonic()
        for at in range(0, len(data), chunk):
            if speed:
                await asyncio.sleep(begun + at / byte_rate / speed - time.monotonic())
            await socket.send(data[at : at + chunk])
        await socket.send('{"type": "CloseStream"}')
        await asyncio.wait_for(listening, 120)
    return heard


def assert_clean(heard: Heard, seconds: float = SECONDS):
    """Right words, each final once and in order, Metadata last, close 1000."""
    rate = error_rate(heard.text())
    assert rate <= ERRORS_MAX, f"word error rate {rate:.3f}: {heard.text()}"
    assert (heard.code, heard.reason) == (1000, ""), (heard.code, heard.reason)
    assert not heard.of("Error"), heard.of("Error")
    metadata = heard.messages[-1]
    assert metadata["type"] == "Metadata" and len(heard.of("Metadata")) == 1
    assert abs(metadata["duration"] - seconds) < 0.001, metadata["duration"]
    starts = [final["start"] for final in heard.finals()]
    assert starts == sorted(starts) and len(set(starts)) == len(starts), starts
    for final in heard.finals():
        assert 0 <= final["start"] and final["start"] + final["duration"] <= seconds + 0.5, final


@check
async def sample_in_3200_byte_chunks(url):
    heard = await stream(url, LINEAR, SOUND.tobytes(), 3200, 2 * RATE, speed=4)
    assert_clean(heard)
    assert any(not message["is_final"] for message in heard.of("Results")), "no provisional words"


@check
async def sample_in_1323_byte_chunks(url):
    assert_clean(await stream(url, LINEAR, SOUND.tobytes(), 1323, 2 * RATE))


@check
async def sample_in_5_ms_chunks(url):
    assert_clean(await stream(url, LINEAR, SOUND.tobytes(), 160, 2 * RATE, speed=4))


@check
async def sample_as_linear32(url):
    data = (SOUND / 32768).astype("<f4").tobytes()
    assert_clean(await stream(url, f"encoding=linear32&sample_rate={RATE}", data, 1323, 4 * RATE))


@check
async def linear32_with_nan_goes_on(url):
    floats = (SOUND / 32768).astype("<f4")
    floats[1000:1010] = [np.nan, np.inf, -np.inf, 1e38, -1e38] * 2
    assert_clean(await stream(url, f"encoding=linear32&sample_rate={RATE}", floats.tobytes(), 6400, 4 * RATE))


@check
async def sample_as_mulaw(url):
    assert_clean(await stream(url, f"encoding=mulaw&sample_rate={RATE}", mulaw(SOUND), 1323, RATE))


@check
async def sample_as_wav_header_split(url):
    heard = await stream(url, "", wav_stream(SOUND)[:57], 7, 2 * RATE)
    assert heard.of("Metadata")[0]["duration"] == 0.0
    assert_clean(await stream(url, "", wav_stream(SOUND), 29, 2 * RATE))


@check
async def stereo_is_averaged(url):
    both = np.repeat(SOUND, 2).tobytes()
    assert_clean(await stream(url, LINEAR + "&channels=2", both, 4001, 4 * RATE))


@check
async def finals_only_without_interim(url):
    heard = Heard()
    plain = listen_url(url, LINEAR).replace("interim_results=true", "interim_results=false")
    async with websockets.connect(plain) as socket:
        await socket.send(SOUND.tobytes())
        await socket.send('{"type":"CloseStream"}')
        await heard.listen(socket)
    assert all(message["is_final"] for message in heard.of("Results"))
    assert_clean(heard)


@check
async def required_fields_are_there(url):
    heard = await stream(url, LINEAR, SOUND[: 5 * RATE].tobytes(), 3200, 2 * RATE)
    for result in heard.of("Results"):
        assert result["channel_index"] == [0, 1] and result["duration"] >= 0
        (alternative,) = result["channel"]["alternatives"]
        assert alternative["words"] == [] and alternative["confidence"] == 0.0
        assert set(result["metadata"]["model_info"]) == {"name", "version", "arch"}
        assert result["metadata"]["model_uuid"] and result["metadata"]["request_id"]
    fields = {"transaction_key", "request_id", "sha256", "created", "duration", "channels"}
    assert fields <= set(heard.messages[-1])


@check
async def finalize_keepalive_and_nonsense(url):
    heard, cut = Heard(), int(4.8 * RATE) * 2
    async with websockets.connect(listen_url(url, LINEAR)) as socket:
        listening = asyncio.create_task(heard.listen(socket))
        await socket.send(SOUND.tobytes()[:cut])
        await socket.send('{"type":"Finalize"}')
        for text in ('{"type":"KeepAlive"}', "no json", "[]", '{"type":"Unknown"}'):
            await socket.send(text)
        await socket.send(b"")
        await socket.send(SOUND.tobytes()[cut:])
        await socket.send('{"type":"Finalize"}')
        await socket.send('{"type":"Finalize"}')
        await socket.send('{"type":"CloseStream"}')
        await asyncio.wait_for(listening, 120)
    errors = heard.of("Error")
    assert [error["variant"] for error in errors] == ["SchemaError"] * 3
    assert errors[0]["message"] == "no json" and errors[0]["description"]
    kinds = ["from" if m.get("from_finalize") else m["type"] for m in heard.messages]
    assert kinds.count("from") == 3 and kinds.index("from") < kinds.index("Error")
    heard.messages = [message for message in heard.messages if message["type"] != "Error"]
    heard.messages = [m for m in heard.messages if m["type"] != "Results" or m["duration"]]
    assert_clean(heard)


@check
async def silence_gives_no_words(url):
    heard = await stream(url, LINEAR, bytes(6 * RATE), 3200, 2 * RATE)
    assert heard.text() == "" and heard.messages[-1]["duration"] == 3.0
    heard = await stream(url, LINEAR, b"", 1, 1)
    assert heard.messages[-1]["duration"] == 0.0
    assert heard.messages[-1]["sha256"].startswith("e3b0c44298fc1c14")


@check
async def backlog_holds_back_and_loses_nothing(url):
    heard, data = Heard(), SOUND.tobytes() * 4
    async with websockets.connect(listen_url(url, LINEAR), max_queue=None) as socket:
        listening = asyncio.create_task(heard.listen(socket))
        for at in range(0, len(data), 64_000):
            await socket.send(data[at : at + 64_000])
        await socket.send('{"type":"CloseStream"}')
        await asyncio.wait_for(listening, 150)
    assert error_rate(heard.text(), REFERENCE * 4) <= ERRORS_MAX, heard.text()
    assert abs(heard.messages[-1]["duration"] - 4 * SECONDS) < 0.001


@check
async def bytes_that_are_no_audio_end_in_1008(url):
    heard = Heard()
    async with websockets.connect(listen_url(url, "")) as socket:
        await socket.send(b"OggS" + bytes(100))
        await heard.listen(socket)
    assert (heard.code, heard.reason) == (1008, "DATA-0000")
    assert [message["type"] for message in heard.messages] == ["Error", "Metadata"]


async def refused(url: str, **more) -> tuple:
    """Status and body of a handshake that must not succeed."""
    try:
        async with websockets.connect(url, **more):
            raise AssertionError("the handshake was accepted")
    except websockets.InvalidStatus as answer:
        return answer.response.status_code, answer.response.body or b""


@check
async def bad_queries_are_refused(url):
    bad = ("encoding=opus&sample_rate=16000", "encoding=linear16", LINEAR + "&channels=0")
    for query in (*bad, "encoding=linear16&sample_rate=1e4", LINEAR + "&callback=http://127.0.0.1/"):
        status, body = await refused(listen_url(url, query))
        assert status == 400 and json.loads(body)["err_msg"], query
    assert (await refused(url + "/v2/other"))[0] == 404
    assert (await refused(listen_url(url, LINEAR), origin="http://127.0.0.1"))[0] == 403


@check
async def status_tells_engine_and_streams(_url):
    worker = Running("--streams", "2")
    try:
        async with websockets.connect(listen_url(worker.url, LINEAR)):
            status = await asyncio.to_thread(worker.status)
            assert (status["engine"], status["streams"], status["streams_max"]) == ("moonshine", 1, 2), status
            assert status["model"] and status["version"]
            async with websockets.connect(listen_url(worker.url, LINEAR)):
                assert (await refused(listen_url(worker.url, LINEAR)))[0] == 503
        while (await asyncio.to_thread(worker.status))["streams"]:
            await asyncio.sleep(0.05)
        for _ in range(3):  # whoever saw a clean end finds the place free
            await asyncio.gather(*(stream(worker.url, LINEAR, SOUND[:RATE].tobytes(), 3200, 2 * RATE) for _ in range(2)))
    finally:
        worker.stop()


@check
async def sigterm_gives_last_words_and_exit_0(_url):
    worker, heard = Running(), Heard()
    async with websockets.connect(listen_url(worker.url, LINEAR)) as socket:
        listening = asyncio.create_task(heard.listen(socket))
        await socket.send(SOUND[: int(4.6 * RATE)].tobytes())
        while not heard.messages:
            await asyncio.sleep(0.05)
        code, out, err = await asyncio.to_thread(worker.stop)
        await asyncio.wait_for(listening, 10)
    assert (heard.code, heard.reason) == (1012, "restart"), (heard.code, heard.reason)
    assert "worst" in heard.text().lower() and heard.messages[-1]["type"] == "Metadata"
    assert code == 0 and out == "", (code, out)
    assert "worst" not in err.lower(), "words in the log"


@check
async def dead_parent_leaves_no_orphan(_url):
    worker = Running("--exit-with-stdin", stdin=subprocess.PIPE)
    worker.process.stdin.close()
    assert await asyncio.to_thread(worker.process.wait, 10) == 0
    worker.process.stdout.close()
    worker.process.stderr.close()


@check
async def rotation_loses_and_doubles_nothing(_url):
    code = (
        "import json, os, sys; sys.path.insert(0, sys.argv[1]); import engine, numpy as np;"
        "engine.ROTATE_AFTER = 4.0; voice = engine.Engine().voice(16000);"
        "sound = np.frombuffer(sys.stdin.buffer.read(), '<i2').astype(np.float32) / 32768;"
        "parts = [sound[at:at + 8000] for at in range(0, len(sound), 8000)];"
        "lines = [line for part in parts for line in voice.feed(part)] + voice.finish();"
        "print(json.dumps([[l.text, l.start, l.duration] for l in lines if l.final]), flush=True); os._exit(0)"
    )
    command = [sys.executable, "-c", code, str(WORKER)]
    done = await asyncio.to_thread(subprocess.run, command, input=SOUND.tobytes() * 2, capture_output=True, timeout=150)
    lines = json.loads(done.stdout)
    rate = error_rate(" ".join(line[0] for line in lines), REFERENCE * 2)
    assert rate <= ERRORS_MAX, (rate, lines)
    assert all(a[1] < b[1] for a, b in zip(lines, lines[1:])), lines


async def paced(count: int):
    """Real-time runs with 100 ms chunks: the figures of the sample's README."""
    worker = Running()
    for number in range(1, count + 1):
        heard = await stream(worker.url, LINEAR, SOUND.tobytes(), 3200, 2 * RATE, speed=1)
        partials = len(heard.of("Results")) - len(heard.finals())
        rate = error_rate(heard.text())
        print(f"run {number}: word error rate {rate:.3f}, {len(heard.finals())} finals, {partials} partials, close {heard.code}")
        print("   ", heard.text())
    print("exit", worker.stop()[0])


async def run_all() -> int:
    worker, passed, failed = Running(), 0, 0
    for test in CHECKS:
        begun = time.monotonic()
        try:
            await asyncio.wait_for(test(worker.url), 200)
            passed += 1
            print(f"ok    {test.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"FAIL  {test.__name__}\n{traceback.format_exc()}", flush=True)
    code, _, err = worker.stop()
    if code != 0 or failed:
        print(f"worker exit {code}\n{err}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or code else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--paced", type=int, metavar="N", help="only N real-time runs, with their word error rates")
    options = parser.parse_args()
    if options.paced:
        asyncio.run(paced(options.paced))
        return 0
    return asyncio.run(run_all())


if __name__ == "__main__":
    sys.exit(main())
