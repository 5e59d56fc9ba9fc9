"""What the processor of this machine computes fast, and the weight precision that suits it.

Imports only the standard library, since serving reads it before heavy libraries are loaded.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from build_engines.manifest import Precision

_AMX, _AVX512_BF16, _VNNI, _AVX2 = "AMX", "AVX-512 BF16", "VNNI", "AVX2"
_FEATURES = {
    _AMX: ("amx_bf16",),
    _AVX512_BF16: ("avx512_bf16",),
    _VNNI: ("avx512_vnni", "avx_vnni"),
    _AVX2: ("avx2",),
}
"""Features by name, the fastest first, each with the kernel's flags of which one is enough."""


@dataclass(frozen=True)
class Processor:
    """A processor: its name, the cores that this process may use, and its features for matrices."""

    name: str
    cores: int
    features: tuple[str, ...] = ()

    @property
    def has_amx(self) -> bool:
        return _AMX in self.features

    def __str__(self) -> str:
        cores = f"{self.cores} core{'s' if self.cores != 1 else ''}"
        return f"{self.name}, {cores}, {', '.join(self.features) or 'no known features'}"


@dataclass(frozen=True)
class PrecisionChoice:
    """A weight precision, why it suits the processor, and what another one would give."""

    precision: Precision
    reason: str
    alternative: str


@cache
def find_processor() -> Processor:
    """Return this machine's processor."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    return parse_processor(text, len(os.sched_getaffinity(0)))


def parse_processor(text: str, cores: int) -> Processor:
    """Parse /proc/cpuinfo. What it does not tell is left out.

    >>> parse_processor("model name : Xeon\\nflags : fma avx2 avx512_vnni\\n", 2)
    Processor(name='Xeon', cores=2, features=('VNNI', 'AVX2'))
    """
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip().lower(), value.strip())
    flags = values.get("flags", "").split()
    features = tuple(name for name, enough in _FEATURES.items() if any(flag in flags for flag in enough))
    return Processor(values.get("model name") or platform.machine(), cores, features)


def choose_precision(processor: Processor) -> PrecisionChoice:
    """Return the precision that is fast on the processor and changes answers least."""
    has = processor.features
    if processor.has_amx:
        return PrecisionChoice(
            "bf16", "AMX multiplies bf16 matrices fast", "int8 is faster with few requests at a time"
        )
    if _AVX512_BF16 in has or _VNNI in has or _AVX2 in has:
        what = _VNNI if _VNNI in has else _AVX2
        return PrecisionChoice(
            "int8",
            f"without AMX, 8-bit weights take half of the memory traffic, and {what} multiplies them fastest",
            "bf16 keeps the checkpoint's weights, and is slower",
        )
    return PrecisionChoice(
        "bf16", "nothing is known of this processor's speed with integers", "int8 takes half of the memory"
    )


def better_precision(precision: str, processor: Processor) -> PrecisionChoice | None:
    """Return the choice that is much faster than weights of this precision, None if there is none.

    fp32 is chosen for exact answers, so nothing is better.
    """
    choice = choose_precision(processor)
    return choice if precision in ("bf16", "fp16") and choice.precision == "int8" else None
