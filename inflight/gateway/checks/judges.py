"""Checks that judge whole texts: a served model that classifies them, and a hook, which may also change them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

import httpcore2
import orjson
from inflight_client import AsyncClient, InflightError

from inflight.gateway.checks.specs import Asked, ClassifierCheck, HookCheck, Place
from inflight.openai_api.errors import ApiError

_MAX_ANSWER = 2**20
"""Bytes of a hook's answer beyond those of the request."""
_PIECE_BYTES = 480
"""Of a long text, of which each piece is classified: an encoder's 512 tokens are at least as many bytes."""
FAILURES = (
    *(TimeoutError, InflightError, ApiError, OSError, ValueError, KeyError, TypeError),
    *(httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException),
)
"""What a check raises that gives no verdict."""
FindEncoder = Callable[[str], AsyncClient]
"""Returns a client of the server that has a model. Raises ApiError or InflightError."""


class Judges:
    """What gives verdicts, for the tasks of one event loop."""

    def __init__(self, find: FindEncoder) -> None:
        self._find = find
        self._pool = httpcore2.AsyncConnectionPool(max_connections=100, keepalive_expiry=10)
        self.close = self._pool.aclose

    async def verdict(self, check: Asked, place: Place, model: str, texts: Sequence[str]) -> tuple[bool, Sequence[str]]:
        """Return whether a check has found something in texts, and what a hook leaves of them. Raises FAILURES."""
        async with asyncio.timeout(check.timeout):
            if isinstance(check, HookCheck):
                body = orjson.dumps({"at": place, "model": model, "texts": texts})
                return _read(check, await self._post(str(check.url), body), texts)
            return any(found(check, each) for each in await self.scores(check, texts)), texts

    async def scores(self, check: ClassifierCheck, texts: Sequence[str]) -> Sequence[Mapping[str, float]]:
        """Return the labels' probabilities for each text, of a long one the greatest of its pieces. Raises FAILURES."""
        pieces = [(place, piece) for place, text in enumerate(texts) for piece in _pieces(text)]
        greatest: list[dict[str, float]] = [{} for _ in texts]
        if pieces:
            found = await self._find(check.model).classify([piece for _, piece in pieces], truncate=True)
            for (place, _), each in zip(pieces, found, strict=True):
                for label, score in each.scores.items():
                    greatest[place][label] = max(score, greatest[place].get(label, 0.0))
        return greatest

    async def _post(self, url: str, body: bytes) -> bytes:
        content, headers = bytearray(), [("content-type", "application/json")]
        async with self._pool.stream("POST", url, headers=headers, content=body) as answer:
            async for part in answer.aiter_stream():
                content += part
                if len(content) > len(body) + _MAX_ANSWER or answer.status != 200:
                    raise ValueError(f"the answer has the status {answer.status}, or too many bytes")
        return bytes(content)


def _read(check: HookCheck, content: bytes, texts: Sequence[str]) -> tuple[bool, Sequence[str]]:
    """Return the verdict of a hook's answer."""
    given = orjson.loads(content)
    flagged, left = given["flagged"], given.get("texts", texts)
    is_list = isinstance(left, list) and [type(each) for each in left] == [str] * len(texts)
    if not isinstance(flagged, bool) or not is_list:
        raise ValueError("the answer must have flagged, true or false, and as many texts as were sent, or none")
    if check.action != "redact":
        return flagged, texts
    if flagged and left == texts:
        raise ValueError("the answer has flagged texts and does not change them")
    return flagged, left


def found(check: ClassifierCheck, scores: Mapping[str, float]) -> bool:
    """Return whether a label of a check has its probability. Raises KeyError for one that the model does not have."""
    return bool(scores) and any(scores[label] >= check.threshold for label in check.labels)


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces, or nothing if it has only space."""
    raw = text.encode(errors="replace")
    for start in range(0, len(raw), _PIECE_BYTES):
        if piece := raw[start : start + _PIECE_BYTES].decode(errors="ignore").strip():
            yield piece
