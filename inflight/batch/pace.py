"""How fast a job with --finish-by runs: slowly while that is enough, and as fast as it can as its deadline nears."""

from __future__ import annotations

_MARGIN = 1.25
"""How much faster than needed the job is to be, since rows differ in length."""
_RESERVE = 0.1
"""The part of the time left that is kept for the end: retries, and completing the output."""
_STEP_SECONDS = 5.0
_LEAST_SHARE = 1 / 16


class Pace:
    """A sans-IO controller. `priority` and `share` (of what servers without priorities could take) are for rows now.

    The rate that is needed is what is left over the time that is left. A job that is slower first uses a larger share,
    and then the priority of other requests; one that is twice as fast uses a smaller share. Work that can't be
    estimated yet is done at full speed.
    """

    def __init__(self, low_priority: int = -1) -> None:
        self._low = low_priority
        self.priority, self.share = low_priority, 1.0
        self.expected = ""
        """A phrase for people about how the deadline will be kept."""
        self._next = 0.0

    def update(self, now: float, seconds_left: float, eta: float | None) -> bool:
        """Take the seconds to the deadline, and those that all rows still take at the present speed; return whether
        priority or share have changed."""
        usable = seconds_left * (1 - _RESERVE)
        before = self.priority, self.share
        if eta is None and usable > 0:
            self.expected = "too early to say whether it will finish by its deadline"
            return False
        if now < self._next and usable > 0:
            return False
        self._next = now + _STEP_SECONDS
        eta = float("inf") if eta is None else eta
        if usable <= 0 or eta * _MARGIN > usable:
            self.share, faster = min(1.0, self.share * 2), self.share == 1.0
            if usable <= 0 or faster:
                self.priority, self.share = 0, 1.0
        elif eta * 2 * _MARGIN < usable:
            if self.priority == 0 != self._low:
                self.priority = self._low
            else:
                self.share = max(_LEAST_SHARE, self.share / 1.5)
        self.expected = "past its deadline" if seconds_left < 0 else _expected(seconds_left - eta)
        return (self.priority, self.share) != before


def _expected(spare: float) -> str:
    minutes = max(1, round(abs(spare) / 60))
    if spare >= 0:
        return f"about {minutes:,} min before its deadline"
    return f"about {minutes:,} min after its deadline"
