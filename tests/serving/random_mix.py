"""Random requests for the whole way, each with what must come of it, whatever runs beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tests.serving.reference import Reference
from tests.serving.streams import Call, Grpc, Response, events, post, request

TIE = 1e-4
"""Logits nearer than this may change places with the order in which a sum is taken."""

MOST_TOKENS = 48
LONG = 1500
"""Tokens of an answer that is to be cut short: about as many as the demo model can make behind any prompt here."""

AT_A_TIME = 16
_ENDS = {"stop", "length", "stop_word", "cancelled", "deadline"}
ENGINE_MODEL = "tensorrt_llm"


@dataclass(frozen=True)
class Greedy:
    """A prompt, as text and as ids, whose greedy answer is known: no logit of it has a near rival."""

    text: str
    ids: list[int]
    answer: list[int]


def known_answers(references: Sequence[Reference], tokenizer: Tokenizer) -> list[Greedy]:
    """Those of the references that text leads to as well, as far as they are beyond doubt."""
    known = []
    for one in references:
        text = tokenizer.decode(one.prompt, skip_special_tokens=False)
        certain = next((number for number, lead in enumerate(one.leads) if lead < TIE), len(one.tokens))
        if len(one.prompt) <= 300 and certain >= 8 and tokenizer.encode(text).ids == one.prompt and "\0" not in text:
            known.append(Greedy(text, one.prompt, one.tokens[:certain]))
    return known


@dataclass
class Visit:
    """One request on its way, and what must come of it.

    `wanted` is the whole text or all token ids of a greedy answer, None where it isn't known. `ends` are the finish
    reasons that may end each of its `sequences`. `leaves_after` responses the client leaves, over gRPC or HTTP;
    `stopped_after` responses a second request stops it.
    """

    model: str
    values: dict[str, Any]
    request_id: str
    greedy: Greedy
    wanted: str | list[int] | None = None
    ends: set[str] = field(default_factory=lambda: {"length"})
    sequences: int = 1
    leaves_after: int | None = None
    over_http: bool = False
    stopped_after: int | None = None
    refused: str | None = None

    @property
    def surely_arrives(self) -> bool:
        """Whether its client waits for a response before it leaves; over HTTP it always does."""
        return self.leaves_after != 0 or self.over_http

    @property
    def cut_short(self) -> bool:
        """Whether it is cancelled in the middle, by leaving or by a `stop` request."""
        return self.surely_arrives and (self.leaves_after is not None or self.stopped_after is not None)

    @property
    def engine_ends(self) -> range:
        """How many ends the engine may count for it: one for each sequence that it has begun."""
        if self.refused is not None:
            return range(1)
        return range(self.sequences if self.surely_arrives else 0, self.sequences + 1)

    @property
    def tensors(self) -> dict[str, Any]:
        if self.model == ENGINE_MODEL:
            ids = np.array([self.greedy.ids], np.int32)
            return {"input_ids": ids, "input_lengths": len(self.greedy.ids), **self.values}
        return {"text_input": self.greedy.text, **self.values}

    @property
    def plain(self) -> dict[str, Any]:
        """The same, for JSON."""
        return {
            name: value[0].tolist() if isinstance(value, np.ndarray) else value for name, value in self.tensors.items()
        }


class Mix:
    """Draws visits from a seed."""

    def __init__(self, seed: int, models: Sequence[str], known: Sequence[Greedy], tokenizer: Tokenizer) -> None:
        self._random = random.Random(seed)
        self._models = models
        self._known = known
        self._tokenizer = tokenizer
        self._numbers = iter(range(10**9))
        self._seed = seed

    def draw(self) -> Visit:
        source = self._random
        model = source.choice(self._models)
        greedy = source.choice(self._known)
        length = source.randint(1, min(MOST_TOKENS, len(greedy.answer)))
        direct = model == ENGINE_MODEL
        streamed = source.random() < 0.7
        visit = Visit(
            model,
            {
                "request_output_len" if direct else "max_tokens": length,
                "streaming" if direct else "stream": streamed,
                "exclude_input_in_output": True,
                "end_id": -1,
            },
            f"{self._seed}-{next(self._numbers)}",
            greedy,
        )
        visit.wanted = greedy.answer[:length] if direct else self._text(greedy.answer[:length])
        self._decorate(visit)
        source.choice(self._KINDS)(self, visit, length, streamed)
        return visit

    def _text(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _decorate(self, visit: Visit) -> None:
        """What must change nothing."""
        source = self._random
        if source.random() < 0.3:
            visit.values["priority"] = source.choice([-5, 0, 1, 100])
        if source.random() < 0.2:
            visit.values["return_perf_metrics"] = True
        if source.random() < 0.2:
            visit.values["return_log_probs"] = True
        if source.random() < 0.2:
            visit.values["temperature"] = 0.7  # alone it changes nothing

    def _greedy(self, visit: Visit, length: int, streamed: bool) -> None:
        """As it is."""

    def _sampled(self, visit: Visit, length: int, streamed: bool) -> None:
        top_k = "runtime_top_k" if visit.model == ENGINE_MODEL else "top_k"
        visit.values |= {
            top_k: self._random.choice([2, 5, 40]),
            "temperature": 1.2,
            "seed": self._random.randrange(2**40),
        }
        if self._random.random() < 0.5:
            visit.values |= {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": -0.2}
        visit.wanted = None

    def _stop_word(self, visit: Visit, length: int, streamed: bool) -> None:
        """A word from the middle of the known answer cuts it there."""
        answer = self._text(visit.greedy.answer[:length])
        begin = self._random.randrange(max(1, len(answer) - 3))
        word = answer[begin : begin + self._random.randint(2, 6)]
        if visit.model == ENGINE_MODEL or len(word) < 2 or "\ufffd" in answer:
            return
        visit.values["stop_words"] = word
        visit.wanted = answer[: answer.index(word)]
        visit.ends = {"stop_word"}

    def _leave(self, visit: Visit, length: int, streamed: bool) -> None:
        self._make_long(visit)
        visit.leaves_after = self._random.choice([0, 1, 2, 5, 15])
        visit.over_http = self._random.random() < 0.5

    def _stop(self, visit: Visit, length: int, streamed: bool) -> None:
        self._make_long(visit)
        visit.stopped_after = self._random.choice([1, 2, 5])
        visit.ends = {"cancelled", "length"}  # the answer may be whole before the stop comes

    def _deadline(self, visit: Visit, length: int, streamed: bool) -> None:
        self._make_long(visit)
        visit.values["deadline_ms"] = self._random.choice([1, 20, 100])
        visit.ends = {"deadline"}

    def _sequences(self, visit: Visit, length: int, streamed: bool) -> None:
        visit.sequences = self._random.randint(2, 3)
        visit.values["num_return_sequences"] = visit.sequences
        visit.wanted = None

    def _beams(self, visit: Visit, length: int, streamed: bool) -> None:
        visit.values["beam_width"] = self._random.randint(2, 3)
        visit.values.pop("temperature", None)  # beams go without
        visit.wanted = None

    def _mistake(self, visit: Visit, length: int, streamed: bool) -> None:
        name = "request_output_len" if visit.model == ENGINE_MODEL else "max_tokens"
        visit.values[name] = self._random.choice([0, -1, 10**6])
        visit.refused = "max_tokens" if visit.model != ENGINE_MODEL else "tokens"

    def _make_long(self, visit: Visit) -> None:
        direct = visit.model == ENGINE_MODEL
        visit.values["request_output_len" if direct else "max_tokens"] = LONG
        visit.values["streaming" if direct else "stream"] = True
        visit.wanted = None

    _KINDS = (
        *(_greedy, _greedy, _greedy, _greedy, _sampled, _sampled, _stop_word, _stop_word, _leave, _leave),
        *(_stop, _deadline, _sequences, _beams, _mistake),
    )


def go(visit: Visit, connection: Grpc, http_address: str) -> str | None:
    """Send it, behave as planned, and say what is wrong with what came of it, if anything."""
    if visit.leaves_after is not None and visit.over_http:
        return _drop(visit, http_address)
    call = connection.send(request(visit.model, visit.tensors, visit.request_id))
    if visit.leaves_after is not None:
        call.wait_for(visit.leaves_after)
        call.cancel()
        call.finish()
        return None
    if visit.stopped_after is not None:
        call.wait_for(visit.stopped_after)
        (stopped,) = connection.send(request(ENGINE_MODEL, _stop_values(visit), visit.request_id)).finish()
        if stopped.error is not None:
            return f"stopping it failed: {stopped.error}"
    return _judge(visit, call)


def _stop_values(visit: Visit) -> dict[str, Any]:
    ids = np.array([visit.greedy.ids[:1]], np.int32)
    return {"input_ids": ids, "input_lengths": 1, "request_output_len": 1, "stop": True}


def _drop(visit: Visit, http_address: str) -> str | None:
    """Over HTTP the client reads some events and closes the connection."""
    left = visit.leaves_after or 0
    with post(http_address, f"/v2/models/{visit.model}/generate_stream", visit.plain) as response:
        for _, event in events(response):
            if "error" in event:
                return f"refused over HTTP: {event['error']}"
            left -= 1
            if left <= 0:
                break
    return None


def _judge(visit: Visit, call: Call) -> str | None:
    responses = call.finish()
    errors = [response.error for response in responses if response.error is not None]
    if visit.refused is not None:
        refused = len(responses) == 1 and errors and visit.refused in errors[0]
        return None if refused else f"not refused with one sentence: {responses}"
    if errors:
        return f"an error: {errors}"
    ends = [response.finish_reason for response in responses if response.finish_reason is not None]
    if len(ends) != visit.sequences or not set(ends) <= _ENDS:
        return f"{len(ends)} ends in place of {visit.sequences}: {ends}"
    if not set(ends) <= visit.ends:
        return f"ended by {ends} and not by {visit.ends}"
    if responses[-1].finish_reason is None:
        return "something came after the end"
    return _compare(visit, responses)


def _compare(visit: Visit, responses: list[Response]) -> str | None:
    if visit.wanted is None:
        return None
    if visit.model == ENGINE_MODEL:
        ids = [token for response in responses for token in response.token_ids]
        return None if ids == visit.wanted else f"the tokens {ids} and not {visit.wanted}"
    text = "".join(response.text for response in responses)
    return None if text == visit.wanted else f"the text {text!r} and not {visit.wanted!r}"


def run(visits: Sequence[Visit], grpc_address: str, http_address: str) -> list[str]:
    """AT_A_TIME of them, the next as soon as one is over; what is wrong with which."""

    def one(visit: Visit) -> str | None:
        try:
            complaint = go(visit, connection, http_address)
        except Exception as error:
            complaint = f"{type(error).__name__}: {error}"
        return complaint and f"{visit.request_id}, {visit.model} {visit.values}: {complaint}"

    with Grpc(grpc_address) as connection, ThreadPoolExecutor(AT_A_TIME) as pool:
        return [complaint for complaint in pool.map(one, visits) if complaint]
