"""The target `ctranslate2`: a Whisper model in CTranslate2's format, as it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from build_engines.checkpoints.checkpoint import Checkpoint, link_or_copy
from build_engines.checkpoints.ctranslate2_model import (
    CONFIG_FILES,
    MODEL,
    VOCABULARIES,
    is_ctranslate2_model,
    read_ctranslate2,
)
from build_engines.ctranslate2.tokenizer import END, read_vocabulary, write_tokenizer
from build_engines.errors import BuildError
from build_engines.manifest import CompiledSeq2Seq, Precision
from build_engines.openvino.export_runner import run_export
from build_engines.openvino.target import builder_versions
from build_engines.progress import BuildProgress
from build_engines.target import BuildOptions, CacheKey, Host

COMPUTE_TYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8_float32"}
"""CTranslate2's names of the precisions; weights are converted when they are loaded."""
_TOKENIZER = "tokenizer.json"
_START = "<|startoftranscript|>"
_ENGLISH_TOKENS = 51864
"""The vocabulary of models for English only; others have a token more."""
_SMOKE_TOKENS = 4
_FRAMES = 3000


@dataclass(frozen=True)
class SmokeTest:
    """The settings of a test: the engine's directory `out`, and the facts of its model that the test needs."""

    checkpoint: str
    out: str
    compute_type: str
    mels: int
    prompt: list[int]


@dataclass(frozen=True)
class SmokeTestResult:
    """The type in which the engine computes."""

    compute_type: str


@dataclass(frozen=True)
class CTranslate2Target:
    """The target `ctranslate2`. `precision` None: that of the weights."""

    precision: Precision | None
    smoke_test: bool

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        if not is_ctranslate2_model(directory):
            raise BuildError(
                f"{directory} has no {MODEL}, and --target ctranslate2 serves models in CTranslate2's format as they"
                " are; convert it with ct2-transformers-converter.",
                "unsupported_architecture",
            )
        if find_spec("ctranslate2") is None:
            raise BuildError(
                "--target ctranslate2 needs the package ctranslate2; say pip install 'inflight[speech]'.",
                "package_missing",
            )

    def cache_key(self) -> CacheKey:
        return CacheKey([self.precision])

    def host(self) -> Host:
        return Host(builder_versions("ctranslate2"))

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        return 0 if (checkpoint.directory / MODEL).is_symlink() else checkpoint.weight_bytes

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> CompiledSeq2Seq:
        directory = checkpoint.directory
        progress.step(f"Taking the model of {directory.name} as it is")
        facts, tokens = read_ctranslate2(directory), read_vocabulary(directory)
        vocabulary = facts.size("decoder/embeddings/weight", 0)
        if len(tokens) != vocabulary or not {_START, END} <= set(tokens):
            raise BuildError(
                f"The vocabulary of {directory} has {len(tokens):,} tokens and {MODEL} {vocabulary:,}, or it is not"
                " Whisper's; fetch both again.",
                "checkpoint_damaged",
            )
        precision = self.precision or facts.precision
        mels = facts.size("encoder/conv1/weight", 1)
        compiled = CompiledSeq2Seq(
            task="transcribe",
            precision=precision,
            max_seq_len=facts.size("decoder/position_encodings/encodings", 0),
            max_source_len=facts.size("encoder/position_encodings/encodings", 0),
            mels=mels,
            vocab_size=vocabulary,
            pad_id=tokens.index(END),
            languages=_languages(tokens, checkpoint.config),
            properties={"compute_type": COMPUTE_TYPES[precision]},
        )
        link_or_copy(directory / MODEL, out / MODEL)
        for name in (*CONFIG_FILES, *VOCABULARIES, _TOKENIZER):
            if (directory / name).is_file():
                shutil.copyfile(directory / name, out / name)
        if not (out / _TOKENIZER).is_file():
            progress.step("Making a tokenizer from the vocabulary")
            write_tokenizer(tokens, out / _TOKENIZER)
        if self.smoke_test:
            task = SmokeTest(str(directory), str(out), COMPUTE_TYPES[precision], mels, [tokens.index(_START)])
            run_export(task, progress)
        return compiled


def target(options: BuildOptions) -> CTranslate2Target:
    """Return the target for `options`."""
    return CTranslate2Target(cast("Precision | None", options.precision), options.smoke_test)


def export(task: SmokeTest, on_step: Callable[[str], None]) -> SmokeTestResult:
    """Load the engine and transcribe silence.

    Raises BuildError: `invalid_parameter` for a precision that this processor has not, and `checkpoint_damaged` for a
    model that the library can't run.
    """
    import ctranslate2
    import numpy as np

    on_step("Testing the engine")
    kinds = ctranslate2.get_supported_compute_types("cpu")
    if task.compute_type not in kinds:
        names = [name for name, kind in COMPUTE_TYPES.items() if kind in kinds]
        raise BuildError(
            f"CTranslate2 has no {task.compute_type} on this processor; choose --precision {' or '.join(names)}.",
            "invalid_parameter",
        )
    try:
        model = ctranslate2.models.Whisper(task.out, compute_type=task.compute_type)
        features = ctranslate2.StorageView.from_array(np.zeros((1, task.mels, _FRAMES), np.float32))
        model.generate(features, [task.prompt], beam_size=1, max_length=2 * _SMOKE_TOKENS)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise BuildError(
            f"CTranslate2 can't run {Path(task.checkpoint) / MODEL} ({reason}); fetch or convert the model again.",
            "checkpoint_damaged",
        ) from error
    return SmokeTestResult(model.compute_type)


def _languages(tokens: Sequence[str], config: dict[str, Any]) -> tuple[str, ...]:
    """Return the codes of the languages that the model knows; () if it is for English only."""
    if len(tokens) <= _ENGLISH_TOKENS:
        return ()
    named = config.get("lang_ids")
    ids = [each for each in named if isinstance(each, int)] if isinstance(named, list) else []
    return tuple(tokens[each][2:-2] for each in ids if 0 <= each < len(tokens))
