"""Chooses the next token of each sequence, exactly by the distribution that its sampling parameters describe.

Each token's scaled log probability gets noise of the Gumbel distribution, and the largest sum is chosen (Maddison et
al., A* Sampling, https://arxiv.org/abs/1411.0030). The noise depends on seed, place and token alone, so an answer is
the same whatever runs beside it, unless two sums are closer than the rounding of logits.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import openvino
import openvino.opset13 as ops
from numpy.typing import NDArray

from inflight.runtime.backends.openvino.guides import Guided
from inflight.runtime.messages import GenerationRequest, LogProb, SamplingConfig

CANDIDATES = 64
"""The likeliest tokens that are found for all rows at once; top_p and top_k mostly leave fewer."""
LOWEST_TEMPERATURE = 1e-4
"""Below it, scaled logits overflow 32 bits; at it, the likeliest token is chosen almost always."""

_LARGEST = 1e9
"""Logits that penalties and biases make stay within it: a temperature may multiply them."""

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

_GOLDEN = 0x9E3779B97F4A7C15
_ATTEMPTS = 4
"""Tokens that are drawn where the likeliest ones do not make top_p, before a row is sorted."""


class Choice(NamedTuple):
    """A chosen token, and its log probability in the model's own distribution if it was asked for.

    The token is -1 if the request allows none.
    """

    token: int
    log_prob: LogProb | None = None


@dataclass
class SamplingState:
    """What the choice of a sequence's next token depends on besides its logits."""

    request: GenerationRequest
    generated: list[int] = field(default_factory=list)
    guided: Guided | None = None

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self._penalizes = (*(sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty),) != (
            1.0,
            0.0,
            0.0,
        )
        self.seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self.temperature = 1.0 if sampling.temperature is None else max(sampling.temperature, LOWEST_TEMPERATURE)

    def ahead(self, tokens: Sequence[int]) -> SamplingState:
        """Return the state behind these further tokens."""
        if not tokens:
            return self
        guided = self.guided.ahead(tokens) if self.guided is not None else None
        other = SamplingState(self.request, [*self.generated, *tokens], guided)
        other.seed = self.seed
        return other

    @property
    def edits(self) -> bool:
        """Whether it changes logits."""
        request = self.request
        changes = request.logit_bias or request.bad_ids or request.allowed_ids
        return bool(self._penalizes or changes or self._is_short or self.guided)

    @property
    def _is_short(self) -> bool:
        return len(self.generated) < self.request.sampling.min_tokens

    def edit(self, logits: Logits) -> bool:
        """Apply penalties, biases and bans to a row of logits; return whether they leave any token."""
        request = self.request
        if self._penalizes:
            self._penalize(logits)
        if request.allowed_ids:
            bans = np.full(len(logits), -np.inf, np.float32)
            bans[list(request.allowed_ids)] = 0
            logits += bans
        for token, bias in request.logit_bias:
            logits[token] += _finite(bias)
        for word in request.bad_ids:
            begun = len(word) - 1
            if not begun or tuple(self.generated[-begun:]) == word[:-1]:
                logits[word[-1]] = -np.inf
        if self.guided is not None:
            self.guided.mask(logits)
        if self._is_short:
            allowed = logits[list(request.end_ids)]
            logits[list(request.end_ids)] = -np.inf
            if not np.isfinite(logits).any():  # a guide, or the allowed tokens, leave nothing but the end
                logits[list(request.end_ids)] = allowed
        return not (request.bad_ids or request.allowed_ids or self.guided) or bool((logits > -np.inf).any())

    def _penalize(self, logits: Logits) -> None:
        sampling = self.request.sampling
        if (penalty := sampling.repetition_penalty) != 1:
            seen = np.unique(np.array([*self.request.prompt_ids, *self.generated]))
            found = logits[seen].astype(np.float64)
            logits[seen] = _finite(np.where(found > 0, found / penalty, found * penalty))
        tokens, counts = np.unique(np.array(self.generated, np.int64), return_counts=True)
        logits[tokens] -= (sampling.presence_penalty + sampling.frequency_penalty * counts).astype(np.float32)


