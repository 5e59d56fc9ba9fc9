"""A stand-in for what bad networks and broken proxies do to the bytes of one direction of a connection: the toxics.

Nothing here does I/O: a `DirectionFilter` is fed with bytes and says step by step what becomes of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from tests.standins.faulty_network.units import UnitName, splitter


@dataclass(frozen=True)
class Slow:
    """Every piece waits `seconds`, and up to `jitter` more."""

    seconds: float
    jitter: float = 0.0


@dataclass(frozen=True)
class Trickle:
    """No more than `size` bytes at a time, then a pause; only the first `until` bytes where given."""

    size: int = 1
    pause: float = 0.001
    until: int | None = None


@dataclass(frozen=True)
class StallAt:
    """Behind byte `at` nothing comes any more, not even the connection's end."""

    at: int = 0


@dataclass(frozen=True)
class CutAt:
    """Behind byte `at` the connection ends: both ways with FIN or RST, or this way alone."""

    at: int = 0
    how: Literal["fin", "rst", "half"] = "fin"


@dataclass(frozen=True)
class Duplicate:
    """`size` bytes from `at` on come a second time, right behind the first."""

    at: int
    size: int


@dataclass(frozen=True)
class Drop:
    """`size` bytes from `at` on never come; all others do."""

    at: int
    size: int


@dataclass(frozen=True)
class Corrupt:
    """`size` bytes from `at` on come as others."""

    at: int
    size: int


@dataclass(frozen=True)
class UnitFault:
    """The unit of a protocol with that number (from 0), whole as it is, comes twice or not at all."""

    unit: UnitName
    number: int
    what: Literal["twice", "lost"] = "twice"


Toxic = Slow | Trickle | StallAt | CutAt | Duplicate | Drop | Corrupt | UnitFault


@dataclass(frozen=True)
class DelayedBytes:
    """Bytes to send after a pause."""

    data: bytes
    pause: float = 0.0


Step = DelayedBytes | StallAt | CutAt


class DirectionFilter:
    """One direction: bytes go in, and come out as its toxics let them. Behind a Stall or Cut nothing comes any more.

    Offsets are counted in the bytes that go in, from the line's beginning. The same seed does the same.
    """

    def __init__(self, toxics: Sequence[Toxic] = (), seed: int = 0) -> None:
        self._toxics = tuple(toxics)
        self._random = random.Random(seed)
        self._units = [(toxic, splitter(toxic.unit), count()) for toxic in toxics if isinstance(toxic, UnitFault)]
        self._at = 0
        self._over = False
        self._heard: dict[Duplicate, bytes] = {}

    def feed(self, data: bytes) -> Iterator[Step]:
        """What becomes of these bytes, which follow those of the last call; ask with none of them at the beginning."""
        for fault, units, numbers in self._units:
            data = b"".join(self._unit(fault, unit, numbers) for unit in units.feed(data))
        while not self._over:
            for toxic in self._toxics:
                if isinstance(toxic, StallAt | CutAt) and toxic.at <= self._at:
                    self._over = True
                    yield toxic
                    return
            if not data:
                return
            size = self._room(len(data))
            segment, data = data[:size], data[size:]
            begin, self._at = self._at, self._at + len(segment)
            yield from self._paced(self._changed(segment, begin))

    @staticmethod
    def _unit(fault: UnitFault, unit: tuple[bool, bytes], numbers: Iterator[int]) -> bytes:
        counts, data = unit
        if not counts or next(numbers) != fault.number:
            return data
        return data * 2 if fault.what == "twice" else b""

    def _room(self, size: int) -> int:
        """How many of the next `size` bytes there are until a toxic begins or ends."""
        bounds = [toxic.at for toxic in self._toxics if isinstance(toxic, StallAt | CutAt)]
        for toxic in self._toxics:
            if isinstance(toxic, Duplicate | Drop | Corrupt):
                bounds += [toxic.at, toxic.at + toxic.size]
        return min([size, *(bound - self._at for bound in bounds if bound > self._at)])

    def _changed(self, segment: bytes, begin: int) -> bytes:
        """What comes of a segment that each toxic takes whole or not at all."""
        for toxic in self._toxics:
            if not isinstance(toxic, Duplicate | Drop | Corrupt) or not toxic.at <= begin < toxic.at + toxic.size:
                continue
            if isinstance(toxic, Drop):
                return b""
            if isinstance(toxic, Corrupt):
                segment = bytes(byte ^ self._random.randint(1, 255) for byte in segment)
            else:
                heard = self._heard[toxic] = self._heard.get(toxic, b"") + segment
                segment += heard if len(heard) == toxic.size else b""
        return segment

    def _paced(self, data: bytes) -> Iterator[DelayedBytes]:
        pause, size = 0.0, len(data)
        for toxic in self._toxics:
            if isinstance(toxic, Slow):
                pause += toxic.seconds + self._random.random() * toxic.jitter
            elif isinstance(toxic, Trickle) and (toxic.until is None or self._at <= toxic.until):
                pause, size = pause + toxic.pause, min(size, toxic.size)
        for start in range(0, len(data), size or 1):
            yield DelayedBytes(data[start : start + size], pause)
