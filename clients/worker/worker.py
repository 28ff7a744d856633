#!/usr/bin/env python3
"""A speech worker: a small English model behind the Deepgram live protocol, on the CPU, offline.

    python worker.py --port 8090
    {"ready": true, "url": "ws://127.0.0.1:8090", "engine": "moonshine"}

Serves `GET /v1/listen` (WebSocket) and `GET /v1/status` (JSON). No authentication: keep it on loopback
or a private network, behind a gateway. SIGTERM: no new streams, running ones get their last words.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from urllib.parse import urlsplit

try:
    from websockets.asyncio.server import serve
    from websockets.datastructures import Headers
    from websockets.http11 import Response

    from audio import AudioFault
    from engine import Engine
    from messages import parse_ask
    from session import Session
except ImportError as missing:
    requirements = os.path.join(os.path.dirname(os.path.abspath(__file__)), "requirements.txt")
    sys.exit(f"worker: {missing}; install what it needs: {sys.executable} -m pip install -r {requirements}")

VERSION = "0.1.0"
MESSAGE_MAX = 1 << 20  # bytes of one message; beyond, close 1009
DRAIN = 5.0  # seconds running streams get for their last words after SIGTERM
# Pings wait behind audio that is not read yet: so little of it may pile up below the 30 s we hold ourselves.
FRAMES_MAX, RECEIVE_BYTES = 4, 128 * 1024
PING, PONG = 20, 60  # seconds between pings; and to a pong, which waits while the queue is full
STATUSES = {200: "OK", 400: "Bad Request", 404: "Not Found", 426: "Upgrade Required", 503: "Service Unavailable"}

log = logging.getLogger("worker")


class Worker:
    """The server: who may come in, who is in, and how all of them leave."""

    def __init__(self, engine: Engine, streams_max: int, idle: float):
        self.engine, self.streams_max, self.idle = engine, streams_max, idle
        self.slots: set = set()  # connections that count as streams
        self.sessions: set = set()  # those of them, and of the ones just leaving, that have begun
        self.draining = False
        self.started = time.monotonic()

    def admit(self, connection, request):
        """Answers a request: None to go on with the WebSocket handshake, or a response that ends it."""
        url = urlsplit(request.path)
        if url.path in ("/v1/status", "/v1/status/engine"):
            return answer(200, self.status())
        if url.path != "/v1/listen":
            return refusal(404, "NOT_FOUND", "This worker serves /v1/listen and /v1/status.")
        try:
            ask = parse_ask(url.query)
        except (AudioFault, ValueError) as fault:
            return refusal(400, "INVALID_QUERY_PARAMETER", str(fault))
        if self.draining:
            return refusal(503, "SERVICE_UNAVAILABLE", "This worker is shutting down.")
        if len(self.slots) >= self.streams_max:
            return refusal(503, "SERVICE_UNAVAILABLE", "All streams of this worker are taken.")
        if "websocket" not in request.headers.get("Upgrade", "").lower():
            return refusal(426, "UPGRADE_REQUIRED", "This is a WebSocket endpoint.")
        connection.session = Session(connection, ask, self.engine, self.idle, lambda: self.slots.discard(connection))
        connection.keeper = asyncio.create_task(self._free_if_unused(connection))
        self.slots.add(connection)
        return None

    def greet(self, connection, _request, response):
        """Gives every accepted handshake its request id."""
        if response.status_code == 101:
            response.headers["dg-request-id"] = connection.session.writer.request_id
        return response

    async def handle(self, connection):
        """One stream, from the accepted handshake to its end."""
        session, begun = connection.session, time.monotonic()
        name = session.writer.request_id
        self.sessions.add(session)
        for warning in session.ask.warnings:
            log.warning("stream %s: %s", name, warning)
        try:
            ending = await session.run()
            audio = session.heard / session.rate if session.rate else 0.0
            took = time.monotonic() - begun
            log.info("stream %s ended: %s, %.2f s of audio in %.2f s", name, ending.word, audio, took)
        except Exception as fault:  # one stream's bug must not take the others along
            log.error("stream %s failed: %s", name, type(fault).__name__)
            raise
        finally:
            self.sessions.discard(session)
            self.slots.discard(connection)

    async def drain(self):
        """No new streams; running ones are ended with their last words, in at most DRAIN seconds."""
        self.draining = True
        until = time.monotonic() + DRAIN
        for session in self.sessions:
            session.drain()
        while self.sessions and time.monotonic() < until:
            await asyncio.sleep(0.02)
        if self.sessions:
            log.warning("%d streams did not end in time", len(self.sessions))

    def status(self) -> dict:
        """What a gateway wants to know before it sends a stream here."""
        return {
            "status": "draining" if self.draining else "ok",
            "engine": self.engine.name,
            "model": self.engine.model_info["name"],
            "model_version": self.engine.model_info["version"],
            "version": VERSION,
            "streams": len(self.slots),
            "streams_max": self.streams_max,
            "queued_seconds": round(sum(session.waiting for session in self.sessions), 3),
            "uptime_seconds": round(time.monotonic() - self.started, 3),
        }

    async def _free_if_unused(self, connection):
        """A handshake that fails after `admit` never becomes a session: its slot is freed here."""
        await connection.wait_closed()
        if connection.session not in self.sessions:
            self.slots.discard(connection)


def answer(status: int, body: dict, **headers: str) -> Response:
    """A JSON response, after which the connection is closed."""
    text = json.dumps(body).encode()
    fields = {"Content-Type": "application/json", "Content-Length": str(len(text)), "Connection": "close"}
    return Response(status, STATUSES[status], Headers({**fields, **headers}), text)


def refusal(status: int, code: str, text: str) -> Response:
    """A refusal in the shape the vendor's SDKs expect."""
    return answer(status, {"err_code": code, "err_msg": text}, **{"dg-error": text.splitlines()[0][:200]})


