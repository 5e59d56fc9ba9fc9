"""Fits an engine with given precisions on one kind of device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from build_engines.kv_cache import BLOCK
from build_engines.plan.footprint import Footprint
from build_engines.plan.formats import KvFormat, WeightFormat
from build_engines.plan.gpu_memory import Split

# trtllm-build's defaults (--max_batch_size 2048, --max_num_tokens 8192) come first, then less of each.
BATCH_SIZES = (2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
STEP_TOKENS = (8192, 4096, 2048, 1024)
NOT_BUILT = "not built"
"""The label in a table for formats that the target doesn't build."""

Measure = Callable[[Split, int, int], Footprint]
"""Returns the footprint of a split with a number of sequences and a number of tokens per step."""


@dataclass(frozen=True)
class Refusal:
    """Why formats are not supported: a `label` for a table, and a sentence without its full stop."""

    label: str
    reason: str


@dataclass(frozen=True)
class Fit:
    """An engine with given formats, on the fewest devices that hold the wanted sequences, or on the best split.

    `sequences` of `length` tokens fit at once, and `max_batch_size` of them may run. `refusal` is the reason why the
    formats are not supported; `notes` are their costs.
    """

    weights: WeightFormat
    kv: KvFormat
    split: Split
    footprint: Footprint
    memory: int
    length: int
    wanted: int
    max_batch_size: int
    max_num_tokens: int
    refusal: Refusal | None = None
    notes: tuple[str, ...] = ()

    @property
    def sequences(self) -> int:
        return self.footprint.sequences(self.memory, self.length)

    @property
    def reason(self) -> str | None:
        """Why these formats are not supported, as a sentence without its full stop."""
        return self.refusal.reason if self.refusal else None

    @property
    def fits(self) -> bool:
        return self.refusal is None and self.sequences >= self.wanted

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache on each device."""
        return max(0, self.footprint.room(self.memory))

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit into the cache in whole blocks, if all layers had full attention."""
        return self.kv_bytes // (BLOCK * self.footprint.kv_token) * BLOCK

    @property
    def needed(self) -> int:
        """Bytes that each device needs for the wanted sequences."""
        return self.footprint.needed(self.wanted, self.length)

    def longest(self, max_tokens: int) -> int:
        """Return the longest length, up to `max_tokens`, at which the wanted sequences fit; 0 if none does."""
        room = max(0, self.footprint.room(self.memory))
        low, high = 0, max_tokens // BLOCK
        while low < high:
            middle = (low + high + 1) // 2
            if self.footprint.sequence(middle * BLOCK) * self.wanted <= room:
                low = middle
            else:
                high = middle - 1
        return low * BLOCK


@dataclass(frozen=True)
class Choices:
    """The candidates for one pair of formats, best first; with a `refusal`, none is possible. `notes`: their costs."""

    splits: list[Split]
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    step_tokens: tuple[int, ...] = STEP_TOKENS
    refusal: Refusal | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Demand:
    """`memory` is that of each device. Wanted: `max_num_sequences` of `length` tokens; None: one or more."""

    memory: int
    length: int
    max_num_sequences: int | None


def choose_fit(weights: WeightFormat, kv: KvFormat, choices: Choices, measure: Measure, demand: Demand) -> Fit:
    """Return the fit on the first split that holds the demand, or on the split that needs the least memory.

    The batch size is the demand's, or the largest that the cache holds at that length; a step has as many tokens as
    possible.
    """

    def fit(split: Split, batch: int, tokens: int) -> Fit:
        tokens = max(tokens, batch)
        return Fit(
            weights=weights,
            kv=kv,
            split=split,
            footprint=measure(split, batch, tokens),
            memory=demand.memory,
            length=demand.length,
            wanted=demand.max_num_sequences or 1,
            max_batch_size=batch,
            max_num_tokens=tokens,
            refusal=choices.refusal,
            notes=choices.notes,
        )

    sizes = choices.batch_sizes if demand.max_num_sequences is None else (demand.max_num_sequences,)
    for split in choices.splits:
        for tokens in choices.step_tokens:
            for batch in sizes:
                chosen = fit(split, batch, tokens)
                if chosen.sequences >= batch:
                    return chosen
    return min(
        (fit(split, sizes[-1], choices.step_tokens[-1]) for split in choices.splits),
        key=lambda chosen: chosen.needed,
    )
