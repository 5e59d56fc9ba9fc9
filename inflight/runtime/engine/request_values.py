"""Checks the optional values of a request: sampling parameters and end tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from inflight.common.request_error import RequestError
from inflight.runtime.messages import MAX_GUIDE_CHARACTERS, DecodingGuide, GuideType, SamplingConfig


class _Bound(NamedTuple):
    field: str
    is_valid: Callable[[float], bool]
    description: str


SAMPLING_INPUTS = {
    "temperature": _Bound("temperature", lambda value: value >= 0, "0 or more"),
    "runtime_top_k": _Bound("top_k", lambda value: value >= 0, "0 or more"),
    "runtime_top_p": _Bound("top_p", lambda value: value <= 1, "at most 1"),
    "seed": _Bound("seed", lambda value: value >= 0, "0 or more"),
    "repetition_penalty": _Bound("repetition_penalty", lambda value: value > 0, "above 0"),
    "presence_penalty": _Bound("presence_penalty", lambda value: -2 <= value <= 2, "between -2 and 2"),
    "frequency_penalty": _Bound("frequency_penalty", lambda value: -2 <= value <= 2, "between -2 and 2"),
    "min_p": _Bound("min_p", lambda value: 0 <= value <= 1, "between 0 and 1"),
    "min_tokens": _Bound("min_tokens", lambda value: value >= 0, "0 or more"),
    "beam_width": _Bound("beam_width", lambda value: value >= 1, "1 or more"),
    "len_penalty": _Bound("length_penalty", lambda value: True, "a number"),
    "early_stopping": _Bound("early_stopping", lambda value: True, "true or false"),
}
"""Upstream's input tensors for sampling. As there, a `runtime_top_p` of 0 or below disables it."""

OLDER_NAMES = {"min_tokens": "min_length", "seed": "random_seed"}
"""Upstream's earlier names of inputs, read if the newer name was not sent."""

MAX_SEQUENCES = 256
"""The limit of answers to one request, and of sequences decoded in one request."""

GUIDE_TYPES = {guide_type.value: guide_type for guide_type in GuideType}

_NANOSECONDS = 1_000_000


def sampling_from(values: Mapping[str, Any], label: Callable[[str], str] = str) -> SamplingConfig:
    """Return the sampling parameters in the values of SAMPLING_INPUTS; None counts as not given.

    Raises RequestError (`invalid_parameter`), naming the input by `label`, for a value out of range, infinite or NaN.
    """
    fields = {}
    for name, bound in SAMPLING_INPUTS.items():
        value = values.get(name)
        if value is None:
            continue
        _check(label(name), value, bound)
        fields[bound.field] = value
    if "top_p" in fields:
        fields["top_p"] = max(fields["top_p"], 0.0)
    return SamplingConfig(**fields)


def check_sampling(sampling: SamplingConfig) -> None:
    """Apply the same limits to a SamplingConfig from elsewhere; RequestError names the field."""
    for bound in SAMPLING_INPUTS.values():
        value = getattr(sampling, bound.field)
        if value is not None:
            _check(bound.field, value, bound)
    if sampling.top_p < 0:
        raise RequestError(f"top_p is {sampling.top_p:g}; it must be 0 or more", "invalid_parameter")


def _check(name: str, value: float, bound: _Bound) -> None:
    if not (math.isfinite(value) and bound.is_valid(value)):
        raise RequestError(f"{name} is {value:g}; it must be {bound.description}", "invalid_parameter")


