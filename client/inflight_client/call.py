"""One call and its options, validated before anything is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict

from inflight_client.errors import InflightError
from inflight_client.sampling import Sampling
from inflight_client.validation import check_int, check_timeout, check_utf8, invalid_value, shorten

MAX_DEPTH = 64
"""Maximum nesting of lists and mappings; it also catches values that contain themselves."""


def json_text(name: str, value: Any) -> str:
    """Return a value as JSON: None, booleans, numbers, text, lists, tuples, and mappings with text as keys.

    Raises InflightError `invalid_messages` for any other type, with its position: no value is converted, no iterator
    is consumed, and the result can be parsed again.
    """
    plain = _plain(name, value, 0)
    try:
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError as error:
        why = f"text that can't be encoded as UTF-8 ({error.reason}); send whole characters"
    except ValueError:
        why = "a number that JSON can't represent; send finite numbers of at most a few thousand digits"
    else:
        return text
    raise InflightError(f"{name} holds {why}", "invalid_messages")


def _plain(where: str, value: Any, depth: int) -> Any:
    """Return a plain copy of the value; `where` is its position for error messages."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if depth > MAX_DEPTH:
        raise InflightError(
            f"{where[:60]}... is nested more than {MAX_DEPTH} levels deep or contains itself; send less",
            "invalid_messages",
        )
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InflightError(
                    f"{where} has the key {shorten(key)} of type {type(key).__name__}; JSON keys must be strings",
                    "invalid_messages",
                )
        return {key: _plain(f"{where}.{shorten(key)[1:-1]}", each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(f"{where}[{place}]", each, depth + 1) for place, each in enumerate(value)]
    raise InflightError(
        f"{where} has the type {type(value).__name__}, which JSON lacks; send text, numbers, lists and mappings",
        "invalid_messages",
    )


Message = Mapping[str, Any]
"""A chat message: `role`, `content`, and any other keys that the model's template reads."""


@dataclass(frozen=True)
class TokenIds:
    """A prompt of token ids, which the engine computes as they are."""

    ids: tuple[int, ...]


class TokenText(Protocol):
    """Converts between text and the tokens of a model that takes and returns token ids."""

    @property
    def end_ids(self) -> Sequence[int]:
        """The model's end tokens, for engines that know none themselves."""

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each word, without special tokens."""

    def decode(self, token_ids: Sequence[int], ended: bool, dropped: int) -> str:
        """Return the text that the answer's next tokens add; `dropped` characters at its end belong to a stop word."""


Prompt = str | Sequence[Message]
"""A prompt: text, or the messages of a conversation."""


class CheckedMessages(list[Message]):
    """Messages that are checked and serialized once for several calls. They must not change."""

    def __init__(self, messages: Sequence[Message]) -> None:
        _validate_messages(messages)
        super().__init__(messages)
        self.json = json_text("messages", list(messages))


_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""https://www.w3.org/TR/trace-context/#traceparent-header: version ff and ids of zeros are invalid."""

_NAME = re.compile(r"[ -~]{1,128}")
"""Printable ASCII, since the value may appear in headers and logs."""


class CallOptions(TypedDict, total=False):
    """Keyword arguments of `generate`, `stream` and `generate_many`.

    - `max_tokens` (128): maximum length of the answer, in tokens.
    - `sampling` (greedy): sampling parameters and stop words.
    - `timeout`: seconds for the whole call, retries included; inflight's server drops requests that are late.
    - `first_token_timeout`: seconds until the first token arrives, retries included. With a deployment that sends
      one response per request, the whole answer must arrive by then.
    - `request_id`: the id for `cancel`; random by default.
    - `priority` (0): requests with a higher priority leave the server's queue first.
    - `tenant`, `traceparent`: the tenant and the W3C trace of the request; both appear in the engine's events.
    - `return_log_probs`, `return_token_ids`, `return_perf_metrics`: values to return besides the text.
    - `top_log_probs` (0): how many likeliest tokens to return at each place, in the `top` of log probabilities.
    - `return_prompt_log_probs`: also the log probabilities of the prompt's tokens; the first one has none (NaN).
      `generate` returns token ids by default if the deployment supports them.
    - `add_special_tokens`: for a text: whether the server adds the tokenizer's special tokens, such as the one that
      begins a text; by default as the model's setting says.
    - `token_text`: with a model of token ids (`tensorrt_llm`): converts the answer's tokens to text. Without it, deltas
      have token ids and no text.
    - `chat_template_kwargs`: for messages: further arguments of the template (`tools`, `enable_thinking`, ...).
    """

    max_tokens: int
    sampling: Sampling
    timeout: float | None
    first_token_timeout: float | None
    request_id: str
    priority: int
    tenant: str
    traceparent: str
    return_log_probs: bool
    top_log_probs: int
    return_prompt_log_probs: bool
    return_token_ids: bool
    return_perf_metrics: bool
    add_special_tokens: bool | None
    token_text: TokenText
    chat_template_kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """A prompt with its options (see CallOptions). Raises InflightError for values that no server accepts."""

    prompt: Prompt | TokenIds
    stream: bool
    max_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    timeout: float | None = None
    first_token_timeout: float | None = None
    request_id: str = ""
    priority: int = 0
    tenant: str = ""
    traceparent: str = ""
    return_log_probs: bool = False
    top_log_probs: int = 0
    return_prompt_log_probs: bool = False
    return_token_ids: bool | None = None
    return_perf_metrics: bool = False
    add_special_tokens: bool | None = None
    token_text: TokenText | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    messages_json: str = field(init=False, default="")
    """The messages as a JSON array; empty for a text prompt."""
    template_kwargs_json: str = field(init=False, default="")
    """The template's further arguments as a JSON object; empty for a text prompt."""

    def __post_init__(self) -> None:
        self._validate_prompt()
        check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        check_int("priority", self.priority, -(2**31), 2**31 - 1)
        check_int("top_log_probs", self.top_log_probs, 0, 20)
        for name in ("timeout", "first_token_timeout"):
            check_timeout(name, getattr(self, name))
        if not isinstance(self.sampling, Sampling):
            raise invalid_value("sampling", self.sampling, "a Sampling")
        for name in ("request_id", "tenant"):
            value = getattr(self, name)
            if not isinstance(value, str) or (value and not _NAME.fullmatch(value)):
                raise invalid_value(name, value, "at most 128 printable ASCII characters")
        if not isinstance(self.traceparent, str) or (self.traceparent and not _TRACEPARENT.fullmatch(self.traceparent)):
            expected = "in the format of W3C Trace Context, 00-<32 hex>-<16 hex>-<2 hex>, neither id all zeros"
            raise invalid_value("traceparent", self.traceparent, expected)
        for name in (
            *("return_log_probs", "return_prompt_log_probs", "return_perf_metrics", "return_token_ids"),
            "add_special_tokens",
        ):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (
                value is None and name in ("return_token_ids", "add_special_tokens")
            ):
                raise invalid_value(name, value, "True or False")

    def _validate_prompt(self) -> None:
        """Validate the prompt and serialize messages now, so that later changes by the caller have no effect."""
        arguments = self.chat_template_kwargs
        if not isinstance(arguments, Mapping):
            raise invalid_value(
                "chat_template_kwargs", arguments, "a mapping from names that the template uses to values"
            )
        if isinstance(self.prompt, str | TokenIds):
            if isinstance(self.prompt, str):
                check_utf8("the prompt", self.prompt)
            elif not self.prompt.ids or not all(type(each) is int and 0 <= each < 2**31 for each in self.prompt.ids):
                raise invalid_value("the prompt", self.prompt.ids, "at least one token id of 0 or more")
            if arguments:
                raise InflightError(
                    "chat_template_kwargs needs messages, and the prompt has none; leave it out, or send messages",
                    "invalid_messages",
                )
            return
        prompt = self.prompt if isinstance(self.prompt, CheckedMessages) else CheckedMessages(self.prompt)
        object.__setattr__(self, "messages_json", prompt.json)
        object.__setattr__(self, "template_kwargs_json", json_text("chat_template_kwargs", arguments))

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.prompt, str | TokenIds)

    @property
    def wants_log_probs(self) -> bool:
        return self.return_log_probs or self.top_log_probs > 0

    @property
    def wants_token_ids(self) -> bool | None:
        """Whether to request token ids; None: if the deployment supports them."""
        if self.return_token_ids is None:
            return False if self.stream else None
        return self.return_token_ids


def validate_request_id(value: str) -> str:
    """Return the request id. Raises InflightError unless it is a non-empty text; other clients' ids are allowed."""
    if not isinstance(value, str) or not value:
        raise invalid_value("request_id", value, "the id of a request, a text of at least one character")
    check_utf8("request_id", value)
    return value


def _validate_messages(prompt: Any) -> None:
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise InflightError(
            f"the prompt is a {type(prompt).__name__}; it must be a text or a list of messages", "invalid_parameter"
        )
    for position, message in enumerate(prompt):
        if not (isinstance(message, Mapping) and isinstance(message.get("role"), str)):
            raise InflightError(
                f"message {position} is {shorten(message)}; each must be a mapping with a role", "invalid_messages"
            )
    if not prompt:
        raise InflightError("there are no messages; send at least one", "invalid_messages")
