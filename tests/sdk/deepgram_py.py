#!/usr/bin/env python3
"""Streams a WAV file through the vendor's own deepgram-sdk, sync or async, and prints what an application sees.

    deepgram_py.py BASE_URL FILE.wav [options]

Every event is one JSON line on stdout. Exit status:
  0  handshake accepted, Metadata received, server closed with 1000, no error on the way
  2  bad arguments or unreadable WAV
  3  handshake refused (the line {"event": "rejected", "status": ...} says how)
  4  the stream ended any other way
"""
import argparse
import asyncio
import json
import sys
import threading
import time
import wave

from deepgram import AsyncDeepgramClient, DeepgramClient
from deepgram.core.api_error import ApiError
from deepgram.core.events import EventType
from deepgram.environment import DeepgramClientEnvironment

ODD_FRAME = 1323  # bytes; neither a whole number of samples nor of milliseconds at any usual rate


class Journal:
    """Prints events and remembers what the verdict needs."""

    def __init__(self):
        self.begin, self.lock = time.monotonic(), threading.Lock()
        self.metadata, self.failed, self.messages = False, False, 0

    def line(self, event, **fields):
        with self.lock:
            stamp = round(time.monotonic() - self.begin, 3)
            print(json.dumps({"t": stamp, "event": event, **fields}, default=str), flush=True)

    def message(self, message):
        self.messages += 1
        if isinstance(message, (bytes, bytearray)):
            self.line("binary", len=len(message))
            return
        body = message.dict() if hasattr(message, "dict") else message
        self.metadata |= isinstance(body, dict) and body.get("type") == "Metadata"
        self.line("message", cls=type(message).__name__, data=body)

    def error(self, error, event="error"):
        self.failed = True
        self.line(event, type=type(error).__name__, text=str(error))

    def timeout(self, seconds):
        self.failed = True
        self.line("timeout", seconds=seconds)

    def refused(self, error):
        """The sync client lets the websockets exception through, the async one wraps it in ApiError."""
        kind, response = type(error).__name__, getattr(error, "response", None)
        if isinstance(error, ApiError):  # its headers are those of the request, so they are not printed
            self.line("rejected", status=error.status_code, type=kind, body=error.body)
        elif response is not None:
            body = response.body.decode("utf-8", "replace") if response.body else None
            self.line("rejected", status=response.status_code, type=kind, headers=dict(response.headers.raw_items()),
                      body=body)
        else:
            self.line("rejected", status=None, type=kind, text=str(error))
        return 3

    def verdict(self, code):
        clean = code == 1000 and self.metadata and not self.failed
        self.line("verdict", clean=clean, close_code=code, metadata=self.metadata, messages=self.messages)
        return 0 if clean else 4


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("base_url", help="http(s):// or ws(s)://host:port[/prefix]")
    parser.add_argument("wav")
    parser.add_argument("--api-key", default="test-key")
    parser.add_argument("--access-token", help="send 'Authorization: bearer TOKEN' in place of the key")
    parser.add_argument("--grant", action="store_true", help="swap the key for a short-lived token first")
    parser.add_argument("--ttl", type=int, help="its life in seconds; the SDK's own default if not given")
    parser.add_argument("--model", default="nova-3")
    parser.add_argument("--param", action="append", default=[], metavar="K=V", help="a further query parameter")
    parser.add_argument("--chunk-ms", type=int, default=100)
    parser.add_argument("--split", choices=["even", "odd"], default="even", help=f"odd: frames of {ODD_FRAME} bytes")
    parser.add_argument("--speed", type=float, default=1.0, help="1 is real time, 0 is as fast as possible")
    parser.add_argument("--raw-frames", type=int, default=0, help="stop after this many chunks")
    parser.add_argument("--finalize-at", type=int, default=0, help="send Finalize after this many chunks")
    parser.add_argument("--keepalive-at", type=int, default=0, help="send KeepAlive after this many chunks")
    parser.add_argument("--wait", type=float, default=15.0, help="seconds to wait for the server to close")
    parser.add_argument("--async", dest="use_async", action="store_true")
    return parser.parse_args()


