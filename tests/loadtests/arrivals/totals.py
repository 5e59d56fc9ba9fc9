"""How many arrivals a profile has."""

from __future__ import annotations

from itertools import pairwise

from loadtests.arrivals.profile import Profile


def level(profile: Profile, t: float) -> float:
    """At `t` seconds; where it jumps, the new one."""
    stage = next(stage for stage in reversed(profile.stages) if stage.start <= t)
    return stage.first + stage.slope * (t - stage.start)


def total(profile: Profile, t: float) -> float:
    """The integral of the level from 0 to `t`."""
    edges = [*(stage.start for stage in profile.stages if stage.start < t), t]
    # The midpoint rule is exact for straight pieces.
    return sum(level(profile, (before + after) / 2) * (after - before) for before, after in pairwise(edges))
