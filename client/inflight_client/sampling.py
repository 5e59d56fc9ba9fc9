"""Sampling parameters, guides and stop words of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from inflight_client.errors import InflightError
from inflight_client.validation import check_utf8, invalid_value, is_int, is_number, shorten, within

GuideType = Literal["json", "json_schema", "regex", "ebnf_grammar"]

_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Parameter:
    """A sampling parameter that is a number: what it does, its bounds, and the inputs of models that take it."""

    help: str
    low: float
    high: float
    whole: bool
    inputs: tuple[str, ...]
    """Names of the input of models of text; the second is upstream's up to 0.19."""
    engine_input: str
    """The name of the input of `tensorrt_llm`."""
    openai: bool
    """Whether a body of OpenAI's API has it, as a field of the same name."""


def _parameter(
    help: str,
    low: float,
    high: float = 3.4e38,
    *,
    inputs: tuple[str, ...] = (),
    engine_input: str = "",
    openai: bool = True,
) -> Any:
    """Return a field; without a higher bound, that of an FP32 tensor. Bounds that are whole make it a whole number."""
    whole = isinstance(low, int) and isinstance(high, int)
    values = Parameter(help, low, high, whole, inputs, engine_input, openai)
    return field(default=None, metadata={"parameter": values})


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

    temperature: float | None = _parameter("Sampling temperature; 0: greedy decoding.", 0.0)
    top_k: int | None = _parameter("Sample from the k most likely tokens.", 0, _INT32, engine_input="runtime_top_k")
    top_p: float | None = _parameter(
        "Sample from the most likely tokens with this total probability.", 0.0, 1.0, engine_input="runtime_top_p"
    )
    seed: int | None = _parameter("Random seed for sampling.", 0, 2**64 - 1, inputs=("seed", "random_seed"))
    repetition_penalty: float | None = _parameter("Repetition penalty; above 1 discourages repeated tokens.", 1e-6)
    presence_penalty: float | None = _parameter(
        "Presence penalty, -2 to 2: subtracted from the logits of tokens that occurred before.", -2.0, 2.0
    )
    frequency_penalty: float | None = _parameter(
        "Frequency penalty, -2 to 2: subtracted once per earlier occurrence of a token.", -2.0, 2.0
    )
    min_p: float | None = _parameter("Least share of the likeliest token's probability to sample from.", 0.0, 1.0)
    min_tokens: int | None = _parameter("Minimum tokens to generate.", 0, _INT32, inputs=("min_tokens", "min_length"))
    end_id: int | None = _parameter(
        "Token that ends the answer instead of the model's own; -1: none.", -1, _INT32, openai=False
    )
    stop: str | tuple[str, ...] | list[str] = ()
    bad_words: str | tuple[str, ...] | list[str] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | list[int] = ()
    guide: Guide | None = None
    adapter: int | None = _parameter(
        "Number of the LoRA adapter, from 1 (inflight serve --lora).",
        0,
        2**63 - 1,
        inputs=("lora_task_id",),
        openai=False,
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in _WORDS:
                object.__setattr__(self, each.name, _words(each.name, value))
            elif (parameter := each.metadata.get("parameter")) is not None and value is not None:
                if parameter.whole and isinstance(value, float) and value.is_integer():
                    value = int(value)
                if each.name == "top_k" and value == -1:  # vLLM's clients turn it off so
                    value = 0
                _check_number(each.name, value, parameter)
                object.__setattr__(self, each.name, value)
        _check_bias(self.logit_bias)
        _check_ids("allowed_token_ids", self.allowed_token_ids)
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        object.__setattr__(self, "allowed_token_ids", tuple(self.allowed_token_ids))
        if self.guide is not None and not isinstance(self.guide, Guide):
            raise InflightError(f"guide is {shorten(self.guide)}; it must be a Guide", "invalid_parameter")


PARAMETERS: Mapping[str, Parameter] = {
    each.name: each.metadata["parameter"] for each in fields(Sampling) if "parameter" in each.metadata
}
"""Those that are numbers, by name."""


def _check_number(name: str, value: Any, parameter: Parameter) -> None:
    if parameter.whole and not is_int(value):
        raise invalid_value(name, value, "a whole number")
    if not is_number(value):
        raise invalid_value(name, value, "a number")
    if not within(value, parameter.low, parameter.high):
        raise invalid_value(name, value, _range_text(parameter.low, parameter.high))


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
