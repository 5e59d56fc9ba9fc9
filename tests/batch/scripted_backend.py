"""Servers that do what a test wants, feeds, and what became of rows; for the pool's own logic, without a server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence

import numpy as np
from inflight_client import InflightError
from inflight_client.encodings import Classification, Classifications, Embeddings, RankedDocument, Reranking
from inflight_client.results import Generation, Timings, Usage
from numpy.typing import NDArray

from inflight.batch.dispatch.backend import Backend, ServerLoad
from inflight.batch.dispatch.dispatcher import Dispatcher
from inflight.batch.job.rows import (
    EmbedRequest,
    GenerateRequest,
    RerankRequest,
    Row,
    RowAnswer,
    RowRequest,
    Score,
    ScoreRequest,
    Scores,
    TranscribeRequest,
)
from inflight.batch.job.spec import EncodeSpec, RunOptions

Behaviour = Callable[["ScriptedBackend", str], Awaitable[str | InflightError]]


async def echo(server: ScriptedBackend, prompt: str) -> str | InflightError:
    await asyncio.sleep(0.001)
    return prompt


GROUP_ENDS = ("engine_died", "server_gone", "server_unreachable", "overloaded", "deadline_exceeded", "invalid_request")
"""Codes of errors that are the whole request's, whichever text caused them."""
DIMENSIONS = 8
LABELS = ("bad", "good")


