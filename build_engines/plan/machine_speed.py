"""How fast this machine multiplies matrices with the kernels of the embedded engine, measured in a second or two."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.plan.formats import OPENVINO_WEIGHTS
from build_engines.plan.size import parse_size
from inflight.common.child_process import python_module

ROWS = (1, 8, 32, 64, 96)
"""Numbers of tokens at which matrices are multiplied, up to those of a step by default."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_DEFAULT_CACHE_BYTES = 32 << 20
_SECONDS = 60


@dataclass(frozen=True)
class MatrixSpeed:
    """Seconds per weight of one precision, at each of ROWS: of `large` matrices from memory, of `small` ones from
    caches, with all costs of an operation."""

    large: tuple[float, ...]
    small: tuple[float, ...]

    def seconds(self, weights: float, rows: float, *, cached: bool) -> float:
        """Return the seconds for multiplying `weights` with `rows` tokens, between two of ROWS by interpolation.

        >>> MatrixSpeed((1.0, 2.0, 3.0, 4.0, 6.0), (1.0,) * 5).seconds(10, 80, cached=False)
        50.0
        """
        times = self.small if cached else self.large
        if rows >= ROWS[-1]:
            return weights * times[-1] * rows / ROWS[-1]
        rows = max(rows, ROWS[0])
        at = next(at for at, more in enumerate(ROWS[1:]) if rows <= more)
        share = (rows - ROWS[at]) / (ROWS[at + 1] - ROWS[at])
        return weights * (times[at] + share * (times[at + 1] - times[at]))


@dataclass(frozen=True)
class MachineSpeed:
    """Measured speed: `matrices` by weight precision; `operation` is the seconds of one that computes almost nothing;
    `cache_bytes` is the size of the last cache."""

    operation: float
    cache_bytes: int
    matrices: dict[str, MatrixSpeed]

    def __str__(self) -> str:
        rates = (
            f"{name} {self.bandwidth(name) / 1e9:,.0f} GB/s and {self.operations_per_second(name) / 1e9:,.0f} GFLOP/s"
            for name in self.matrices
        )
        return ", ".join(rates)

    def bandwidth(self, precision: str) -> float:
        """Return the bytes of weights that one token's multiplications read from memory in a second."""
        return OPENVINO_WEIGHTS[precision].linear / self.matrices[precision].large[0]

    def operations_per_second(self, precision: str) -> float:
        """Return the multiplications and additions in a second, at the number of tokens where they are fastest."""
        return max(2 * rows / seconds for rows, seconds in zip(ROWS, self.matrices[precision].large, strict=True))


def measure_machine(precisions: Iterable[str]) -> MachineSpeed:
    """Measure this machine for weight precisions of the target openvino, in another process.

    Raises BuildError: `package_missing` without OpenVINO, `build_failed` if the measurement fails.
    """
    if importlib.util.find_spec("openvino") is None:
        raise BuildError(
            "The speed can't be predicted without the package openvino; install it with `pip install '.[serve]'`.",
            "package_missing",
        )
    command = python_module("build_engines.plan.matmul_process", *dict.fromkeys(precisions))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(str(error)) from error
    if done.returncode:
        raise _failed((done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1])
    measured = json.loads(done.stdout)
    operation = measured.pop("operation")
    matrices = {name: MatrixSpeed(tuple(rate["large"]), tuple(rate["small"])) for name, rate in measured.items()}
    return MachineSpeed(operation, _cache_bytes(), matrices)


def _failed(reason: str) -> BuildError:
    return BuildError(
        f"The speed of this machine can't be measured ({reason[:200]}); free memory, then repeat it.",
        "build_failed",
    )


def _cache_bytes() -> int:
    """Return the size of the last cache that a core uses."""
    sizes = [_DEFAULT_CACHE_BYTES]
    for path in _CACHES.glob("index*/size"):
        try:
            sizes.append(parse_size(path.read_text().strip() + "iB"))
        except (OSError, BuildError):
            continue
    return max(sizes[1:], default=sizes[0])
