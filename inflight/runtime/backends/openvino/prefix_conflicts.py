"""Prompts that must not be computed at the same time because OpenVINO GenAI's prefix cache would mix them up.

The library also caches the last block of a sequence, which is seldom full, and shares it with every prompt that begins
like that sequence. While prompts are computed, blocks are not copied on write (2026.4: `BlockManager::append_slots` is
for sequences that generate), so two prompts that share the block write to the same places. Measured with 8 concurrent
prompts that continue the same texts: 1 of 130 answers was wrong; if such prompts wait for each other, 0 of 7,680.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

Prompt = tuple[int, ...]


class PrefixConflicts:
    """Remembers the latest `blocks` prompts that were started, whose last blocks may be cached."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._prompts: OrderedDict[int, None] = OrderedDict()
        """Digests of whole prompts, the latest last."""

    def add(self, prompt: Prompt) -> None:
        """Remember a prompt that is about to be computed."""
        *_, digest = _digests(prompt)
        self._prompts[digest] = None
        self._prompts.move_to_end(digest)
        if len(self._prompts) > self._blocks:
            self._prompts.popitem(last=False)

    def conflicts(self, prompt: Prompt, others: Iterable[Prompt]) -> bool:
        """Return whether `prompt` has to wait for one of `others`, which are computed now or before it.

        It has to if one of the two begins with the other, or both begin with a prompt that was started before. The wait
        costs little: the later prompt finds most of its blocks in the cache.
        """
        most = 0
        for other in others:
            shared = _shared(prompt, other)
            if shared and shared == min(len(prompt), len(other)):
                return True
            most = max(most, shared)
        return any(digest in self._prompts for digest in _digests(prompt[:most]))


def _digests(tokens: Sequence[int]) -> Iterator[int]:
    """Yield a digest for each prefix of a prompt, the shortest first."""
    digest = 0
    for token in tokens:
        digest = hash((digest, token))
        yield digest


def _shared(one: Prompt, other: Prompt) -> int:
    """Return the length of the common prefix."""
    if one[0] != other[0]:
        return 0
    low, high = 1, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
