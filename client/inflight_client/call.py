"""One call as its caller asks for it, checked before anything is sent."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, TypedDict

from inflight_client.errors import InflightError
from inflight_client.sampling import Sampling

Message = Mapping[str, Any]
"""A chat message: `role`, `content`, and whatever else the model's template reads."""

Prompt = str | Sequence[Message]
"""What is to be continued: a text, or the messages of a conversation."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_NAME = re.compile(r"[ -~]{1,128}")
"""Printable ASCII, as it may go into headers and logs."""


class CallOptions(TypedDict, total=False):
    """What `generate`, `stream` and `generate_many` take by name.

    - `max_tokens` (128): the longest answer, in tokens.
    - `sampling` (greedy): how tokens are chosen, and where the answer stops.
    - `timeout`: seconds for the whole call, retries included. Servers of inflight are told, and drop what is too late.
    - `first_token_timeout`: seconds until the first token is there, retries included. A deployment that gives one
      response to a request has its whole answer there by then.
    - `request_id`: the id to cancel the request by; a random one unless given.
    - `priority` (0): requests with a higher one leave the server's queue first.
    - `tenant`, `traceparent`: on whose account, and as part of which trace (W3C); both reach the engine's events.
    - `return_log_probs`, `return_token_ids`, `return_perf_metrics`: what to tell beside the text. Token ids come
      with `generate` without being asked for, where the deployment has them.
    - `chat_template_kwargs`: for messages, what the template is given beside them (`tools`, `enable_thinking`, ...).
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
    return_token_ids: bool
    return_perf_metrics: bool
    chat_template_kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """A prompt with its options (see CallOptions). Raises InflightError for what no server would take."""

    prompt: Prompt
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
    return_token_ids: bool | None = None
    return_perf_metrics: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_prompt(self.prompt)
        _check_whole("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _check_whole("priority", self.priority, -(2**31), 2**31 - 1)
        for name in ("timeout", "first_token_timeout"):
            _check_seconds(name, getattr(self, name))
        if not isinstance(self.sampling, Sampling):
            raise _wrong("sampling", self.sampling, "a Sampling")
        for name in ("request_id", "tenant"):
            value = getattr(self, name)
            if not isinstance(value, str) or (value and not _NAME.fullmatch(value)):
                raise _wrong(name, value, "at most 128 printable ASCII characters")
        if not isinstance(self.traceparent, str) or (self.traceparent and not _TRACEPARENT.fullmatch(self.traceparent)):
            raise _wrong("traceparent", self.traceparent, "as W3C's Trace Context has it, 00-<32 hex>-<16 hex>-<2 hex>")

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.prompt, str)

    @property
    def wants_token_ids(self) -> bool | None:
        """Whether to ask for token ids; None: where the deployment has them."""
        if self.return_token_ids is None:
            return False if self.stream else None
        return self.return_token_ids


def _check_prompt(prompt: Any) -> None:
    if isinstance(prompt, str):
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise InflightError(f"the prompt can't be encoded as UTF-8: {error.reason}", "invalid_text") from None
        return
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise InflightError(
            f"the prompt is a {type(prompt).__name__}; it must be a text or a list of messages", "invalid_text"
        )
    for position, message in enumerate(prompt):
        if not (isinstance(message, Mapping) and isinstance(message.get("role"), str)):
            raise InflightError(
                f"message {position} is {str(message)[:60]!r}; each must be a mapping with a role", "invalid_messages"
            )
    if not prompt:
        raise InflightError("there are no messages; send at least one", "invalid_messages")


def _check_whole(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or not low <= int(value) <= high:
        raise _wrong(name, value, f"a whole number from {low} to {high}")


def _check_seconds(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, Real) and math.isfinite(value) and float(value) > 0):
        raise _wrong(name, value, "a number of seconds above 0, or None")


def _wrong(name: str, value: Any, wanted: str) -> InflightError:
    return InflightError(f"{name} is {str(value)[:60]}; it must be {wanted}", "invalid_parameter")
