"""Sampling parameters, guides and stop words of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from inflight_client.errors import InflightError
from inflight_client.validation import check_utf8, invalid_value, is_int, is_number, shorten, within

GuideType = Literal["json", "json_schema", "regex", "ebnf_grammar"]

_MAX_FLOAT32 = 3.4e38
"""The largest number that the client sends in an FP32 tensor."""

_BOUNDS = {
    "temperature": (0.0, _MAX_FLOAT32),
    "top_k": (0, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "seed": (0, 2**64 - 1),
    "repetition_penalty": (1e-6, _MAX_FLOAT32),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "min_p": (0.0, 1.0),
    "min_tokens": (0, 2**31 - 1),
    "end_id": (-1, 2**31 - 1),
    "adapter": (0, 2**63 - 1),
}
_WHOLE_NUMBERS = {"top_k", "seed", "min_tokens", "end_id", "adapter"}
_WORDS = ("stop", "bad_words")
_MAX_BIAS = 1e9
_MAX_BIASES = 1024


@dataclass(frozen=True)
class Guide:
    """A pattern that the answer must match: a JSON schema, a regular expression or a grammar; `json` needs no text."""

    type: GuideType
    text: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or self.type not in get_args(GuideType):
            raise InflightError(
                f"the guide's type is {shorten(self.type)}; it must be one of {', '.join(get_args(GuideType))}",
                "invalid_parameter",
            )
        if not isinstance(self.text, str) or (not self.text and self.type != "json"):
            raise InflightError(f"a guide of type {self.type} needs a text", "invalid_parameter")
        check_utf8("the guide's text", self.text)


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; unset ones use the server's default, greedy decoding.

    A request samples when `temperature` > 0, `top_k` > 1 or `top_p` > 0 is given (a temperature alone is sent with
    `top_p` = 1, since TensorRT-LLM would ignore it); `temperature` = 0 and `top_k` = 1 are greedy. An `end_id`
    replaces the model's end tokens; -1 means none. `min_p` leaves tokens out whose probability is a smaller share of
    the likeliest one's. `logit_bias` is added to the logits of up to 1,024 token ids; an answer has no others than the
    `allowed_token_ids`, if there are any. The answer ends before the first of the texts `stop`; it never contains
    `bad_words`. A single string is one word. `adapter` is the `lora_task_id` of a LoRA adapter.
    Values out of bounds raise InflightError (`invalid_parameter`) before anything is sent.

    >>> Sampling(temperature=0.8, top_p=0.95, stop="\\n").stop
    ('\\n',)
    >>> Sampling(top_p=2)
    Traceback (most recent call last):
    inflight_client.errors.InvalidRequest: top_p is 2; it must be between 0 and 1
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    end_id: int | None = None
    stop: str | tuple[str, ...] | list[str] = ()
    bad_words: str | tuple[str, ...] | list[str] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | list[int] = ()
    guide: Guide | None = None
    adapter: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in _WORDS:
                object.__setattr__(self, each.name, _words(each.name, value))
            elif each.name in _BOUNDS and value is not None:
                if each.name in _WHOLE_NUMBERS and isinstance(value, float) and value.is_integer():
                    value = int(value)
                if each.name == "top_k" and value == -1:  # vLLM's clients turn it off so
                    value = 0
                _check_number(each.name, value)
                object.__setattr__(self, each.name, value)
        _check_bias(self.logit_bias)
        _check_ids("allowed_token_ids", self.allowed_token_ids)
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        object.__setattr__(self, "allowed_token_ids", tuple(self.allowed_token_ids))
        if self.guide is not None and not isinstance(self.guide, Guide):
            raise InflightError(f"guide is {shorten(self.guide)}; it must be a Guide", "invalid_parameter")


def _check_number(name: str, value: Any) -> None:
    if name in _WHOLE_NUMBERS and not is_int(value):
        raise invalid_value(name, value, "a whole number")
    if not is_number(value):
        raise invalid_value(name, value, "a number")
    low, high = _BOUNDS[name]
    if not within(value, low, high):
        raise invalid_value(name, value, _range_text(low, high))


def _check_bias(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise invalid_value("logit_bias", value, "a mapping from token ids to numbers")
    _check_ids("logit_bias", list(value))
    if len(value) > _MAX_BIASES:
        raise InflightError(f"logit_bias has {len(value)} token ids; give at most {_MAX_BIASES}", "invalid_parameter")
    for token, bias in value.items():
        if not is_number(bias) or not within(bias, -_MAX_BIAS, _MAX_BIAS):
            raise invalid_value(f"logit_bias of {token}", bias, "a number")


def _check_ids(name: str, value: Any) -> None:
    if not isinstance(value, list | tuple) or not all(is_int(each) and 0 <= each < 2**31 for each in value):
        raise invalid_value(name, value, "token ids of 0 or more")


def _words(name: str, value: Any) -> tuple[str, ...]:
    """Return the words as a tuple; each must be non-empty text."""
    if not isinstance(value, str | tuple | list):
        raise invalid_value(name, value, "a text, or a list of texts")
    words = (value,) if isinstance(value, str) else tuple(value)
    for word in words:
        if not isinstance(word, str) or not word:
            raise InflightError(
                f"{name} holds {shorten(word)}; each must be a text of at least one character", "invalid_parameter"
            )
        check_utf8(name, word)
    return words


def _range_text(low: float, high: float) -> str:
    return f"between {low:g} and {high:g}" if high <= 2 else f"{low:g} or more, and at most {high:g}"
