"""A server of OpenAI's protocol of any kind: vLLM, SGLang, llama.cpp, a hosted one, a gateway of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import nan
from typing import Any

from inflight_client import Address, AsyncClient, AsyncOpenAIServer, InflightError
from inflight_client.encodings import Classification, Classifications, Embeddings, RankedDocument, Reranking
from inflight_client.results import UNKNOWN, Generation, LogProb, Timings, Usage

from inflight.batch.dispatch.backend import ServerLoad
from inflight.batch.dispatch.scoring import PromptToken, check_scores, score
from inflight.batch.job.rows import (
    ClassifyRequest,
    Completion,
    EmbedRequest,
    GenerateRequest,
    RerankRequest,
    RowAnswer,
    RowRequest,
    ScoreRequest,
)
from inflight.batch.job.spec import FACTS, RunOptions, Task
from inflight.batch.row_formats.answer_check import log_probs
from inflight.batch.row_formats.request_bodies import (
    CHAT,
    TOKENIZE,
    encode_body,
    generate_body,
    score_body,
)
from inflight.batch.storage.secret_address import masked

_LOADS = {
    "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "sglang": ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
    "tgi": ("tgi_batch_current_size", "tgi_queue_size"),
    "llama.cpp": ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
}
"""The running and the waiting requests on the metrics page of a kind of server."""
_METRICS_TIMEOUT = 5.0
_MAX_PRIORITY = 1000
"""That of a gateway's requests to encode texts, and with a minus the least."""
_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError)
_OWN = ("id", "object", "created", "model", "choices")
"""Fields of an answer that its record has of the job."""