def guide_from(guide_type: str | None, text: str | None) -> DecodingGuide | None:
    """Return the guide of upstream's two inputs.

    Raises RequestError (`invalid_parameter`) if one is missing, or the guide is too long.
    """
    if text is not None and len(text) > MAX_GUIDE_CHARACTERS:
        raise RequestError(
            f"guided_decoding_guide has {len(text)} characters; send at most {MAX_GUIDE_CHARACTERS}",
            "invalid_parameter",
        )
    if guide_type is None:
        if text is None:
            return None
        raise RequestError("guided_decoding_guide requires guided_decoding_guide_type; send both", "invalid_parameter")
    if guide_type not in GUIDE_TYPES:
        raise RequestError(
            f"guided_decoding_guide_type is {guide_type[:40]!r}; it must be one of {', '.join(GUIDE_TYPES)}",
            "invalid_parameter",
        )
    kind = GUIDE_TYPES[guide_type]
    if kind is GuideType.JSON:
        if text is not None:
            raise RequestError(
                "guided_decoding_guide_type json takes no guided_decoding_guide; json_schema does", "invalid_parameter"
            )
        return DecodingGuide(kind)
    if text is None:
        raise RequestError(
            f"guided_decoding_guide is missing; guided_decoding_guide_type {guide_type} needs one", "invalid_parameter"
        )
    return DecodingGuide(kind, text)


def deadline_from(deadline_ms: int | None, now_ns: int) -> int | None:
    """Return the deadline in nanoseconds of the clock of `now_ns`."""
    if deadline_ms is None:
        return None
    if deadline_ms < 1:
        raise RequestError(
            f"deadline_ms is {deadline_ms}; it must be 1 or more milliseconds from now", "invalid_parameter"
        )
    return now_ns + deadline_ms * _NANOSECONDS


def checked_count(name: str, value: int, maximum: int) -> int:
    """Return a count between 1 and `maximum`. Raises RequestError (`invalid_parameter`) for any other."""
    if not 1 <= value <= maximum:
        raise RequestError(f"{name} is {value}; it must be between 1 and {maximum}", "invalid_parameter")
    return value


def end_ids_from(end_id: int | None, model_end_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return the end tokens: the model's own, unless the request has one; a negative one means no end token."""
    if end_id is None or end_id in model_end_ids:
        return model_end_ids
    return () if end_id < 0 else (end_id,)


def read_sequences(tokens: Any, lengths: Any, vocabulary_size: int, max_ids: int) -> list[list[list[int]]]:
    """Read the token ids of each prompt's sequences from arrays [prompt, beam, token] and [prompt, beam].

    Raises RequestError for invalid lengths (`invalid_request`), for more than MAX_SEQUENCES sequences or `max_ids` ids,
    and for ids outside the vocabulary (`invalid_token_ids`). Nothing is copied before the number of ids is checked.
    Most arrays are a chunk of a few tokens, for which numpy's functions take longer than Python's own.
    """
    if tokens.ndim != 3 or tokens.shape[:2] != lengths.shape:
        raise RequestError(
            f"TOKENS_BATCH has the shape {list(tokens.shape)} and SEQUENCE_LENGTH {list(lengths.shape)}; send one"
            " length for each sequence",
            "invalid_request",
        )
    if lengths.size > MAX_SEQUENCES or tokens.size > max_ids:
        raise RequestError(
            f"TOKENS_BATCH holds {lengths.size} sequences of {tokens.size} token ids; send at most {MAX_SEQUENCES}"
            f" sequences of {max_ids} together",
            "invalid_parameter",
        )
    longest = tokens.shape[2]
    rows: list[list[list[int]]] = []
    for beams, counts in zip(tokens.tolist(), lengths.tolist(), strict=True):
        for count in counts:
            if not 0 <= count <= longest:
                raise RequestError(
                    f"SEQUENCE_LENGTH is {count}, and TOKENS_BATCH holds {longest} token ids", "invalid_request"
                )
        rows.append([beam[:count] for beam, count in zip(beams, counts, strict=True)])
        for beam in rows[-1]:
            check_ids(beam, "TOKENS_BATCH", vocabulary_size)
    return rows


def check_ids(token_ids: Sequence[int], name: str, vocabulary_size: int) -> None:
    """Raise RequestError (`invalid_token_ids`) for an id outside the vocabulary."""
    for token_id in (min(token_ids), max(token_ids)) if token_ids else ():
        if not 0 <= token_id < vocabulary_size:
            raise RequestError(
                f"{name}: token id {token_id} is outside the vocabulary of {vocabulary_size} tokens; send ids of the"
                " engine's own tokenizer",
                "invalid_token_ids",
            )
