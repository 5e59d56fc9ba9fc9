"""How long a forward pass takes by its number of tokens, as recent ones did."""

from __future__ import annotations

_KEPT = 0.95
"""Each step counts this share of the one after it."""
_BASE_TOKENS = 32
"""Before there are steps of different sizes, a step costs as much as this many tokens beside those it computes."""


class StepCost:
    """Fits seconds = base + tokens * per token to the steps, by least squares."""

    def __init__(self) -> None:
        self._count = self._x = self._y = self._xx = self._xy = 0.0
        self._slope = 0.0
        """The latest one of steps of different sizes; those of running answers alone have about the same."""

    def add(self, tokens: int, seconds: float) -> None:
        own = (1.0, float(tokens), seconds, float(tokens) ** 2, tokens * seconds)
        sums = (self._count, self._x, self._y, self._xx, self._xy)
        self._count, self._x, self._y, self._xx, self._xy = (
            _KEPT * before + now for before, now in zip(sums, own, strict=True)
        )
        mean_x, mean_y = self._x / self._count, self._y / self._count
        spread = self._xx / self._count - mean_x**2
        if spread >= 0.01 * mean_x**2:
            slope = (self._xy / self._count - mean_x * mean_y) / spread
            self._slope = min(max(slope, 0.05 * mean_y / mean_x), mean_y / mean_x)

    @property
    def per_token(self) -> float:
        """Return the seconds that one more token takes; 0 before the first step."""
        if not self._count:
            return 0.0
        return self._slope or self._y / (self._x + _BASE_TOKENS * self._count)

    def seconds(self, tokens: int) -> float:
        """Return how long a step of this many tokens takes; 0 before the first."""
        if not self._count:
            return 0.0
        return self._y / self._count + (tokens - self._x / self._count) * self.per_token
