"""Parses the bodies of chat completions and completions, field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from inflight_client import InflightError
from inflight_client.call import Prompt, TokenIds
from inflight_client.sampling import Sampling
from inflight_client.validation import invalid_value, is_int, shorten

from inflight.common.json_values import has_more_values
from inflight.openai_api.errors import ApiError, errors_of
from inflight.openai_api.field_reader import FieldReader, read_body, whole
from inflight.openai_api.fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    MAX_BAD_WORDS,
    MAX_BIAS,
    MAX_CHOICES,
    MAX_STOPS,
    MAX_WORD_LENGTH,
)
from inflight.openai_api.messages import checked_messages, checked_text, checked_token_ids
from inflight.openai_api.response_format import response_guide, unenforced
from inflight.openai_api.tools import NO_TOOLS, Tools, parse_tools

COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens for /v1/completions."""

_MAX_ARGUMENTS, _MAX_ARGUMENT_DEPTH = 10_000, 48
"""Values and levels in the arguments of a call that are read as an object; others stay the text that they are."""

_SAMPLING = tuple(name for name, field in CHAT_FIELDS.items() if field.is_sampling)
_MAX_TEMPERATURE = CHAT_FIELDS["temperature"].schema["maximum"]
_NOT_TEMPLATE_KWARGS = frozenset(("chat_template", "messages", "tools"))
"""Arguments of chat templates that a request has elsewhere, or that are code of the deployment."""
_MAX_KWARGS_CHARACTERS = 64 * 1024
"""Of all of them but documents."""
_PRIORITIES = {"auto": 0, "default": 0, "priority": 1, "flex": -1}


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text from its length."""
    return 1 + len(text) // 4


def count_characters(value: Any) -> int:
    """Return the characters of all texts in a value, names included."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(name) + count_characters(each) for name, each in value.items())
    return sum(map(count_characters, value)) if isinstance(value, list | tuple) else 1


@dataclass(frozen=True)
class RequestDefaults:
    """Values for requests that do not set their own. `max_tokens` None: decided once the model's limits are known."""

    max_tokens: int | None
    sampling: Sampling


@dataclass(frozen=True)
class GenerationRequest:
    """A valid request. Choice `i * n + j` is answer j to prompt i."""

    model: str
    chat: bool
    prompts: tuple[Prompt | TokenIds, ...]
    sampling: Sampling
    max_tokens: int | None = None
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None
    """How many of the likeliest tokens to tell at each place of the prompt, if any."""
    echo: bool = False
    priority: int = 0
    service_tier: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: Tools = NO_TOOLS
    characters: int = 0
    """Of the prompts, and of what else the chat template reads."""
    no_effect: tuple[str, ...] = ()

    @property
    def answered_tier(self) -> str | None:
        """The `service_tier` of the response."""
        tiers = {1: "priority", -1: "flex"}
        return None if self.service_tier is None else tiers.get(self.priority, "default")

    @property
    def scores_prompt(self) -> bool:
        """Whether log probabilities of the prompt's tokens are wanted."""
        return self.prompt_logprobs is not None or (self.echo and self.logprobs)

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def estimated_tokens(self) -> int:
        """Of the prompts, from their lengths, as the exact number is known only later."""
        ids = sum(len(prompt.ids) for prompt in self.prompts if isinstance(prompt, TokenIds))
        return len(self.prompts) + ids + self.characters // 4


