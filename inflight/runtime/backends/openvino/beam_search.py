"""Beam search as transformers does it: the live beams, and the complete ones with the best scores."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inflight.common.request_error import RequestError
from inflight.runtime.engine.interface import StepOutput
from inflight.runtime.messages import Beam, FinishReason, GenerationRequest


class _Hypothesis(NamedTuple):
    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    total: float = 0.0
    score: float = -math.inf


class BeamSearch:
    """The search of one request; its owner computes the live beams."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request, self._width = request, request.sampling.beam_width
        self._live = [_Hypothesis()]
        self._complete: list[_Hypothesis] = []

    @property
    def last_tokens(self) -> list[int]:
        """The last token of each live beam."""
        return [beam.tokens[-1] for beam in self._live]

    def advance(self, log_probs: NDArray[np.float32]) -> list[int]:
        """Go on by a token, given log probabilities [live beams, vocabulary].

        Returns, for each beam that lives now, the place of the one that it continues; none once the search has ended.
        """
        length = len(self._live[0].tokens) + 1
        candidates = log_probs + np.array([beam.total for beam in self._live], np.float32)[:, None]
        best = self._best(candidates, log_probs)
        at_end = length == self._request.max_tokens
        ended = [beam for _, beam in best if at_end or beam.tokens[-1] in self._request.end_ids]
        largest = 280 / math.log10(length + 9)  # beyond it, the power is no number
        penalty = length ** min(max(self._request.sampling.length_penalty, -largest), largest)
        self._complete += [beam._replace(score=beam.total / penalty) for beam in ended]
        self._complete = sorted(self._complete, key=lambda beam: -beam.score)[: self._width]
        candidates[:, list(self._request.end_ids)] = -np.inf
        going_on = self._best(candidates, log_probs)
        self._live = [beam for _, beam in going_on]
        return [] if at_end or not going_on or self._is_decided(penalty) else [parent for parent, _ in going_on]

    def _best(self, candidates: NDArray[np.float32], log_probs: NDArray[np.float32]) -> list[tuple[int, _Hypothesis]]:
        """Return the best continuations, each with the place of the beam that it continues."""
        flat = candidates.reshape(-1)
        places = np.argpartition(-flat, self._width)[: self._width] if self._width < flat.size else np.arange(flat.size)
        continuations = []
        for place in places[np.argsort(-flat[places], kind="stable")].tolist():
            parent, token = divmod(place, candidates.shape[1])
            if math.isfinite(flat[place]):
                beam, log_prob = self._live[parent], float(log_probs[parent, token])
                total = float(flat[place])
                continuations.append((parent, _Hypothesis((*beam.tokens, token), (*beam.log_probs, log_prob), total)))
        return continuations

    def _is_decided(self, penalty: float) -> bool:
        if len(self._complete) < self._width:
            return False
        return self._request.sampling.early_stopping or self._live[0].total / penalty <= self._complete[-1].score

    def output(self, handle: int) -> StepOutput:
        """Return all beams, the best first, without their end tokens, and the finish reason of the best."""
        ends, asked = self._request.end_ids, self._request.log_probs
        beams = []
        for beam in self._complete:
            kept = len(beam.tokens) - (beam.tokens[-1] in ends)
            log_probs = beam.log_probs[:kept]
            beams.append(Beam(beam.tokens[:kept], log_probs if asked else (), math.fsum(log_probs)))
        whole = self._complete[0].tokens[-1] in ends
        return StepOutput(handle, (), FinishReason.STOP if whole else FinishReason.LENGTH, beams=tuple(beams))


def check_beam_search(request: GenerationRequest) -> None:
    """Raise RequestError for what changes the distribution, which this search takes as it is."""
    sampling = request.sampling
    for name, used in (
        ("temperature, top_k or top_p", sampling.reshapes),
        ("repetition_penalty", sampling.repetition_penalty != 1),
        ("presence_penalty", sampling.presence_penalty != 0),
        ("frequency_penalty", sampling.frequency_penalty != 0),
        ("min_tokens", sampling.min_tokens != 0),
        ("guided_decoding_guide", request.guide is not None),
        ("logit_bias", request.logit_bias),
        ("bad words", request.bad_ids),
    ):
        if used:
            raise RequestError(
                f"beam_width is {sampling.beam_width} and this engine's beam search doesn't support {name}; leave one"
                " out",
                "invalid_parameter",
            )
