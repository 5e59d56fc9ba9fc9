"""What the choice of a sequence's next token depends on besides the model: penalties, biases, bans, a guide."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight.runtime.backends.openvino.guides import Guided
from inflight.runtime.messages import GenerationRequest

Logits = NDArray[np.float32]

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 1e-4, 1e30
"""Beyond them, scaled logits overflow 32 bits, or banned tokens become possible; at them, the likeliest token is chosen
almost always, or all are equally likely."""

_LARGEST = 1e9
"""Logits that penalties and biases make stay within it: a temperature may multiply them."""


@dataclass
class SamplingState:
    """What the choice of a sequence's next token depends on besides its logits."""

    request: GenerationRequest
    generated: list[int] = field(default_factory=list)
    guided: Guided | None = None

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        penalties = sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
        self._penalizes = penalties != (1.0, 0.0, 0.0)
        self.seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        temperature = 1.0 if sampling.temperature is None else sampling.temperature
        self.temperature = min(max(temperature, LOWEST_TEMPERATURE), HIGHEST_TEMPERATURE)

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
            if logits.max() == -np.inf:  # a guide, or the allowed tokens, leave nothing but the end
                logits[list(request.end_ids)] = allowed
        return not (request.bad_ids or request.allowed_ids or self.guided) or bool(logits.max() > -np.inf)

    def _penalize(self, logits: Logits) -> None:
        sampling = self.request.sampling
        if (penalty := sampling.repetition_penalty) != 1:
            seen = np.unique(np.array([*self.request.prompt_ids, *self.generated]))
            values = logits[seen].astype(np.float64)
            logits[seen] = _finite(np.where(values > 0, values / penalty, values * penalty))
        tokens, counts = np.unique(np.array(self.generated, np.int64), return_counts=True)
        logits[tokens] -= (sampling.presence_penalty + sampling.frequency_penalty * counts).astype(np.float32)


def _finite(values: Any) -> Any:
    return np.clip(values, -_LARGEST, _LARGEST)
