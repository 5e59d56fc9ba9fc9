"""Messages of the routes that transcribe audio: a clip as a file of a form, and `verbose_json`."""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import httpcore2

from inflight_client._http import channel
from inflight_client._http.infer_requests import AnswerParser, BodyParser
from inflight_client._http.messages import HttpResponse, json_object
from inflight_client.audio.decode import SAMPLE_RATE
from inflight_client.audio.languages import CODES
from inflight_client.errors import InflightError
from inflight_client.transport import InferRequest

_ROUTES = {"transcribe": "/audio/transcriptions", "translate": "/audio/translations"}
_OURS = ("beam_width", "priority")
"""Fields that other servers do not have."""


class TranscriptionHttpRequest:
    """A request for a clip, whose answer is one response."""

    def __init__(self, request: InferRequest) -> None:
        fields = dict(request.body)
        boundary = f"clip-{request.id}"
        self.id = request.id
        self.path = _ROUTES[fields.pop("task")]
        self.headers: Mapping[str, str] = {
            **request.headers,
            "x-request-id": request.id,
            "content-type": f"multipart/form-data; boundary={boundary}",
        }
        self.parser: AnswerParser = BodyParser()
        samples, words = fields.pop("samples"), fields.pop("word_timestamps")
        # The form `json` has no language.
        verbose = fields.pop("timestamps") or words or not fields["language"]
        if self.path == _ROUTES["translate"]:
            fields["language"] = None  # the route has none
        self._given = {name: value for name, value in fields.items() if value not in (None, "")}
        parts = [*self._given.items(), ("response_format", "verbose_json" if verbose else "json")]
        if self.path == _ROUTES["transcribe"] and verbose:
            parts += [("timestamp_granularities[]", unit) for unit in ("segment", "word")[: 1 + words]]
        head = f'--{boundary}\r\ncontent-disposition: form-data; name="'
        texts = "".join(f'{head}{name}"\r\n\r\n{value}\r\n' for name, value in parts)
        file = f'{head}file"; filename="clip.wav"\r\ncontent-type: audio/wav\r\n\r\n'
        self.body = b"".join([(texts + file).encode(), _wav(samples), f"\r\n--{boundary}--\r\n".encode()])
        self._returned_id = ""

    def adapt(self, dialect: str, api: str) -> None:
        """Take the path of the server's API. Raises InflightError `unsupported_input` for a field it does not have."""
        for name in _OURS:
            if dialect != "inflight" and name in self._given:
                raise InflightError(f"the server does not support {name}; leave it out", "unsupported_input")
        self.path = api + self.path

    def begin(self, response: httpcore2.Response, where: str) -> None:
        self._returned_id = channel.header(response, b"x-request-id")

    def parse_event(self, data: bytes) -> HttpResponse | None:
        """Return the outputs as the model `whisper` has them."""
        document = json_object(data)
        language, segments = str(document.get("language") or ""), document.get("segments")
        words: Any = document.get("words") or ()
        if isinstance(segments, list) and isinstance(words, list):
            segments = [{**each, "words": []} for each in segments]
            starts = [each["start"] for each in segments]
            for word in words if segments else ():  # a word may begin outside all segments
                segments[max(0, bisect_right(starts, word["start"]) - 1)]["words"].append(word)
        language = CODES.get(language.lower(), language if len(language) <= 3 else "")
        outputs = {"TRANSCRIPTS": document.get("text"), "language": language}
        if isinstance(segments, list):
            outputs["SEGMENTS"] = json.dumps({"segments": segments})
        return HttpResponse({**outputs, "id": self._returned_id})


def _wav(samples: Any) -> bytes:
    """Return float32 samples as a file."""
    size = 4 * len(samples)
    head = struct.pack("<4sI8sIHHIIHH", b"RIFF", size + 36, b"WAVEfmt ", 16, 3, 1, SAMPLE_RATE, 4 * SAMPLE_RATE, 4, 32)
    return b"".join([head, struct.pack("<4sI", b"data", size), samples.tobytes()])