class OpenAIBackend:
    """`address` is the client's, as AsyncOpenAIServer takes it. `samples`: requests with the job's own options, whose
    fields the server must have."""

    def __init__(
        self,
        address: str,
        options: RunOptions,
        on_message: Callable[[str], None] = lambda sentence: None,
        task: Task = "generate",
        samples: Sequence[RowRequest] = (),
    ) -> None:
        parsed = Address.parse(address)
        self.name = masked(parsed.url)
        self._server = AsyncOpenAIServer(parsed, headers=options.headers, timeout=options.row_timeout)
        self._model, self._priority = parsed.model or options.model, options.priority or 0
        self._samples = samples
        self._dialect = ""
        self._chats = True
        """Whether probes are conversations, as the rows are: a server may have one of the two routes alone."""
        self._unchecked = task == "score"
        """Whether it must be seen yet that the server can score."""
        self._max_prompt_tokens: int | None = None
        self._pages: AsyncClient | None = None
        if task == "generate" or task == "score":
            self._pages = AsyncClient(address, headers=options.headers)

    async def send(self, requests: Sequence[RowRequest], request_id: str) -> Sequence[RowAnswer | InflightError]:
        first = requests[0]
        await self._server.facts()
        if isinstance(first, ScoreRequest):
            return [await score(first, self)]
        route, body = self._adapted(requests)
        answer = await self._server.post(route, body, request_id=request_id)
        try:
            if isinstance(first, GenerateRequest):
                return [_completion(answer) if first.body is not None else _generation(answer, request_id)]
            if isinstance(first, EmbedRequest):
                return _embeddings(answer, [each for each in requests if isinstance(each, EmbedRequest)])
            if isinstance(first, RerankRequest):
                return [_reranking(answer, len(first.documents))]
            return _classifications(answer, [each for each in requests if isinstance(each, ClassifyRequest)])
        except _MALFORMED as error:
            raise self._damaged(error) from None

    async def tokenize(self, text: str) -> Sequence[int]:
        answer = await self._server.post(TOKENIZE, self._server.adapted(TOKENIZE, {"prompt": text}))
        try:
            if (most := answer.get("max_model_len")) is not None:
                self._max_prompt_tokens = int(most) - 1  # one is generated
            return list(map(int, answer["tokens"]))
        except _MALFORMED as error:
            raise self._damaged(error) from None

    async def max_prompt_tokens(self) -> int | None:
        if self._max_prompt_tokens is None:
            await self.tokenize("a")
        return self._max_prompt_tokens

    async def score_prompt(self, ids: Sequence[int]) -> Sequence[PromptToken]:
        answer = await self._server.post(*self._addressed(*score_body(ids), generates=True))
        try:
            places = answer["choices"][0].get("prompt_logprobs") or ()
            return [_prompt_token(place, token) for place, token in zip(places, ids, strict=False)]
        except _MALFORMED as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> InflightError:
        return InflightError(
            f"the answer of {self.name} is not of OpenAI's protocol ({type(error).__name__}: {error})",
            "answer_damaged",
        )

    def _adapted(self, requests: Sequence[RowRequest]) -> tuple[str, dict[str, Any]]:
        """Return the route and the body as the server spells it. Raises InflightError, which names a field that the
        server does not have."""
        try:
            return self._spelt(requests)
        except _MALFORMED as error:
            raise InflightError(
                f"the request can't be written for {self.name} ({type(error).__name__}: {error}); correct its fields",
                "unsupported_input",
            ) from None

    def _spelt(self, requests: Sequence[RowRequest]) -> tuple[str, dict[str, Any]]:
        first = requests[0]
        if isinstance(first, GenerateRequest):
            first = replace(first, as_chat=self._chats) if first.is_probe else first
            route, body = generate_body(first)
            self._chats = route == CHAT
        else:
            route, body = score_body((0, 0)) if isinstance(first, ScoreRequest) else encode_body(requests)
        return self._addressed(route, body, isinstance(first, GenerateRequest | ScoreRequest))

    def _addressed(self, route: str, body: dict[str, Any], generates: bool) -> tuple[str, dict[str, Any]]:
        """Return the body with the model and the priority, as the server spells it."""
        if self._dialect == "inflight" and self._priority:
            if generates:
                body.setdefault("service_tier", "flex" if self._priority < 0 else "priority")
            else:
                body["priority"] = max(-_MAX_PRIORITY, min(self._priority, _MAX_PRIORITY))
        body = self._server.adapted(route, {**body, "model": self._model})
        return route, body | ({"model": self._model} if self._model else {})

    async def load(self) -> ServerLoad:
        """Return the load from the metrics page of a server that has one; of others the capacity is found by trial."""
        names = _LOADS.get(self._dialect)
        if names is None or self._pages is None:
            return ServerLoad()
        try:
            page = await self._pages.metrics(_METRICS_TIMEOUT)
        except InflightError as error:
            if error.code == "unsupported_deployment":  # it has no such page
                await self._pages.close()
                self._pages = None
            raise
        values: dict[str, float] = {}
        for name, _, value in page.series():
            values[name] = values.get(name, 0.0) + value
        running, waiting = (None if (each := values.get(name)) is None else int(each) for name in names)
        return ServerLoad(running, waiting)

    async def ready(self) -> bool:
        return await self._server.ready()

    async def build(self) -> str:
        """Return the kind of the server, its model, version and own fingerprint, as far as it reports them.

        Raises InflightError `unsupported_deployment`, which names the field, if it can't do what the job asks for.
        """
        facts = await self._server.facts(refresh=True)
        self._dialect = facts.dialect
        for sample in self._samples:
            try:
                self._adapted([sample])
            except InflightError as error:
                if error.code not in ("unsupported_input", "invalid_parameter"):
                    raise
                raise InflightError(
                    f"{self.name} can't do what the job asks for: {error}", "unsupported_deployment"
                ) from None
        if self._unchecked:
            await check_scores(self, self.name)
            self._unchecked = False
        parts = (facts.dialect, self._model or facts.model, facts.version, facts.fingerprint)
        return FACTS.join(part.replace(FACTS, "") for part in parts)

    def prioritize(self, priority: int) -> bool:
        self._priority = priority
        return self._dialect == "inflight"

    async def close(self) -> None:
        await self._server.close()
        if self._pages is not None:
            await self._pages.close()


def _prompt_token(place: Mapping[str, Any] | None, token: int) -> PromptToken:
    """Return a token of a prompt, which is among those at its place; the first token has none."""
    if place is None:
        return PromptToken(nan, False)
    value = place[str(token)]
    return PromptToken(nan if value["logprob"] is None else float(value["logprob"]), value["rank"] == 1)


def _usage(answer: Mapping[str, Any]) -> Usage | None:
    usage = answer.get("usage")
    if not isinstance(usage, Mapping) or usage.get("prompt_tokens") is None:
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Usage(int(usage["prompt_tokens"]), int(usage.get("completion_tokens") or 0), cached)


