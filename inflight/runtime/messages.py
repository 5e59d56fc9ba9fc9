"""Messages between a model and its engine: requests, events, and the engine's limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from inflight.common.request_error import RequestError

MAX_STOP_SYMBOLS = 8192
"""Limit of the token ids and characters of one request's stop words, whose search takes memory."""

MAX_GUIDE_CHARACTERS = 1 << 16
MAX_TOP_LOG_PROBS = 20


class FinishReason(str, Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    STOP_WORD = "stop_word"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


class GuideType(str, Enum):
    """The language of a guide, by upstream's names; `json` has no text and accepts any JSON."""

    JSON = "json"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF_GRAMMAR = "ebnf_grammar"


@dataclass(frozen=True)
class DecodingGuide:
    """A pattern that the answer must match; `text` is empty with GuideType.JSON."""

    type: GuideType
    text: str = ""


@dataclass(frozen=True)
class SamplingConfig:
    """How the next token is chosen. The defaults are greedy and change no logit.

    As in TensorRT-LLM, a request samples if `top_k` > 1 or `top_p` > 0; `temperature` alone changes nothing, and
    `temperature` = 0 or `top_k` = 1 makes it greedy. 0 disables `top_k` and `top_p`. Without a seed, each request gets
    a random one.
    """

    temperature: float | None = None
    top_k: int = 0
    top_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_p: float = 0.0
    """The share of the likeliest token's probability below which no token is chosen; counts after top_k and top_p."""
    min_tokens: int = 0
    beam_width: int = 1
    length_penalty: float = 0.0
    """Exponent of the length that divides a beam's score; 0 leaves the sum of log probabilities."""
    early_stopping: bool = True
    """Whether a beam search ends once `beam_width` beams are complete, or when no better one is possible."""

    @property
    def greedy(self) -> bool:
        if self.top_k == 1 or self.temperature == 0:
            return True
        return self.top_k == 0 and self.top_p == 0

    @property
    def reshapes(self) -> bool:
        """Whether it changes the distribution; a temperature of 1 and a top_p of 1 don't."""
        return self.temperature not in (None, 0.0, 1.0) or self.top_k > 1 or self.top_p not in (0.0, 1.0)


class RequestMetadata(NamedTuple):
    """Where a request comes from: its tenant, its W3C trace, and the version of the client that sent it.

    Missing values are empty.
    """

    tenant: str = ""
    traceparent: str = ""
    client: str = ""


def tenant_of(metadata: RequestMetadata | None) -> str:
    """Return the request's tenant; "" without one."""
    return metadata.tenant if metadata is not None else ""


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt to continue: token ids, at most `max_tokens` new ones, ended early by any of `end_ids`.

    `log_probs` asks for those of the answer's tokens, `prompt_log_probs` for those of the prompt's, `top_log_probs` for
    those of this many likeliest tokens at each place. If there are `allowed_ids`, all other tokens are banned.
    `stop_ids` are stop words as token ids, `stop_texts` as text; the first one found ends the answer and is cut from
    it. `bad_ids` are words, as token ids, that the answer must not contain; `logit_bias` are pairs of a token id and
    the number added to its logit. Requests with a higher `priority` leave the queue first. `deadline_ns` is a time of
    the machine's monotonic clock. `adapter` selects a LoRA adapter of the deployment; 0 selects none of them.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    end_ids: tuple[int, ...] = ()
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    stop_ids: tuple[tuple[int, ...], ...] = ()
    stop_texts: tuple[str, ...] = ()
    bad_ids: tuple[tuple[int, ...], ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_ids: tuple[int, ...] = ()
    log_probs: bool = False
    top_log_probs: int = 0
    prompt_log_probs: bool = False
    guide: DecodingGuide | None = None
    adapter: int = 0
    priority: int = 0
    deadline_ns: int | None = None
    metadata: RequestMetadata | None = None

    @property
    def worst_case_tokens(self) -> int:
        """Return the tokens whose keys and values the cache must hold if the answer takes its full length."""
        return (len(self.prompt_ids) + self.max_tokens) * self.sampling.beam_width


class LogProb(float):
    """The log probability of a token, with those of the likeliest tokens at its place if they were asked for."""

    top: tuple[tuple[int, float], ...]

    def __new__(cls, value: float, top: tuple[tuple[int, float], ...] = ()) -> LogProb:
        self = super().__new__(cls, value)
        self.top = top
        return self


@dataclass(frozen=True)
class RequestTimings:
    """Times of a request in nanoseconds of the machine's monotonic clock; 0 for a stage that it did not reach."""

    arrival_ns: int
    admitted_ns: int = 0
    first_token_ns: int = 0
    end_ns: int = 0


@dataclass(frozen=True)
class Beam:
    """One sequence of a beam search: its tokens, their log probabilities (if requested) and the sum of these."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    cumulative_log_prob: float = 0.0


@dataclass(frozen=True)
class SpeculationStats:
    """How many tokens were drafted for a request, and how many of them were accepted."""

    drafted: int = 0
    accepted: int = 0


class TokenEvent(NamedTuple):
    """New tokens of one request. Only the last event of a request has a finish reason.

    The first and the last event have `timings`; if these are two events, the first has no end time. `log_probs` has a
    number for each of `token_ids` if requested, `prompt_log_probs` of the first event one for each token of the prompt,
    NaN for the first token. A stop word may begin within the text of the last token:
    `dropped_characters` is how many characters at the end of the text, decoded as final, are not part of the answer.
    Tokens that may belong to a stop word are held back until that is decided. A beam search has one event, the last,
    with all `beams`, the best first, and no `token_ids`. (A tuple, since one is made per token and request, and
    creating a frozen dataclass takes seven times as long.)
    """

    handle: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    timings: RequestTimings | None = None
    error: tuple[str, str] | None = None
    """Message and code, with `FinishReason.ERROR`."""
    log_probs: tuple[float, ...] = ()
    dropped_characters: int = 0
    beams: tuple[Beam, ...] = ()
    speculation: SpeculationStats | None = None
    prompt_log_probs: tuple[float, ...] = ()
    cached_tokens: int | None = None
    """Of the prompt, those whose keys and values were in the cache; in the last event, if the engine counts them."""
    kv_blocks: int = 0
    """Blocks of the paged KV cache that the request filled; set in the last event."""
    metadata: RequestMetadata | None = None
    """The request's metadata, in events that have timings."""


EventSink = Callable[[TokenEvent], None]


@dataclass(frozen=True)
class EngineLimits:
    """The limits of a loaded engine. Lengths and the cache are counted in tokens."""

    vocabulary_size: int
    max_seq_len: int
    kv_block_tokens: int
    kv_blocks: int
    max_num_sequences: int

    def check(self, request: GenerationRequest, names: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raise RequestError for a request that the engine can't run; `names` maps fields to the sender's names."""
        if not request.prompt_ids:
            raise RequestError("the prompt holds no token; send at least one", "empty_prompt")
        if request.max_tokens < 1:
            name = names.get("max_tokens", "max_tokens")
            raise RequestError(f"{name} is {request.max_tokens}; it must be 1 or more", "invalid_parameter")
        for field_name in ("prompt_ids", "end_ids", "allowed_ids"):
            self._check_ids(getattr(request, field_name), names.get(field_name, field_name))
        self._check_ids(tuple(token for word in request.bad_ids for token in word), names.get("bad_ids", "bad_ids"))
        self._check_bias(request, names.get("logit_bias", "logit_bias"))
        if not 0 <= request.top_log_probs <= MAX_TOP_LOG_PROBS:
            raise RequestError(
                f"num_top_log_probs is {request.top_log_probs}; it must be from 0 to {MAX_TOP_LOG_PROBS}",
                "invalid_parameter",
            )
        self._check_beams(request)
        check_stop_words(request)
        beams, name = request.sampling.beam_width, names.get("max_tokens", "max_tokens")
        self.check_length(len(request.prompt_ids), request.max_tokens, beams, name)

    def _check_bias(self, request: GenerationRequest, name: str) -> None:
        self._check_ids(tuple(token for token, _ in request.logit_bias), name)
        for token, bias in request.logit_bias:
            if math.isnan(bias) or bias == math.inf:
                raise RequestError(f"{name} is {bias} for token {token}; send numbers", "invalid_parameter")

    def _check_beams(self, request: GenerationRequest) -> None:
        beams = request.sampling.beam_width
        if not 1 <= beams <= self.max_num_sequences:
            raise RequestError(
                f"beam_width is {beams}; it must be 1 or more, and at most the {self.max_num_sequences} sequences that"
                " the engine runs at a time",
                "invalid_parameter",
            )
        if beams > 1 and (request.top_log_probs or request.prompt_log_probs):
            raise RequestError(
                f"beam_width is {beams}, and a beam search returns the log probabilities of its own tokens alone; leave"
                " out num_top_log_probs and return_prompt_log_probs",
                "invalid_parameter",
            )

    def check_length(self, prompt: int, max_tokens: int, beams: int = 1, name: str = "max_tokens") -> None:
        """Raise RequestError (`prompt_too_long`) if a prompt of this many tokens and its answer exceed a limit."""
        tokens = prompt + max_tokens
        of_cache = self.kv_blocks // beams * self.kv_block_tokens
        most = min(self.max_seq_len, of_cache)
        if tokens > most:
            why = f" with beam_width of {beams}" if beams > 1 and of_cache < self.max_seq_len else ""
            raise RequestError(
                f"the prompt's {prompt} tokens and {name} of {max_tokens} make {tokens}, and the engine takes"
                f" {most}{why}; shorten the prompt or lower {name}",
                "prompt_too_long",
            )

    def _check_ids(self, token_ids: tuple[int, ...], name: str) -> None:
        if not token_ids:
            return
        low, high = min(token_ids), max(token_ids)
        if low < 0 or high >= self.vocabulary_size:
            outside = low if low < 0 else high
            raise RequestError(
                f"{name}: token id {outside} is outside the vocabulary of {self.vocabulary_size} tokens; use the"
                " engine's own tokenizer",
                "invalid_token_ids",
            )

    def kv_blocks_for(self, request: GenerationRequest) -> int:
        """Return the number of KV cache blocks in the request's worst case; each beam fills its own."""
        beams = request.sampling.beam_width
        return beams * self.blocks_for_tokens(request.worst_case_tokens // beams)

    def blocks_for_tokens(self, tokens: int) -> int:
        """Return the number of blocks for this many tokens of one sequence."""
        return -(-tokens // self.kv_block_tokens)


def check_stop_words(request: GenerationRequest) -> None:
    """Raise RequestError (`invalid_parameter`) if the stop words are too long in total."""
    symbols = sum(map(len, request.stop_ids)) + sum(map(len, request.stop_texts))
    if symbols > MAX_STOP_SYMBOLS:
        raise RequestError(
            f"the stop words hold {symbols} token ids and characters together; send at most {MAX_STOP_SYMBOLS}",
            "invalid_parameter",
        )


@dataclass(frozen=True)
class EngineStats:
    """Statistics of an engine between two steps.

    `running` includes `prefilling`, the requests without a first token. A beam search, which has no output before its
    end, never counts as prefilling.
    """

    waiting: int
    running: int
    kv_blocks_reserved: int
    kv_blocks: int
    steps: int
    prefilling: int = 0
    prefilling_tokens: int = 0
    """Prompt tokens of the requests that prefill."""
    prefilled: int = 0
    """Prompt tokens computed since the process started."""
    generated: int = 0
    """Tokens generated since then, those of all beams once a search ends."""
