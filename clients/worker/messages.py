"""The Deepgram live dialect as a server says it: a query read into `Ask`, messages written as JSON.

Pure. Every field the vendor's SDKs declare as required is always there. The model gives neither word
times nor a confidence: `words` stays empty and `confidence` 0.
"""

import json
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Optional
from urllib.parse import parse_qs

from audio import AudioFault, decoder_for

NOT_DONE = ("multichannel", "diarize", "keyterm", "keywords", "redact", "search", "replace")


@dataclass(frozen=True)
class Ask:
    """What a client asked for in its query, checked."""

    encoding: Optional[str]
    rate: Optional[int]
    channels: int
    interim: bool
    warnings: tuple

    def decoder(self):
        """A fresh decoder for this stream's audio."""
        return decoder_for(self.encoding, self.rate, self.channels)


def parse_ask(query: str) -> Ask:
    """The query of `/v1/listen`. AudioFault, with a text for the client, if it can't be served."""
    values = parse_qs(query, keep_blank_values=True, max_num_fields=200)

    def last(name: str) -> Optional[str]:
        return values.get(name, [None])[-1]

    if "callback" in values:
        raise AudioFault("callback is not supported: results go to the socket")
    encoding = last("encoding")
    ask = Ask(
        encoding=encoding.lower() if encoding else None,
        rate=_number("sample_rate", last("sample_rate")) if encoding else None,
        channels=_number("channels", last("channels") or "1") if encoding else 1,
        interim=(last("interim_results") or "").lower() == "true",
        warnings=tuple(
            f"{name} is ignored by this worker"
            for name in NOT_DONE
            if (last(name) or "false").lower() != "false"
        ),
    )
    ask.decoder()
    return ask


def _number(name: str, text: Optional[str]) -> Optional[int]:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise AudioFault(f"{name} must be a whole number")
    return int(text)


class Writer:
    """Writes the messages of one stream."""

    def __init__(self, engine, ask: Ask):
        self.request_id = str(uuid.uuid4())
        self._engine, self._ask = engine, ask
        self._created = datetime.now(timezone.utc)

    def results(self, line, from_finalize: bool = False) -> str:
        """One line of words; a final line is also the end of a phrase."""
        return json.dumps(
            {
                "type": "Results",
                "channel_index": [0, 1],
                "start": line.start,
                "duration": line.duration,
                "is_final": line.final,
                "speech_final": line.final,
                "from_finalize": from_finalize,
                "channel": {"alternatives": [{"transcript": line.text, "confidence": 0.0, "words": []}]},
                "metadata": {
                    "request_id": self.request_id,
                    "model_info": self._engine.model_info,
                    "model_uuid": self._engine.model_uuid,
                },
            }
        )

    def metadata(self, duration: float, sha256: str) -> str:
        """The last message of a stream: `duration` in seconds of audio, the digest of the bytes received."""
        message = {
            "type": "Metadata",
            "transaction_key": "deprecated",
            "request_id": self.request_id,
            "sha256": sha256,
            "created": self._created.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "duration": round(duration, 6),
            "channels": 1,
            "models": [self._engine.model_uuid],
            "model_info": {self._engine.model_uuid: self._engine.model_info},
        }
        if self._ask.warnings:
            message["warnings"] = list(self._ask.warnings)
        return json.dumps(message)

    def error(self, variant: str, description: str, message: str = "") -> str:
        """Something went wrong; not by itself the end of the stream."""
        fault = {"type": "Error", "variant": variant, "description": description, "message": message}
        return json.dumps({**fault, "request_id": self.request_id})