def _completion(answer: Mapping[str, Any]) -> Completion:
    """Return a whole answer. Raises ValueError, KeyError, ... if it has no choices."""
    choices = tuple(answer["choices"])
    if not choices:
        raise ValueError("it has no choices")
    for place, choice in enumerate(choices):
        if not isinstance(choice.get("message"), Mapping) and not isinstance(choice.get("text"), str):
            raise ValueError(f"choice {place} has neither a message nor a text")
    rest = {name: value for name, value in answer.items() if name not in _OWN}
    return Completion(choices, _usage(answer), rest)


def _generation(answer: Mapping[str, Any], request_id: str) -> Generation:
    """Return the text of the first choice, without its reasoning."""
    choice = _completion(answer).choices[0]
    message = choice.get("message")
    text = str((message.get("content") or "") if isinstance(message, Mapping) else choice["text"])
    values = log_probs(choice.get("logprobs"))
    return Generation(
        text,
        str(choice.get("finish_reason") or UNKNOWN),
        _usage(answer),
        Timings(0.0, 0.0),
        request_id,
        log_probs=tuple(map(LogProb, values)) or None,
    )


def _shares(total: int, weights: Sequence[int]) -> list[int]:
    """Return a total in whole parts that are in proportion to the weights."""
    ends = [0]
    for weight in weights:
        ends.append(ends[-1] + weight)
    scaled = [round(total * end / ends[-1]) if ends[-1] else 0 for end in ends]
    return [end - start for start, end in pairwise(scaled)]


def _tokens(answer: Mapping[str, Any], results: Sequence[Mapping[str, Any]], weights: Sequence[int]) -> list[int]:
    """Return the tokens of each text: as the server reports them, or of all in proportion to the texts' lengths."""
    if all("num_input_tokens" in result for result in results):
        return [int(result["num_input_tokens"]) for result in results]
    usage = _usage(answer)
    return _shares(0 if usage is None else usage.input_tokens, weights)


def _placed(results: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Return the results in the order of their texts. Raises ValueError unless there is one of each."""
    ordered = sorted(results, key=lambda result: int(result["index"]))
    if [int(result["index"]) for result in ordered] != list(range(count)):
        raise ValueError(f"it has {len(ordered)} results for {count} texts")
    return ordered


def _embeddings(answer: Mapping[str, Any], requests: Sequence[EmbedRequest]) -> list[RowAnswer | InflightError]:
    import numpy as np

    texts = [text for request in requests for text in request.texts]
    results = _placed(answer["data"], len(texts))
    vectors = np.asarray([result["embedding"] for result in results], np.float32)
    tokens = _tokens(answer, results, list(map(len, texts)))
    cut = [bool(result.get("truncated")) for result in results]
    answers: list[RowAnswer | InflightError] = []
    end = 0
    for request in requests:
        start, end = end, end + len(request.texts)
        own = slice(start, end)
        answers.append(Embeddings(vectors[own], input_tokens=tuple(tokens[own]), truncated=tuple(cut[own])))
    return answers


def _reranking(answer: Mapping[str, Any], count: int) -> Reranking:
    results = _placed(answer["results"], count)
    scores = tuple(float(result["relevance_score" if "relevance_score" in result else "score"]) for result in results)
    order = sorted(range(count), key=lambda place: -scores[place])
    ranked = tuple(RankedDocument(place, scores[place]) for place in order)
    cut = tuple(bool(result.get("truncated")) for result in results)
    return Reranking(ranked, scores, input_tokens=tuple(_tokens(answer, results, [1] * count)), truncated=cut)


def _classifications(answer: Mapping[str, Any], requests: Sequence[ClassifyRequest]) -> list[RowAnswer | InflightError]:
    results = _placed(answer["data"], len(requests))
    tokens = _tokens(answer, results, [len(request.text) for request in requests])
    answers: list[RowAnswer | InflightError] = []
    for result, many in zip(results, tokens, strict=True):
        probs = list(map(float, result["probs"]))
        best = max(range(len(probs)), key=probs.__getitem__)
        names = list(map(str, answer.get("labels") or (f"LABEL_{place}" for place in range(len(probs)))))
        names[best] = str(result.get("label") or names[best])
        classes = Classification(names[best], probs[best], dict(zip(names, probs, strict=True)))
        cut = (bool(result.get("truncated")),)
        answers.append(Classifications((classes,), input_tokens=(many,), truncated=cut))
    return answers
