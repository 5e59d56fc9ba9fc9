"""Other programs that embed on this processor, each in an environment of its own under .cache/bench."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

from benchmarks.batch import vllm_peer
from benchmarks.environments import shared_environment
from benchmarks.fixtures import BENCH_DIRECTORY
from benchmarks.peer_process import PeerProcess
from build_engines.manifest import Precision

SENTENCE_TRANSFORMERS = "sentence-transformers"
VLLM = "vllm"
ST_VERSION = "6.2.0"
_MAIN = Path(__file__).with_name("peer_main.py")


class Peer:
    """A peer that holds the checkpoint, and is stopped between runs. Its packages are installed first if they are
    missing: about 200 MB for sentence-transformers, which takes torch and OpenVINO from this environment, and several
    gigabytes for vLLM."""

    def __init__(self, kind: str, checkpoint: Path, precision: Precision = "fp32") -> None:
        self.kind = kind
        python = sentence_transformers_python() if kind == SENTENCE_TRANSFORMERS else _vllm_python()
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
        return float(self._process.call(list(texts)))

    def close(self) -> None:
        self._process.close()


def _vllm_python() -> Path:
    if not vllm_peer.installed():
        vllm_peer.install()
    return vllm_peer.PYTHON


def sentence_transformers_python() -> Path:
    """Return the Python of an environment with sentence-transformers, made the first time."""
    same = [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in ("torch", "openvino")]
    packages = [f"sentence-transformers[openvino]=={ST_VERSION}", *same]
    # Its requirements install a build of torchvision for another torch, which fails at import. Texts need none.
    return shared_environment("sentence-transformers-venv", packages, without=["torchvision"])