def vector_of(text: str, dimensions: int = DIMENSIONS) -> NDArray[np.float32]:
    """A vector of length 1 that depends on the text only."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    vector = np.random.default_rng(seed).standard_normal(dimensions).astype(np.float32)
    length = np.float32(np.linalg.norm(vector))
    return np.asarray(vector / length, np.float32)


def answer_of(request: RowRequest, text: str, dimensions: int = DIMENSIONS) -> RowAnswer:
    """The answer of a model whose answers depend on the text only."""
    if isinstance(request, GenerateRequest):
        return Generation(text, "stop", Usage(1, 1), Timings(0, 0), "scripted")
    if isinstance(request, EmbedRequest):
        vectors = np.stack([vector_of(str(text_), request.dimensions or dimensions) for text_ in request.texts])
        tokens = tuple(len(str(text_).split()) for text_ in request.texts)
        return Embeddings(vectors, input_tokens=tokens, truncated=(False,) * len(tokens))
    if isinstance(request, ScoreRequest):  # the shorter, the likelier
        texts = tuple(map(str, request.continuations or (request.context,)))
        scored = tuple(Score(-float(len(each)), len(each.split()), len(each.encode()), False) for each in texts)
        return Scores(scored, sum(len(each.split()) for each in texts))
    if isinstance(request, RerankRequest):
        scores = tuple(float(vector_of(text) @ vector_of(document)) for document in request.documents)
        ranked = sorted(enumerate(scores), key=lambda score: -score[1])
        results = tuple(RankedDocument(*rank) for rank in ranked)
        return Reranking(results, scores, input_tokens=(2,) * len(scores), truncated=(False,) * len(scores))
    good = (float(vector_of(text)[0]) + 1) / 2
    top = Classification(LABELS[good >= 0.5], max(good, 1 - good), {"bad": 1 - good, "good": good})
    return Classifications((top,), input_tokens=(len(text.split()),), truncated=(False,))


def text_of(request: RowRequest) -> str:
    if isinstance(request, GenerateRequest):
        return str(request.prompt)
    if isinstance(request, ScoreRequest):
        return str(request.context)
    if isinstance(request, TranscribeRequest):
        return request.audio
    return request.query if isinstance(request, RerankRequest) else " ".join(map(str, request.texts))


class ScriptedBackend:
    """A Backend whose answers and health a test decides."""

    def __init__(self, behaviour: Behaviour = echo, name: str = "scripted", build: str = "one") -> None:
        self.name = name
        self.behaviour = behaviour
        self.model: str | InflightError = build
        self.is_ready = True
        self.has_priorities, self.priority = False, -1
        self.load_answer: ServerLoad | None = None
        self.asked: list[str] = []
        self.in_flight = 0
        self.most = 0
        self.together: list[frozenset[str]] = []
        self.cancelled: list[str] = []
        self.groups: list[list[str]] = []
        """The texts of each request."""
        self.dimensions = DIMENSIONS
        self.group_ends: Sequence[str] = GROUP_ENDS
        self.open: set[str] = set()

    async def send(self, requests: Sequence[RowRequest], request_id: str) -> Sequence[RowAnswer | InflightError]:
        """Answer each with what the behaviour says of its text; `group_ends` are raised for the whole request."""
        prompts = [text_of(request) for request in requests]
        self.asked += prompts
        self.groups.append(prompts)
        self.open.update(prompts)
        self.together.append(frozenset(self.open))
        self.most = max(self.most, len(self.open))
        try:
            answers = [await self.behaviour(self, prompt) for prompt in prompts]
        except asyncio.CancelledError:
            self.cancelled += prompts
            raise
        finally:
            self.open.difference_update(prompts)
        for answer in answers:
            if isinstance(answer, InflightError) and (len(answers) == 1 or answer.code in self.group_ends):
                raise answer
        return [
            answer if isinstance(answer, InflightError) else answer_of(request, answer, self.dimensions)
            for request, answer in zip(requests, answers, strict=True)
        ]

    async def load(self) -> ServerLoad:
        if self.load_answer is None:
            raise InflightError("no page", "server_unreachable")
        return self.load_answer

    async def ready(self) -> bool:
        return self.is_ready

    async def build(self) -> str:
        if isinstance(self.model, InflightError):
            raise InflightError(str(self.model), self.model.code)
        return self.model

    def prioritize(self, priority: int) -> bool:
        self.priority = priority
        return self.has_priorities

    async def close(self) -> None:
        pass


class ListFeed:
    """A feed of rows that are there, after which comes whatever a test says."""

    def __init__(
        self,
        prompts: Iterable[str],
        wait: asyncio.Event | None = None,
        request: Callable[[str], RowRequest] = lambda prompt: GenerateRequest(prompt, 4),
    ) -> None:
        self.rows = [Row(number, number + 1, f"row-{number}", request(prompt)) for number, prompt in enumerate(prompts)]
        self._left = iter(self.rows)
        self._wait = wait

    async def get(self) -> Row | None:
        row = next(self._left, None)
        if row is None and self._wait is not None:
            await self._wait.wait()
        return row


class RecordedCrashes:
    """What a job keeps of engines' deaths."""

    def __init__(self, crash_counts: dict[int, int] | None = None) -> None:
        self.crash_counts = crash_counts or {}
        self.noted: list[tuple[int, int]] = []

    def record_crashes(self, number: int, crashes: int) -> None:
        self.noted.append((number, crashes))


class DispatchRun:
    """A pool with all that it tells."""

    def __init__(
        self,
        backends: Sequence[Backend],
        feed: ListFeed,
        check_build: Callable[[str], None] = lambda build: None,
        crash_counts: dict[int, int] | None = None,
        encode: EncodeSpec | None = None,
        **options: object,
    ) -> None:
        self.answers: dict[int, str] = {}
        self.errors: dict[int, str] = {}
        self.attempts: dict[int, int] = {}
        self.messages: list[str] = []
        self.recorded = RecordedCrashes(crash_counts)
        settings = RunOptions.model_validate(options)
        self.dispatcher = Dispatcher(
            backends, settings, feed, self._done, self.recorded, check_build, self.messages.append, encode
        )

    def _done(self, row: Row, result: RowAnswer | InflightError, attempts: int) -> None:
        assert row.number not in self.attempts, "a row ended twice"
        self.attempts[row.number] = attempts
        if isinstance(result, InflightError):
            self.errors[row.number] = result.code
        elif isinstance(result, Generation):
            self.answers[row.number] = result.text
        else:
            self.answers[row.number] = text_of(row.request)

    async def run(self, seconds: float = 60.0) -> DispatchRun:
        async with asyncio.timeout(seconds):
            await self.dispatcher.run()
            await self.dispatcher.close()
        return self