class Sampler:
    """Samples all sequences of a step. What takes passes over the vocabulary is done by small compiled models."""

    def __init__(self, vocabulary_size: int, threads: int = 0) -> None:
        self._size, self._block = vocabulary_size, _block_size(vocabulary_size)
        self._columns = min(CANDIDATES, vocabulary_size)
        logits = ops.parameter([-1, -1], openvino.Type.f32)
        scales, totals, limits = (ops.parameter([-1, 1], openvino.Type.f32) for _ in range(3))
        scaled, axis = ops.multiply(logits, scales), np.array([1])
        largest = ops.reduce_max(scaled, axis, True)
        blocks = ops.reshape(ops.exp(ops.subtract(scaled, largest)), np.array([0, -1, self._block]), True)
        sums = [largest.output(0), ops.reduce_sum(blocks, np.array([2]), False).output(0)]
        top = ops.topk(scaled, np.int64(self._columns), 1, "max", "value", index_element_type="i32").outputs()
        above = ops.convert(ops.greater(scaled, limits), openvino.Type.f32)
        mass = ops.reduce_sum(ops.multiply(ops.exp(ops.subtract(scaled, totals)), above), axis, False)
        self._sums = _compiled(sums, [logits, scales], threads)
        self._top = _compiled(top, [logits, scales], threads)
        self._above = _compiled([mass.output(0)], [logits, scales, totals, limits], threads)

    def sample(self, logits: Logits, states: Sequence[SamplingState]) -> list[Choice]:
        """Return a token for each row of logits [sequences, vocabulary], which may be changed."""
        asked = [row for row, state in enumerate(states) if state.request.log_probs]
        own = logits[asked]  # a copy, before edits
        barred = [row for row, state in enumerate(states) if state.edits and not state.edit(logits[row])]
        logits[barred] = 0
        greedy = [row for row, state in enumerate(states) if state.request.sampling.greedy]
        others = [row for row, state in enumerate(states) if not state.request.sampling.greedy]
        tokens = np.empty(len(states), np.int64)
        if greedy:
            tokens[greedy] = _rows(logits, greedy).argmax(-1)
        if others:
            tokens[others] = self._sampled(_rows(logits, others), [states[row] for row in others])
        tokens[barred] = -1
        found = tokens.tolist()
        requests = [states[row].request for row in asked]
        wanted = [max(found[row], 0) for row in asked]
        log_probs = dict(zip(asked, self.log_probs_of(own, wanted, requests), strict=True))
        return [Choice(token, log_probs.get(row)) for row, token in enumerate(found)]

    def log_probs_of(self, logits: Logits, tokens: list[int], requests: Sequence[GenerationRequest]) -> list[LogProb]:
        """Return the log probability of a token for each row of logits, with the likeliest ones as requests ask."""
        if not tokens:
            return []
        ones = np.ones(len(tokens))
        totals = self._totals(logits, ones)[0]
        values = (logits[np.arange(len(tokens)), tokens] - totals).tolist()
        if not any(request.top_log_probs for request in requests):
            return [LogProb(value) for value in values]
        likeliest, places = self._run(self._top, logits, ones)
        tops = zip(places.astype(int).tolist(), (likeliest - totals[:, None]).tolist(), strict=True)
        return [
            LogProb(value, tuple(zip(ids, each, strict=True))[: request.top_log_probs])
            for value, (ids, each), request in zip(values, tops, requests, strict=True)
        ]

    def log_probs(self, logits: Logits) -> Logits:
        """Return the log probabilities of rows of logits."""
        return logits - self._totals(logits, np.ones(len(logits)))[0][:, None].astype(np.float32)

    def _sampled(self, logits: Logits, states: Sequence[SamplingState]) -> Ids:
        scales = np.array([1 / state.temperature for state in states])
        totals, sums = self._totals(logits, scales)
        samplings = [state.request.sampling for state in states]
        chosen = np.full(len(states), -1)
        filtered = [row for row, each in enumerate(samplings) if each.top_k or each.min_p or 0 < each.top_p < 1]
        if filtered:
            chosen[filtered] = self._of_likeliest(
                _rows(logits, filtered), scales[filtered], totals[filtered], [states[row] for row in filtered]
            )
        for attempt in range(_ATTEMPTS):
            rows = np.flatnonzero(chosen < 0)
            if attempt:  # those whose token was not among the likeliest ones, with top_p alone
                rows = np.array([row for row in rows if _is_of_top_p(samplings[row])], np.int64)
            if not len(rows):
                break
            drawn = self._of_any(logits, rows, scales, sums, [states[row] for row in rows], attempt)
            tried = np.array([place for place, row in enumerate(rows) if row in filtered], np.int64)
            kept = np.ones(len(rows), bool)
            if len(tried):
                kept[tried] = self._are_kept(logits, rows[tried], drawn[tried], scales, totals, samplings)
            chosen[rows[kept]] = drawn[kept]
        for row in np.flatnonzero(chosen < 0).tolist():
            base = np.uint64(_base(states[row].seed, len(states[row].generated), _ATTEMPTS))
            chosen[row] = _of_all(logits[row], scales[row], totals[row], samplings[row], base)
        return chosen

    def _of_likeliest(self, logits: Logits, scales: Floats, totals: Floats, states: Sequence[SamplingState]) -> Ids:
        """Return the chosen tokens of rows whose likeliest tokens are all that may be chosen; -1 for others."""
        values, places = self._run(self._top, logits, scales)
        tokens = places.astype(np.int64)
        log_probs = values - totals[:, None]
        kept, complete = _keep(np.exp(log_probs), [state.request.sampling for state in states], self._size)
        best = np.where(kept, log_probs + _gumbel(_bases(states, 0)[:, None], tokens), -np.inf).argmax(1)
        return np.where(complete, tokens[np.arange(len(states)), best], -1)

    def _of_any(
        self, logits: Logits, rows: Ids, scales: Floats, sums: Floats, states: Sequence[SamplingState], attempt: int
    ) -> Ids:
        """Return tokens by their probabilities alone: first a block of the vocabulary, then one of its tokens."""
        bases = _bases(states, attempt + 1)[:, None]
        with np.errstate(divide="ignore"):
            weights = np.log(sums[rows])
        blocks = (weights + _gumbel(bases, self._size + np.arange(weights.shape[1]))).argmax(1)
        inner = logits.reshape(len(logits), -1, self._block)[rows, blocks] * scales[rows, None]
        tokens = blocks[:, None] * self._block + np.arange(self._block)
        found: Ids = tokens[np.arange(len(rows)), (inner + _gumbel(bases, tokens)).argmax(1)]
        return found

    def _are_kept(
        self,
        logits: Logits,
        rows: Ids,
        tokens: Ids,
        scales: Floats,
        totals: Floats,
        samplings: Sequence[SamplingConfig],
    ) -> NDArray[np.bool_]:
        """Return whether each token is among the likeliest ones that make top_p."""
        limits = (logits[rows, tokens] * scales[rows].astype(np.float32)).astype(np.float64)
        (mass,) = self._run(self._above, logits[rows], scales[rows], totals[rows], limits)
        shares = np.array([samplings[row].top_p for row in rows])
        alone = np.array([_is_of_top_p(samplings[row]) for row in rows])
        found: NDArray[np.bool_] = alone & (mass < shares)
        return found

    def _totals(self, logits: Logits, scales: Floats) -> tuple[Floats, Floats]:
        """Return the log-sum-exp of each row's scaled logits, and the parts of it in blocks of the vocabulary."""
        largest, sums = self._run(self._sums, logits, scales)
        return np.log(sums.sum(1)) + largest[:, 0], sums

    def _run(self, model: Any, logits: Logits, *columns: Floats) -> list[Floats]:
        given = (np.ascontiguousarray(logits), *(column[:, None].astype(np.float32) for column in columns))
        return [found.astype(np.float64) for found in model([openvino.Tensor(each) for each in given]).values()]


