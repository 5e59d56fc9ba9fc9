"""Results of calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

UNKNOWN = "unknown"
"""The finish reason if a deployment does not report why an answer ended."""


@dataclass(frozen=True)
class Usage:
    """Token counts of a request: of its prompt, including the template's tokens, and of its answer.

    `cached_tokens` are those of the prompt whose keys and values were known, which depends on requests before; None if
    the deployment doesn't tell them. Comparisons leave them out.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = field(default=None, compare=False)

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class _HasUsage(Protocol):
    @property
    def usage(self) -> Usage | None: ...


class _TokenCounts:
    """The token counts of a result whose `usage` may be None."""

    __slots__ = ()

    @property
    def input_tokens(self: _HasUsage) -> int | None:
        """Tokens of the prompt; None if the deployment does not count them."""
        return None if self.usage is None else self.usage.input_tokens

    @property
    def output_tokens(self: _HasUsage) -> int | None:
        """Tokens of the answer; None if the deployment does not count them."""
        return None if self.usage is None else self.usage.output_tokens


class LogProb(float):
    """The natural logarithm of a token's probability; `top` has those of the likeliest tokens there, by their ids."""

    top: Mapping[int, float]

    def __new__(cls, value: float, top: Mapping[int, float] = MappingProxyType({})) -> LogProb:
        self = super().__new__(cls, value)
        self.top = dict(top)
        return self


class _DeltaFields(NamedTuple):
    text: str
    finish_reason: str | None = None
    usage: Usage | None = None
    token_ids: tuple[int, ...] | None = None
    log_probs: tuple[LogProb, ...] | None = None
    prompt_log_probs: tuple[LogProb, ...] | None = None


class Delta(_DeltaFields, _TokenCounts):
    """One response of a streamed answer: the text that it adds (often one token, sometimes several or empty).

    Only the last delta has a finish reason: `stop`, `length`, `stop_word`, `cancelled`, or `unknown` if the deployment
    reports none. It also has the usage if the deployment counts tokens. `token_ids` and `log_probs` (natural
    logarithms, one for each token, see `LogProb`) belong to this response, if requested; the first delta has the
    `prompt_log_probs`. (A tuple, since there may be one for every
    token.)
    """

    __slots__ = ()


@dataclass(frozen=True)
class ServerTimings:
    """Times in the engine, in seconds after the request arrived there; `return_perf_metrics` requests them."""

    first_scheduled: float
    first_token: float
    last_token: float


@dataclass(frozen=True)
class Timings:
    """The duration of a call with all its attempts, in seconds of the client's clock.

    `first_token` is the time to the first response (the caller's TTFT), `total` to the last one; `attempts` is the
    number of times the request was sent.
    """

    first_token: float
    total: float
    attempts: int = 1
    server: ServerTimings | None = None


@dataclass(frozen=True)
class Generation(_TokenCounts):
    """A complete answer with its finish reason, token counts and timings.

    `usage` may be unknown (None); `token_ids` and `log_probs` are only set if requested.
    `cumulative_log_prob` is the sum of all log probabilities.
    """

    text: str
    finish_reason: str
    usage: Usage | None
    timings: Timings
    request_id: str
    token_ids: tuple[int, ...] | None = None
    log_probs: tuple[LogProb, ...] | None = None
    prompt_log_probs: tuple[LogProb, ...] | None = None
    cumulative_log_prob: float | None = None


@dataclass(frozen=True)
class Health:
    """The health of a server: whether it is live, whether it is ready, and whether the client's model is ready."""

    live: bool
    ready: bool
    model_ready: bool
    reason: str = ""
    """Why the server is not healthy, in one sentence; empty if it is."""

    @classmethod
    def from_states(cls, live: bool, ready: bool, model_ready: bool) -> Health:
        """Return the health for the states that a server reports."""
        if not live:
            return cls(live, ready, model_ready, "the server is being started or ended")
        if not ready:
            return cls(live, ready, model_ready, "not all models of the server are ready")
        return cls(live, ready, model_ready, "" if model_ready else "the model is not ready")

    def __bool__(self) -> bool:
        return self.live and self.ready and self.model_ready


@dataclass(frozen=True)
class Model:
    """A model of the server's repository: `state` is Triton's (`READY`, `UNAVAILABLE`), `reason` its explanation.

    `task` is what a gateway says that the model does: `generate`, `embed`, `rerank` or `classify`.
    """

    name: str
    version: str
    state: str
    reason: str = ""
    task: str = ""

    @property
    def ready(self) -> bool:
        return self.state == "READY"
