"""Chooses the next token of each sequence, exactly by the distribution that its sampling parameters describe.

Each token's scaled log probability gets noise of the Gumbel distribution, and the largest sum is chosen (Maddison et
al., A* Sampling, https://arxiv.org/abs/1411.0030). The noise depends on seed, place and token alone, so an answer is
the same whatever runs beside it, unless two sums are closer than the rounding of logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import openvino
import openvino.opset13 as ops
from numpy.typing import NDArray

from inflight.runtime.backends.openvino.sampling_state import Logits, SamplingState
from inflight.runtime.messages import GenerationRequest, LogProb, SamplingConfig

CANDIDATES = 64
"""The likeliest tokens that are found for all rows at once; top_p and top_k mostly leave fewer."""


Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

_GOLDEN = 0x9E3779B97F4A7C15
_ROWS = 8
"""Rows of logits in one run of a compiled model; 4 to 16 are about as fast, all 64 take twice as long."""
_HUGE = 1e38
"""Times any difference of two logits, it is 1 or more."""
_PART = 6
"""Whether a token is within top_p is first looked for in a sixth of the vocabulary."""
_ROUNDING = 1e-4
_ATTEMPTS = 4
"""Tokens that are drawn where the likeliest ones do not make top_p, before a row is sorted."""


class Choice(NamedTuple):
    """A chosen token, and its log probability in the model's own distribution if it was asked for.

    The token is -1 if the request allows none.
    """

    token: int
    log_prob: LogProb | None = None


class _Summary(NamedTuple):
    """Of rows of scaled logits."""

    totals: Floats
    """Log-sum-exp of each row."""
    sums: Floats
    """Of exp(logit - largest of the row) [rows, blocks of the vocabulary]."""
    largest: Logits
    """Logits of blocks, not scaled."""


class _Likeliest(NamedTuple):
    """The likeliest tokens of rows [rows, CANDIDATES], and their log probabilities."""

    tokens: Ids
    log_probs: Floats


class Sampler:
    """Samples all sequences of a step. What takes passes over the vocabulary is done by small compiled models."""

    def __init__(self, vocabulary_size: int, threads: int = 0) -> None:
        self._size, self._block = vocabulary_size, _block_size(vocabulary_size)
        count = vocabulary_size // self._block
        logits = ops.parameter([-1, vocabulary_size], openvino.Type.f32)
        scales, peaks, totals, limits = (ops.parameter([-1, 1], openvino.Type.f32) for _ in range(4))
        axis, inner = np.array([1]), np.array([2])
        blocks = ops.reshape(logits, np.array([0, count, self._block]), True)
        largest = ops.reduce_max(blocks, inner, False)
        # Subtracted before they are scaled: what is left of large logits is exact.
        shifted = ops.subtract(blocks, ops.unsqueeze(ops.reduce_max(largest, axis, True), inner))
        shifted = ops.multiply(shifted, ops.unsqueeze(scales, inner))
        sums = ops.reduce_sum(ops.exp(shifted), inner, False)
        # The likeliest tokens are in the blocks of which the largest is among the largest.
        tops = ops.parameter([-1, count], openvino.Type.f32)
        kept = ops.topk(tops, np.int64(min(CANDIDATES, count)), 1, "max", "none", index_element_type="i32")
        places = ops.reshape(ops.gather(blocks, kept.output(1), np.int64(1), 1), np.array([0, -1]), True)
        columns = np.int64(min(CANDIDATES, vocabulary_size))
        likeliest = ops.topk(places, columns, 1, "max", "value", index_element_type="i32")
        # 1 for logits above the limit, else 0, in arithmetic that becomes one loop with the exponential.
        some = ops.parameter([-1, -1], openvino.Type.f32)
        above = ops.clamp(ops.multiply(ops.subtract(some, limits), np.float32(_HUGE)), 0.0, 1.0)
        probabilities = ops.exp(ops.subtract(ops.multiply(ops.subtract(some, peaks), scales), totals))
        mass = ops.reduce_sum(ops.multiply(probabilities, above), axis, False)
        self._summary = _compiled([largest.output(0), sums.output(0)], [logits, scales], threads)
        self._top = _compiled([kept.output(1), *likeliest.outputs()], [logits, tops], threads)
        self._above = _compiled([mass.output(0)], [some, scales, peaks, totals, limits], threads)

    def sample(self, logits: Logits, states: Sequence[SamplingState]) -> list[Choice]:
        """Return a token for each row of logits [sequences, vocabulary], which may be changed."""
        asked = [row for row, state in enumerate(states) if state.request.log_probs]
        own = self._scores(logits, asked) if asked else None
        before = {row: logits[row].copy() for row in asked if states[row].edits}
        barred = [row for row, state in enumerate(states) if state.edits and not state.edit(logits[row])]
        logits[barred] = 0
        greedy = [row for row, state in enumerate(states) if state.request.sampling.greedy]
        others = [row for row, state in enumerate(states) if not state.request.sampling.greedy]
        tokens = np.empty(len(states), np.int64)
        if greedy:
            tokens[greedy] = (logits if len(greedy) == len(logits) else logits[greedy]).argmax(-1)
        if others:
            tokens[others] = self._sampled(logits, np.array(others), [states[row] for row in others])
        tokens[barred] = -1
        chosen_ids = tokens.tolist()
        log_probs: dict[int, LogProb] = {}
        if own is not None:
            chosen = [float(before.get(row, logits[row])[chosen_ids[row]]) for row in asked]
            log_probs = dict(zip(asked, _log_probs(*own, chosen, [states[row].request for row in asked]), strict=True))
        return [Choice(token, log_probs.get(row)) for row, token in enumerate(chosen_ids)]

    def log_probs_of(self, logits: Logits, tokens: list[int], request: GenerationRequest) -> list[LogProb]:
        """Return the log probability of a token for each row of logits, with the likeliest ones as the request asks."""
        if not tokens:
            return []
        scores = self._scores(logits, range(len(tokens)))
        return _log_probs(*scores, logits[np.arange(len(tokens)), tokens], [request] * len(tokens))

    def log_probs(self, logits: Logits) -> Logits:
        """Return the log probabilities of rows of logits."""
        summary = self._summarize(logits, range(len(logits)), np.ones(len(logits)))
        return logits - summary.totals[:, None].astype(np.float32)

    def _sampled(self, logits: Logits, places: Ids, states: Sequence[SamplingState]) -> Ids:
        """Return the chosen tokens of the rows at these places."""
        scales = np.array([1 / state.temperature for state in states])
        summary = self._summarize(logits, places, scales)
        samplings = [state.request.sampling for state in states]
        chosen = np.full(len(states), -1)
        filtered = np.array([each.top_k > 0 or each.min_p > 0 or 0 < each.top_p < 1 for each in samplings])
        by_top_p = filtered & [not (each.top_k or each.min_p) for each in samplings]
        shares = np.array([each.top_p for each in samplings])
        # For top_p alone, the likeliest tokens are of no use if even so many of the likeliest block don't make it.
        flat = by_top_p & (CANDIDATES * summary.sums.max(1) < shares * summary.sums.sum(1))
        if len(rows := np.flatnonzero(filtered & ~flat)):
            top = self._likeliest(logits, places[rows], scales[rows], summary.totals[rows], summary.largest[rows])
            chosen[rows] = self._of_likeliest(top, [states[row] for row in rows])
        for attempt in range(_ATTEMPTS):  # where the likeliest tokens don't make top_p
            rows = np.flatnonzero((chosen < 0) & (by_top_p if attempt else by_top_p | ~filtered))
            if not len(rows):
                break
            drawn = self._of_any(
                logits, places[rows], scales[rows], summary.sums[rows], [states[row] for row in rows], attempt
            )
            kept = np.ones(len(rows), bool)
            if (tried := by_top_p[rows]).any():
                own = rows[tried]
                limits = logits[places[own], drawn[tried]].astype(np.float64)
                columns = (scales[own], summary.largest[own].max(1), np.log(summary.sums[own].sum(1)), limits)
                kept[tried] = self._in_top_p(logits, places[own], columns, summary.sums[own], shares[own])
            chosen[rows[kept]] = drawn[kept]
        for row in np.flatnonzero(chosen < 0).tolist():
            base = np.uint64(_base(states[row].seed, len(states[row].generated), _ATTEMPTS))
            chosen[row] = _of_all(logits[places[row]], scales[row], summary.totals[row], samplings[row], base)
        return chosen

    def _in_top_p(
        self, logits: Logits, places: Ids, columns: tuple[NDArray[Any], ...], sums: Floats, shares: Floats
    ) -> NDArray[np.bool_]:
        """Return for each row whether the tokens above its limit have less than its share of the probability.

        A part of the vocabulary mostly says so: at least as much lies below the limit as there.
        """
        blocks = sums.shape[1] // _PART
        (above,) = self._run(self._above, logits[:, : blocks * self._block], places, *columns)
        kept: NDArray[np.bool_] = above + 1 - sums[:, :blocks].sum(1) / sums.sum(1) < shares - _ROUNDING
        open_ = np.flatnonzero(~kept & (above < shares))
        if len(open_):
            (whole,) = self._run(self._above, logits, places[open_], *(column[open_] for column in columns))
            kept[open_] = whole < shares[open_]
        return kept

    def _of_likeliest(self, likeliest: _Likeliest, states: Sequence[SamplingState]) -> Ids:
        """Return the chosen tokens of rows whose likeliest tokens are all that may be chosen; -1 for others."""
        samplings = [state.request.sampling for state in states]
        kept, complete = _keep(np.exp(likeliest.log_probs), samplings, self._size)
        noise = _gumbel(_bases(states, 0)[:, None], likeliest.tokens)
        best = np.where(kept, likeliest.log_probs + noise, -np.inf).argmax(1)
        return np.where(complete, likeliest.tokens[np.arange(len(states)), best], -1)

    def _of_any(
        self, logits: Logits, places: Ids, scales: Floats, sums: Floats, states: Sequence[SamplingState], attempt: int
    ) -> Ids:
        """Return tokens by their probabilities alone: first a block of the vocabulary, then one of its tokens."""
        bases = _bases(states, attempt + 1)[:, None]
        with np.errstate(divide="ignore"):
            weights = np.log(sums)
        blocks = (weights + _gumbel(bases, self._size + np.arange(weights.shape[1]))).argmax(1)
        inner = logits.reshape(len(logits), -1, self._block)[places, blocks] * scales[:, None]
        tokens = blocks[:, None] * self._block + np.arange(self._block)
        chosen: Ids = tokens[np.arange(len(places)), (inner + _gumbel(bases, tokens)).argmax(1)]
        return chosen

    def _summarize(self, logits: Logits, places: Sequence[int] | Ids, scales: Floats) -> _Summary:
        largest, sums = self._run(self._summary, logits, places, scales)
        sums = sums.astype(np.float64)
        return _Summary(np.log(sums.sum(1)) + largest.max(1) * scales, sums, largest)

    def _likeliest(
        self, logits: Logits, places: Sequence[int] | Ids, scales: Floats, totals: Floats, largest: Logits
    ) -> _Likeliest:
        blocks, likeliest, inside = self._run(self._top, logits, places, largest)
        of_block, at = np.divmod(inside.astype(np.int64), self._block)
        tokens = np.take_along_axis(blocks, of_block, 1).astype(np.int64) * self._block + at
        return _Likeliest(tokens, likeliest * scales[:, None] - totals[:, None])

    def _scores(self, logits: Logits, places: Sequence[int]) -> tuple[Floats, _Likeliest]:
        """Return the log-sum-exp of rows of logits as they are, and their likeliest tokens."""
        ones = np.ones(len(places))
        summary = self._summarize(logits, places, ones)
        return summary.totals, self._likeliest(logits, places, ones, summary.totals, summary.largest)

    def _run(self, model: Any, logits: Logits, places: Sequence[int] | Ids, *columns: NDArray[Any]) -> list[Any]:
        """Run a model on the rows at these places, in rising order, and on a number or a row of numbers for each.

        A few rows at a time: what is computed in between then stays in the processor's caches.
        """
        numbers, runs = [column.reshape(len(places), -1).astype(np.float32) for column in columns], []
        for begin in range(0, len(places), _ROWS):
            group = places[begin : begin + _ROWS]
            first, last = group[0], group[-1]
            rows = logits[first : last + 1] if last - first == len(group) - 1 else logits[list(group)]
            inputs = [np.ascontiguousarray(rows), *(each[begin : begin + _ROWS] for each in numbers)]
            outputs = model([openvino.Tensor(each, shared_memory=True) for each in inputs])
            runs.append([each.copy() for each in outputs.values()])
        return [np.concatenate(parts) for parts in zip(*runs, strict=True)]


def _log_probs(totals: Floats, top: _Likeliest, logits: Any, requests: Sequence[GenerationRequest]) -> list[LogProb]:
    """Return log probabilities of tokens with these logits, with the likeliest ones as requests ask."""
    most = max(request.top_log_probs for request in requests)
    tops = zip(top.tokens[:, :most].tolist(), top.log_probs[:, :most].tolist(), strict=True)
    return [
        LogProb(value, tuple(zip(ids, each, strict=True))[: request.top_log_probs])
        for value, (ids, each), request in zip((logits - totals).tolist(), tops, requests, strict=True)
    ]


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
    state = seed
    for each in (place, attempt):
        state = (state + each + 1) * _GOLDEN % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state


def _gumbel(base: Any, tokens: Ids) -> Floats:
    """Return noise for each token: outputs of SplitMix64 as uniform numbers, as Gumbel's."""
    with np.errstate(over="ignore"):
        bits = base + tokens.astype(np.uint64) * np.uint64(_GOLDEN)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    uniform = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
    result: Floats = -np.log(-np.log(uniform))
    return result


def _block_size(vocabulary_size: int) -> int:
    """Return the size nearest to 128 of which the vocabulary is a multiple; if none is near, the vocabulary's."""
    sizes = [size for size in range(16, min(1024, vocabulary_size) + 1) if vocabulary_size % size == 0]
    return min(sizes, key=lambda size: abs(math.log(size / 128)), default=vocabulary_size)


def _compiled(outputs: list[Any], inputs: list[Any], threads: int) -> Any:
    threading = {"INFERENCE_NUM_THREADS": threads} if threads else {}
    return openvino.Core().compile_model(
        openvino.Model(outputs, inputs, "sampler"),
        "CPU",
        {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", **threading},
    )