def parse_request(body: Any, chat: bool, defaults: RequestDefaults) -> GenerationRequest:
    """Parse the body of a chat completion or completion. Raises ApiError, which names the field."""
    if isinstance(body, Mapping) and body.get("best_of") == (body.get("n") or 1):
        body = {**body, "best_of": None}
    reader = read_body(body, CHAT_FIELDS if chat else COMPLETION_FIELDS)
    values = reader.values
    model = reader.text("model")
    n = reader.integer("n") or 1
    stream = reader.boolean("stream")
    stream_options = _stream_options(reader, stream)
    tier = reader.choice("service_tier", "") if "service_tier" in values else None
    logprobs, top_logprobs = _log_probs(reader, chat)
    echo = reader.boolean("echo")
    prompt_logprobs = reader.integer("prompt_logprobs")
    if stream and (prompt_logprobs is not None or (echo and logprobs)):
        raise ApiError(
            "log probabilities of the prompt are not streamed; set stream to false", "unsupported_input", "stream"
        )
    max_tokens, sampling = _max_tokens(reader, defaults.max_tokens), _sampling(reader, defaults.sampling)
    if echo and logprobs and max_tokens == 1:
        # Who scores a prompt drops the last entry, so there must be one for an answer that ends at once.
        sampling = replace(sampling, end_id=-1)
    tools = parse_tools(reader) if chat else NO_TOOLS
    prompts: tuple[Prompt | TokenIds, ...] = (parse_messages(reader),) if chat else _prompts(values.get("prompt"))
    kwargs = template_kwargs(reader) if chat else {}
    request = GenerationRequest(
        model=model,
        chat=chat,
        prompts=prompts,
        sampling=sampling,
        max_tokens=max_tokens,
        n=n,
        stream=stream,
        include_usage="include_usage" in stream_options,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        prompt_logprobs=prompt_logprobs,
        echo=echo,
        priority=_PRIORITIES[tier] if tier else 0,
        service_tier=tier,
        chat_template_kwargs=kwargs,
        tools=tools,
        characters=sum(
            count_characters(each)
            for each in (*prompts, kwargs, values.get("tools"))
            if each and not isinstance(each, TokenIds)
        ),
        no_effect=(
            *reader.no_effect,
            *unenforced(values),
            *(f"stream_options.{name}" for name in stream_options if name != "include_usage"),
        ),
    )
    if request.choices > MAX_CHOICES:
        raise ApiError(
            f"the request has {request.choices} choices, prompts times n; send at most {MAX_CHOICES}",
            "invalid_parameter",
            "n",
        )
    return request


def _stream_options(reader: FieldReader, stream: bool) -> list[str]:
    """Return the names of the options that are true."""
    options = reader.mapping("stream_options")
    if options and not stream:
        raise ApiError("stream_options needs stream; set it to true", "invalid_parameter", "stream_options")
    for name, value in options.items():
        if name not in ("include_usage", "include_obfuscation", "continuous_usage_stats"):
            raise ApiError(
                f"stream_options.{name[:40]} is unknown; leave it out", "unsupported_input", "stream_options"
            )
        if value is not None and not isinstance(value, bool):
            raise ApiError(f"stream_options.{name} must be true or false", "invalid_parameter", "stream_options")
    return [name for name, value in options.items() if value]


def parse_messages(reader: FieldReader) -> Prompt:
    """Return the messages of a body as the chat template gets them. Raises ApiError."""
    with errors_of("messages"):
        return [_with_parsed_arguments(each) for each in checked_messages(reader.values.get("messages"))]


def _with_parsed_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose calls have their arguments as objects: that is what chat templates expect."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    parsed = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InflightError(
                "a call in tool_calls has no function with a name; send it back as received", "invalid_messages"
            )
        arguments = function.get("arguments")
        if isinstance(arguments, str) and (value := _arguments(arguments)) is not None:
            function = {**function, "arguments": value}
        parsed.append({**call, "function": function})
    return {**message, "tool_calls": parsed}


def _arguments(text: str) -> dict[str, Any] | None:
    """Return the arguments of a call as an object; None for what the model wrote otherwise, which stays a text."""
    try:
        value = None if has_more_values(text.encode(errors="replace"), _MAX_ARGUMENTS) else json.loads(text or "{}")
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # raises for NaN and halves of characters
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _is_deep(value, _MAX_ARGUMENT_DEPTH) else None


def _is_deep(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deep(each, levels - 1) for each in inner)


def _prompts(value: Any) -> tuple[Prompt | TokenIds, ...]:
    with errors_of("prompt"):
        if value is None:
            raise InflightError("the request has no prompt; set it to a text", "empty_prompt")
        if isinstance(value, str):
            return (checked_text("prompt", value, empty=True),)
        if not isinstance(value, list) or not value:
            raise invalid_value("prompt", value, "a text, a list of texts, or token ids")
        if is_int(whole(value[0])):
            return (TokenIds(checked_token_ids("prompt", value)),)
        if len(value) > MAX_CHOICES:
            raise InflightError(
                f"the request has {len(value)} prompts; send at most {MAX_CHOICES}", "invalid_parameter"
            )
        return tuple(
            TokenIds(checked_token_ids(f"prompt[{place}]", each))
            if isinstance(each, list)
            else checked_text(f"prompt[{place}]", each, empty=True)
            for place, each in enumerate(value)
        )


def _max_tokens(reader: FieldReader, default: int | None) -> int | None:
    """`max_completion_tokens` is the new name; if both are set, they must be equal."""
    old, new = reader.values.get("max_tokens"), reader.values.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise ApiError(
            "max_tokens and max_completion_tokens differ; give one of them", "invalid_parameter", "max_tokens"
        )
    return reader.integer("max_tokens" if new is None else "max_completion_tokens") or default


