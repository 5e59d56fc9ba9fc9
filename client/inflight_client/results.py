"""What calls give back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

UNKNOWN = "unknown"
"""The finish reason where a deployment says that an answer ended, and not why."""


@dataclass(frozen=True)
class Usage:
    """Tokens of a request: of its prompt, with what the template added, and of its answer."""

    input_tokens: int
    output_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class _HasUsage(Protocol):
    @property
    def usage(self) -> Usage | None: ...


class _TokenCounts:
    """The usage's counts, of what may have one."""

    __slots__ = ()

    @property
    def input_tokens(self: _HasUsage) -> int | None:
        """Tokens of the prompt; None where nobody counted them."""
        return None if self.usage is None else self.usage.input_tokens

    @property
    def output_tokens(self: _HasUsage) -> int | None:
        """Tokens of the answer; None where nobody counted them."""
        return None if self.usage is None else self.usage.output_tokens


class _DeltaFields(NamedTuple):
    text: str
    finish_reason: str | None = None
    usage: Usage | None = None
    token_ids: tuple[int, ...] | None = None
    log_probs: tuple[float, ...] | None = None


class Delta(_DeltaFields, _TokenCounts):
    """One step of a streamed answer: the text that it adds (often one token's, at times none).

    The last delta, and only that, has a finish reason: `stop`, `length`, `stop_word`, `cancelled`, or `unknown` where
    the deployment tells none. It has the usage too, where the deployment counts. `token_ids` and `log_probs` (natural
    logarithms, one for each token) are this step's, where asked for. (A tuple: one is made for every token.)
    """

    __slots__ = ()


@dataclass(frozen=True)
class ServerTimings:
    """Moments in the engine, in seconds after the request's arrival there; `return_perf_metrics` asks for them."""

    first_scheduled: float
    first_token: float
    last_token: float


@dataclass(frozen=True)
class Timings:
    """How long a call took, in seconds of the client's clock, with all its attempts.

    `first_token` is the time to the first response (TTFT as the caller sees it), `total` to the last one; `attempts` is
    how often the request was sent.
    """

    first_token: float
    total: float
    attempts: int = 1
    server: ServerTimings | None = None


@dataclass(frozen=True)
class Generation(_TokenCounts):
    """A whole answer, why it ended, how many tokens went in and came out, and how long it took.

    `usage` is None where the deployment counts no tokens; `token_ids` and `log_probs` where they were not asked for.
    `cumulative_log_prob` is the sum of all log probabilities.
    """

    text: str
    finish_reason: str
    usage: Usage | None
    timings: Timings
    request_id: str
    token_ids: tuple[int, ...] | None = None
    log_probs: tuple[float, ...] | None = None
    cumulative_log_prob: float | None = None


@dataclass(frozen=True)
class Health:
    """How a server stands: does it answer, would it take requests, and is the client's own model ready."""

    live: bool
    ready: bool
    model_ready: bool
    reason: str = ""
    """Why not, in a sentence; empty where all is well."""

    @classmethod
    def from_states(cls, live: bool, ready: bool, model_ready: bool) -> Health:
        """What a server says of itself."""
        if not live:
            return cls(live, ready, model_ready, "the server is being started or ended")
        if not ready:
            return cls(live, ready, model_ready, "not all models of the server are ready")
        return cls(live, ready, model_ready, "" if model_ready else "the model is not ready")

    def __bool__(self) -> bool:
        return self.live and self.ready and self.model_ready


@dataclass(frozen=True)
class Model:
    """A model of the server's repository: `state` is Triton's (`READY`, `UNAVAILABLE`), `reason` its words for it."""

    name: str
    version: str
    state: str
    reason: str = ""

    @property
    def ready(self) -> bool:
        return self.state == "READY"