class Source:
    """The WAV file cut into messages, and how long each of them lasts."""

    def __init__(self, args):
        try:
            with wave.open(args.wav, "rb") as file:
                if file.getsampwidth() != 2:
                    raise wave.Error("need 16-bit PCM")
                self.rate, self.channels = file.getframerate(), file.getnchannels()
                self.pcm = file.readframes(file.getnframes())
        except (OSError, EOFError, wave.Error) as error:
            print(f"{args.wav}: {error}", file=sys.stderr)
            sys.exit(2)
        even = max(1, self.rate * args.chunk_ms // 1000) * 2 * self.channels
        self.step = ODD_FRAME if args.split == "odd" else even
        self.pause = self.step / (2 * self.channels * self.rate * args.speed) if args.speed else 0
        self.most = args.raw_frames

    def __iter__(self):
        for number, begin in enumerate(range(0, len(self.pcm), self.step), 1):
            yield number, self.pcm[begin:begin + self.step]
            if number == self.most:
                return


def terms(args):
    return {} if args.ttl is None else {"ttl_seconds": args.ttl}


def environment(base):
    http = base.rstrip("/").replace("ws://", "http://").replace("wss://", "https://")
    ws = http.replace("http://", "ws://").replace("https://", "wss://")
    return DeepgramClientEnvironment(base=http, production=ws, agent=ws, agent_rest=http)


def credentials(args):
    if args.access_token:
        return {"access_token": args.access_token}
    return {"api_key": args.api_key}


def query(args, source):
    extra = {}
    for pair in args.param:
        name, _, value = pair.partition("=")
        extra.setdefault(name, []).append(value)
    extra = {name: values if len(values) > 1 else values[0] for name, values in extra.items()}
    return dict(model=args.model, encoding="linear16", sample_rate=source.rate, channels=source.channels,
                interim_results=True, request_options={"additional_query_parameters": extra})


def watch(connection, journal):
    """Subscribes the journal to a connection and gives its websocket."""
    socket = connection._websocket
    # The async SDK may still stand on the older client of the websockets package.
    response = getattr(socket, "response", None)
    headers = response.headers if response is not None else socket.response_headers
    journal.line("handshake", headers=dict(headers.raw_items()), subprotocol=socket.subprotocol)
    connection.on(EventType.OPEN, lambda _: journal.line("open"))
    connection.on(EventType.MESSAGE, journal.message)
    connection.on(EventType.ERROR, journal.error)
    connection.on(EventType.CLOSE, lambda _: journal.line("close", code=socket.close_code, reason=socket.close_reason))
    return socket


def run_sync(args, source, journal):
    client = DeepgramClient(**credentials(args), environment=environment(args.base_url))
    try:
        if args.grant:
            token = client.auth.v1.tokens.grant(**terms(args))
            journal.line("grant", expires_in=token.expires_in)
            client = DeepgramClient(access_token=token.access_token, environment=environment(args.base_url))
        with client.listen.v1.connect(**query(args, source)) as connection:
            socket = watch(connection, journal)
            listener = threading.Thread(target=connection.start_listening, daemon=True)
            listener.start()
            try:
                for number, chunk in source:
                    connection.send_media(chunk)
                    if number == args.finalize_at:
                        connection.send_finalize()
                    if number == args.keepalive_at:
                        connection.send_keep_alive()
                    time.sleep(source.pause)
                connection.send_close_stream()
            except Exception as error:  # the server went away while we were sending
                journal.error(error, "send_failed")
            listener.join(args.wait)
            if listener.is_alive():
                journal.timeout(args.wait)
            code = socket.close_code
    except Exception as error:
        return journal.refused(error)
    return journal.verdict(code)


async def run_async(args, source, journal):
    client = AsyncDeepgramClient(**credentials(args), environment=environment(args.base_url))
    try:
        if args.grant:
            token = await client.auth.v1.tokens.grant(**terms(args))
            journal.line("grant", expires_in=token.expires_in)
            client = AsyncDeepgramClient(access_token=token.access_token, environment=environment(args.base_url))
        async with client.listen.v1.connect(**query(args, source)) as connection:
            socket = watch(connection, journal)
            listener = asyncio.create_task(connection.start_listening())
            try:
                for number, chunk in source:
                    await connection.send_media(chunk)
                    if number == args.finalize_at:
                        await connection.send_finalize()
                    if number == args.keepalive_at:
                        await connection.send_keep_alive()
                    await asyncio.sleep(source.pause)
                await connection.send_close_stream()
            except Exception as error:
                journal.error(error, "send_failed")
            try:
                await asyncio.wait_for(listener, args.wait)
            except asyncio.TimeoutError:
                journal.timeout(args.wait)
            code = socket.close_code
    except Exception as error:
        return journal.refused(error)
    return journal.verdict(code)


def main():
    args = arguments()
    source, journal = Source(args), Journal()
    if args.use_async:
        return asyncio.run(run_async(args, source, journal))
    return run_sync(args, source, journal)


if __name__ == "__main__":
    sys.exit(main())