def _finite(values: Any) -> Any:
    return np.clip(values, -_LARGEST, _LARGEST)


def _rows(logits: Logits, rows: list[int]) -> Logits:
    return logits if len(rows) == len(logits) else logits[rows]


def _keep(
    probabilities: Floats, samplings: Sequence[SamplingConfig], vocabulary_size: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which of each row's tokens, in falling order, may be chosen, and whether no others may.

    `top_k` counts first; `top_p` is a share of what it leaves, `min_p` one of the likeliest token's, as transformers
    has it.
    """
    columns = probabilities.shape[1]
    ks = np.array([sampling.top_k or vocabulary_size for sampling in samplings])[:, None]
    shares = np.array([sampling.top_p if 0 < sampling.top_p < 1 else np.inf for sampling in samplings])[:, None]
    in_k = np.arange(columns) < ks
    sums = np.cumsum(np.where(in_k, probabilities, 0), 1)
    limits = shares * np.where(ks < vocabulary_size, sums[:, -1:], 1)
    likely = probabilities >= np.array([sampling.min_p for sampling in samplings])[:, None] * probabilities[:, :1]
    kept = in_k & (sums - probabilities < limits) & likely
    complete = (ks[:, 0] <= columns) | ((ks[:, 0] >= vocabulary_size) & (sums[:, -1] >= limits[:, 0]))
    return kept, complete | ~likely[:, -1] | (columns == vocabulary_size)


def _is_of_top_p(sampling: SamplingConfig) -> bool:
    """Whether top_p alone says which tokens may be chosen."""
    return not (sampling.top_k or sampling.min_p)


def _of_all(row: Logits, scale: float, total: float, sampling: SamplingConfig, base: np.uint64) -> int:
    """Choose among all tokens of a row."""
    order = np.argsort(-row, kind="stable")
    log_probs = row[order].astype(np.float64) * scale - total
    kept = _keep(np.exp(log_probs)[None], [sampling], len(row))[0][0]
    order = order[kept]
    return int(order[(log_probs[kept] + _gumbel(base, order)).argmax()])


def _bases(states: Sequence[SamplingState], attempt: int) -> NDArray[np.uint64]:
    return np.array([_base(state.seed, len(state.generated), attempt) for state in states], np.uint64)


def _base(seed: int, place: int, attempt: int) -> int:
    """Return where the noise of an attempt at a place begins. Seeds and places in a row give unrelated ones."""
    found = seed
    for each in (place, attempt):
        found = (found + each + 1) * _GOLDEN % 2**64
        found = (found ^ found >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        found = (found ^ found >> 27) * 0x94D049BB133111EB % 2**64
        found ^= found >> 31
    return found


def _gumbel(base: Any, tokens: Ids) -> Floats:
    """Return noise for each token: outputs of SplitMix64 as uniform numbers, as Gumbel's."""
    with np.errstate(over="ignore"):
        found = base + tokens.astype(np.uint64) * np.uint64(_GOLDEN)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    uniform = (found >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
    result: Floats = -np.log(-np.log(uniform))
    return result


def _block_size(vocabulary_size: int) -> int:
    """Return the largest size below 1,024 of which the vocabulary is a multiple; the vocabulary's if that is small."""
    found = max(size for size in range(1, min(1024, vocabulary_size) + 1) if vocabulary_size % size == 0)
    return found if found >= 16 else vocabulary_size


def _compiled(outputs: list[Any], inputs: list[Any], threads: int) -> Any:
    threading = {"INFERENCE_NUM_THREADS": threads} if threads else {}
    return openvino.Core().compile_model(
        openvino.Model(outputs, inputs, "sampler"),
        "CPU",
        {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", **threading},
    )
