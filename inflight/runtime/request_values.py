"""The optional values of a request, checked: how to sample, and which tokens end the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from inflight.runtime.messages import RequestError, Sampling


class _Bound(NamedTuple):
    field: str
    holds: Callable[[float], bool]
    words: str


SAMPLING_INPUTS = {
    "temperature": _Bound("temperature", lambda value: value >= 0, "0 or more"),
    "runtime_top_k": _Bound("top_k", lambda value: value >= 0, "0 or more"),
    "runtime_top_p": _Bound("top_p", lambda value: value <= 1, "at most 1"),
    "seed": _Bound("seed", lambda value: value >= 0, "0 or more"),
    "repetition_penalty": _Bound("repetition_penalty", lambda value: value > 0, "above 0"),
    "presence_penalty": _Bound("presence_penalty", lambda value: -2 <= value <= 2, "between -2 and 2"),
    "frequency_penalty": _Bound("frequency_penalty", lambda value: -2 <= value <= 2, "between -2 and 2"),
    "min_tokens": _Bound("min_tokens", lambda value: value >= 0, "0 or more"),
}
"""Upstream's input tensors that say how to sample. As there, `runtime_top_p` of 0 or below means no such bound."""


def sampling_from(values: Mapping[str, Any]) -> Sampling:
    """Sampling from the values of SAMPLING_INPUTS that came; None counts as not given.

    Raises RequestError (`invalid_parameter`) for a value out of bounds; infinities and NaN always are.
    """
    fields = {}
    for name, bound in SAMPLING_INPUTS.items():
        value = values.get(name)
        if value is None:
            continue
        if not (math.isfinite(value) and bound.holds(value)):
            raise RequestError(f"{name} is {value:g}; it must be {bound.words}", "invalid_parameter")
        fields[bound.field] = value
    if "top_p" in fields:
        fields["top_p"] = max(fields["top_p"], 0.0)
    return Sampling(**fields)


def end_ids_from(end_id: int | None, of_model: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that end an answer: the model's own, unless the request names another; a negative one means none."""
    if end_id is None or end_id in of_model:
        return of_model
    return () if end_id < 0 else (end_id,)


def sequences(tokens: list[list[list[int]]], lengths: list[list[int]]) -> list[list[int]]:
    """The token ids of each beam of one request, from rows of [batch, beam, token] and [batch, beam].

    Raises RequestError (`invalid_request`) for a batch of several requests and for lengths that don't fit.
    """
    if len(tokens) != 1 or len(lengths) != 1:
        raise RequestError(f"TOKENS_BATCH holds {len(tokens)} requests; send one at a time", "invalid_request")
    (beams,), (counts,) = tokens, lengths
    if len(beams) != len(counts):
        raise RequestError(f"SEQUENCE_LENGTH holds {len(counts)} lengths for {len(beams)} sequences", "invalid_request")
    for beam, count in zip(beams, counts, strict=True):
        if not 0 <= count <= len(beam):
            raise RequestError(
                f"SEQUENCE_LENGTH is {count}, and TOKENS_BATCH holds {len(beam)} token ids", "invalid_request"
            )
    return [beam[:count] for beam, count in zip(beams, counts, strict=True)]


def check_ids(token_ids: list[int]) -> None:
    """Raise RequestError (`invalid_token_ids`) for an id that no vocabulary has."""
    if token_ids and min(token_ids) < 0:
        raise RequestError(f"token id {min(token_ids)} is below 0; send ids of the vocabulary", "invalid_token_ids")