async def run(options, stdout: int):
    """Loads the engine, serves until told to stop, drains."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.exit_with_stdin:
        threading.Thread(target=watch_stdin, args=(loop, stop), daemon=True).start()
    worker = Worker(await asyncio.to_thread(Engine), options.streams, options.idle)
    limits = {"max_size": MESSAGE_MAX, "max_queue": FRAMES_MAX, "ping_interval": PING, "ping_timeout": PONG}
    server = await serve(
        worker.handle,
        options.host,
        options.port,
        process_request=worker.admit,
        process_response=worker.greet,
        compression=None,
        origins=[None],  # no page in a browser may use a worker behind the gateway's back
        open_timeout=10,
        close_timeout=2,
        **limits,
    )
    for listener in server.sockets:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    host, port = server.sockets[0].getsockname()[:2]
    url = f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"
    os.write(stdout, json.dumps({"ready": True, "url": url, "engine": worker.engine.name}).encode() + b"\n")
    log.info("serving %s, %d streams", url, options.streams)
    await stop.wait()
    log.info("draining")
    await worker.drain()


def watch_stdin(loop, stop: asyncio.Event):
    """Stops the worker when its parent is gone: then stdin, a pipe of the parent's, ends."""
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)


def parse_options():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=8090, help="port, 0 for any free one (default %(default)s)")
    parser.add_argument("--streams", type=int, default=4, help="most streams at once (default %(default)s)")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds without a message before a stream is ended, 0 for never (default %(default)s)")
    parser.add_argument("--engine", choices=["moonshine"], default="moonshine", help="the speech engine")
    parser.add_argument("--exit-with-stdin", action="store_true", help="stop when stdin ends, so when the parent dies")
    parser.add_argument("--version", action="version", version=VERSION)
    options = parser.parse_args()
    if options.streams < 1 or options.idle < 0:
        parser.error("--streams must be at least 1, --idle at least 0")
    return options


def main():
    """Runs to the end and leaves by `os._exit`: the model's library can crash while it is unloaded."""
    options = parse_options()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    # Standard output carries one line only; what native code might print goes to standard error.
    stdout = os.dup(1)
    os.dup2(2, 1)
    code = 0
    try:
        asyncio.run(run(options, stdout))
    except OSError as fault:
        log.error("cannot serve: %s", fault)
        code = 1
    except Exception as fault:
        log.error("stopped by %s: %s", type(fault).__name__, fault)
        code = 1
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
