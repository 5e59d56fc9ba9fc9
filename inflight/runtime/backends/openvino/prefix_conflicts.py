"""Which prompts must not be computed at the same time: what OpenVINO GenAI's prefix cache would mix up.

The library also keeps the last block of a sequence, which is seldom full, and gives it to every prompt that begins like
that sequence. While prompts are computed, blocks are not copied on write (2026.4: `BlockManager::append_slots` is for
sequences that generate), so two that got the same block write into the same places. Measured with prompts that continue
the same texts, 8 at once: 1 of 130 answers was wrong; where such prompts wait for each other, none of 7,680.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

Prompt = tuple[int, ...]


class PrefixConflicts:
    """Knows the prompts that were begun, whose last blocks may be kept: `blocks` at most, as many as there are."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._prompts: OrderedDict[int, None] = OrderedDict()
        """Digests of whole prompts, the latest last."""

    def add(self, prompt: Prompt) -> None:
        """A prompt is about to be computed."""
        *_, digest = _digests(prompt)
        self._prompts[digest] = None
        self._prompts.move_to_end(digest)
        if len(self._prompts) > self._blocks:
            self._prompts.popitem(last=False)

    def conflicts(self, prompt: Prompt, others: Iterable[Prompt]) -> bool:
        """Whether `prompt` has to wait for one of `others`, which are computed, or to be computed before it.

        So it is where one of the two begins with the other, or both with a prompt that was begun before. Prompts that
        wait so lose little: most of what the later one asks for is in the cache by then.
        """
        most = 0
        for other in others:
            shared = _shared(prompt, other)
            if shared and shared == min(len(prompt), len(other)):
                return True
            most = max(most, shared)
        return any(digest in self._prompts for digest in _digests(prompt[:most]))


def _digests(tokens: Sequence[int]) -> Iterator[int]:
    """A digest for each beginning of a prompt, the shortest first."""
    digest = 0
    for token in tokens:
        digest = hash((digest, token))
        yield digest


def _shared(one: Prompt, other: Prompt) -> int:
    """How many tokens both begin with."""
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
