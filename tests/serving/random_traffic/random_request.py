"""One random request on its way, and what must come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tests.serving.random_traffic.reference import Reference
from tests.serving.raw_requests import TYPES

TIE = 1e-4
"""Logits nearer than this may change places with the order in which a sum is taken."""
ENGINE_MODEL = "tensorrt_llm"


@dataclass(frozen=True)
class KnownAnswer:
    """A prompt, as text and as ids, whose greedy answer is known: no logit of it has a near rival."""

    text: str
    ids: list[int]
    answer: list[int]


def known_answers(references: Sequence[Reference], tokenizer: Tokenizer) -> list[KnownAnswer]:
    """Those of the references that text leads to as well, as far as they are beyond doubt."""
    known = []
    for one in references:
        text = tokenizer.decode(one.prompt, skip_special_tokens=False)
        certain = next((number for number, lead in enumerate(one.leads) if lead < TIE), len(one.tokens))
        if len(one.prompt) <= 300 and certain >= 8 and tokenizer.encode(text).ids == one.prompt and "\0" not in text:
            known.append(KnownAnswer(text, one.prompt, one.tokens[:certain]))
    return known


@dataclass
class RandomRequest:
    """A request with one prompt or several, `sequences` answers to each.

    `wanted` is, for each prompt, the whole text or all token ids of its greedy answer; None where it isn't known.
    `ends` are the finish reasons that may end each answer, `pattern` what its text must match; those of the same `twin`
    must say the same, as their sampling has one seed. `disconnects_after` responses the client leaves, over gRPC or
    HTTP; `stopped_after` responses a second request stops it.
    """

    model: str
    values: dict[str, Any]
    request_id: str
    prompts: list[KnownAnswer]
    expected: list[Any] | None = None
    ends: set[str] = field(default_factory=lambda: {"length"})
    sequences: int = 1
    pattern: str | None = None
    same_seed_as: int | None = None
    disconnects_after: int | None = None
    over_http: bool = False
    stopped_after: int | None = None
    refused: str | None = None
    received: list[Any] | None = None
    """What came of it, as `wanted`, once it has."""

    def name(self, general: str) -> str:
        """What the model calls an input."""
        return _DIRECT_NAMES.get(general, general) if self.model == ENGINE_MODEL else general

    @property
    def streamed(self) -> bool:
        return bool(self.values[self.name("stream")])

    @property
    def answers(self) -> int:
        return self.sequences * len(self.prompts)

    @property
    def surely_arrives(self) -> bool:
        """Whether its client waits for a response before it leaves; over HTTP it does of a stream."""
        return self.disconnects_after != 0 or (self.over_http and self.streamed)

    @property
    def cut_short(self) -> bool:
        """Whether it is cancelled in the middle, by leaving or by a `stop` request."""
        return self.surely_arrives and (self.disconnects_after is not None or self.stopped_after is not None)

    @property
    def engine_ends(self) -> range:
        """How many ends the engine may count for it: one for each answer that it has begun."""
        if self.refused is not None:
            return range(1)
        return range(self.answers if self.surely_arrives else 0, self.answers + 1)

    @property
    def tensors(self) -> dict[str, Any]:
        values = self.values
        if len(self.prompts) > 1:
            shape = len(self.prompts), 1
            values = {name: np.full(shape, value, TYPES[name]) for name, value in values.items()}
        if self.model != ENGINE_MODEL:
            return {"text_input": np.array([[one.text.encode()] for one in self.prompts], np.object_), **values}
        longest = max(len(one.ids) for one in self.prompts)
        ids = np.array([one.ids + [0] * (longest - len(one.ids)) for one in self.prompts], np.int32)
        return {
            "input_ids": ids,
            "input_lengths": np.array([[len(one.ids)] for one in self.prompts], np.int32),
            **values,
        }

    @property
    def plain(self) -> dict[str, Any]:
        """The same, for JSON; of one prompt."""
        (prompt,) = self.prompts
        if self.model != ENGINE_MODEL:
            return {"text_input": prompt.text, **self.values}
        return {"input_ids": prompt.ids, "input_lengths": len(prompt.ids), **self.values}


_DIRECT_NAMES = {"max_tokens": "request_output_len", "stream": "streaming", "top_k": "runtime_top_k"}
