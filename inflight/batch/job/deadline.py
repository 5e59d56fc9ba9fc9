"""The time by which a job should finish."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:d|h|min|m|s)\s*)+")


def absolute_time(text: str) -> str:
    """Return a time, or a duration from now, as an ISO time in UTC. A time without a zone is local. Raises ValueError.

    >>> absolute_time("2026-11-30T06:00:00+01:00")
    '2026-11-30T05:00:00+00:00'
    """
    text = text.strip()
    if _DURATION.fullmatch(text):
        parts = re.findall(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)", text)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        when = datetime.now(UTC) + timedelta(seconds=seconds)
    else:
        try:
            when = datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError):
            raise ValueError("give a time such as 2026-11-30T06:00, or a duration such as 6h or 1d 12h") from None
    return when.replace(microsecond=0).isoformat()


def seconds_until(when: str, now: float) -> float:
    """Return the seconds from `now` (since 1970) to an ISO time; less than 0 once it is over."""
    return datetime.fromisoformat(when).timestamp() - now
