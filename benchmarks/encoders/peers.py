"""Other programs that embed on this processor, each in an environment of its own under .cache/bench."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.batch import vllm_peer
from benchmarks.fixtures import BENCH_DIRECTORY
from benchmarks.peer_process import PeerProcess
from build_engines.manifest import Precision

SENTENCE_TRANSFORMERS = "sentence-transformers"
VLLM = "vllm"
ST_VERSION = "6.2.0"
_ST_VENV = BENCH_DIRECTORY / "sentence-transformers-venv"
_MAIN = Path(__file__).with_name("peer_main.py")


class Peer:
    """A peer that holds the checkpoint, and is stopped between runs. Its packages are installed first if they are
    missing: about 200 MB for sentence-transformers, which takes torch and OpenVINO from this environment, and several
    gigabytes for vLLM."""

    def __init__(self, kind: str, checkpoint: Path, precision: Precision = "fp32") -> None:
        self.kind = kind
        python = _st_python() if kind == SENTENCE_TRANSFORMERS else _vllm_python()
        environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
        if kind == VLLM:
            environment |= {**vllm_peer.ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": "1"}
        self._process = PeerProcess(
            [str(python), str(_MAIN), kind, str(checkpoint.absolute()), precision],
            BENCH_DIRECTORY / f"{kind}-{precision}.log",
            environment,
        )

    def seconds(self, texts: Sequence[str]) -> float:
        """Return how long the texts took, from texts to vectors."""
        return float(self._process.call({"texts": list(texts), "vectors": False})["seconds"])

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        found: list[list[float]] = self._process.call({"texts": list(texts), "vectors": True})["vectors"]
        return found

    def close(self) -> None:
        self._process.close()


def _vllm_python() -> Path:
    if not vllm_peer.installed():
        vllm_peer.install()
    return vllm_peer.PYTHON


def _st_python() -> Path:
    python = _ST_VENV / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(_ST_VENV), "platbase": str(_ST_VENV)}))
    inherits = site / "environment.pth"
    if not inherits.exists() or inherits.read_text().strip() != sysconfig.get_path("purelib"):
        venv.create(_ST_VENV, with_pip=True, clear=True)
        inherits.write_text(f"{sysconfig.get_path('purelib')}\n")
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        same = [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in ("torch", "openvino")]
        package = f"sentence-transformers[openvino]=={ST_VERSION}"
        subprocess.run([*pip, "install", package, *same], check=True, stdout=sys.stderr)
        # Its requirements install a build for another torch, which fails at import. Texts need none.
        subprocess.run([*pip, "uninstall", "--yes", "torchvision"], check=True, stdout=sys.stderr)
    return python