def _log_probs(reader: FieldReader, chat: bool) -> tuple[bool, int]:
    """Return whether log probabilities are wanted, and of how many of the likeliest tokens at each place.

    In a conversation `logprobs` is true or false; for a text it is that number.
    """
    if chat:
        logprobs, most = reader.boolean("logprobs"), reader.integer("top_logprobs") or 0
        if most and not logprobs:
            raise ApiError("top_logprobs needs logprobs; set it to true", "invalid_parameter", "top_logprobs")
        return logprobs, most
    value = reader.values.get("logprobs")
    if value is None or value is False:
        return False, 0
    return True, reader.integer("logprobs") or 0


def _logit_bias(value: Any) -> dict[int, Any]:
    """Return biases by token id, which JSON has as texts."""
    if not isinstance(value, Mapping) or not all(re.fullmatch("[0-9]{1,9}", name) for name in value):
        raise ApiError(
            f"logit_bias is {shorten(value)}; it must be an object with token ids as names",
            "invalid_parameter",
            "logit_bias",
        )
    for name, bias in value.items():
        if isinstance(bias, int | float) and not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ApiError(
                f"logit_bias of {name} is {shorten(bias)}; it must be from -{MAX_BIAS} to {MAX_BIAS}",
                "invalid_parameter",
                "logit_bias",
            )
    return {int(name): bias for name, bias in value.items()}


def template_kwargs(reader: FieldReader) -> dict[str, Any]:
    """Return the arguments of the chat template in a body. Raises ApiError."""
    kwargs = dict(reader.mapping("chat_template_kwargs"))
    for name in kwargs:
        if name in _NOT_TEMPLATE_KWARGS or not name.isidentifier():
            raise ApiError(
                f"chat_template_kwargs has {name[:80]!r}, which a template can't be given there; leave it out",
                "unsupported_input",
                "chat_template_kwargs",
            )
    if count_characters({name: each for name, each in kwargs.items() if name != "documents"}) > _MAX_KWARGS_CHARACTERS:
        raise ApiError(
            f"chat_template_kwargs has more than {_MAX_KWARGS_CHARACTERS} characters; shorten it",
            "invalid_parameter",
            "chat_template_kwargs",
        )
    if "reasoning_effort" in reader.values:
        kwargs["reasoning_effort"] = reader.text("reasoning_effort")[:64]
    for name in ("add_generation_prompt", "continue_final_message"):
        if name in reader.values:
            kwargs[name] = reader.boolean(name)
    return kwargs


def _sampling(reader: FieldReader, base: Sampling) -> Sampling:
    values = reader.values
    changes: dict[str, Any] = {name: values[name] for name in _SAMPLING if name in values}
    temperature = changes.get("temperature")
    if isinstance(temperature, int | float) and temperature > _MAX_TEMPERATURE:
        raise ApiError(
            f"temperature is {shorten(temperature)}; it must be from 0 to {_MAX_TEMPERATURE}",
            "invalid_parameter",
            "temperature",
        )
    if "seed" in changes and is_int(changes["seed"]):
        changes["seed"] = changes["seed"] % 2**64 if -(2**63) <= changes["seed"] < 2**63 else changes["seed"]
    for name, most in (("stop", MAX_STOPS), ("bad_words", MAX_BAD_WORDS)):
        if name in values:
            changes[name] = _words(name, values[name], most)
    if "ignore_eos" in values:
        changes["end_id"] = -1 if reader.boolean("ignore_eos") else None
    if "logit_bias" in values:
        changes["logit_bias"] = _logit_bias(values["logit_bias"])
    if "response_format" in values:
        changes["guide"] = response_guide(values["response_format"])
    if not changes:
        return base
    try:
        return replace(base, **changes)
    except InflightError as error:
        param = next((name for name in changes if str(error).startswith(name)), None)
        raise ApiError.from_error(error, param) from None


def _words(name: str, value: Any, most: int) -> Any:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or len(words) > most:
        raise ApiError(f"{name} must be a text or a list of up to {most} texts", "invalid_parameter", name)
    if any(isinstance(word, str) and len(word) > MAX_WORD_LENGTH for word in words):
        raise ApiError(
            f"a text of {name} has more than {MAX_WORD_LENGTH} characters; shorten it", "invalid_parameter", name
        )
    return words
