"""The target `ctranslate2`: models with an encoder and a decoder, converted, or as they are in CTranslate2's format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from build_engines.checkpoints.checkpoint import Checkpoint, link_or_copy, read_json
from build_engines.checkpoints.config_file import ConfigFile
from build_engines.checkpoints.ctranslate2_model import (
    CONFIG_FILES,
    MODEL,
    SEQ2SEQ_TASKS,
    VOCABULARIES,
    is_ctranslate2_model,
    read_ctranslate2,
    seq2seq_task,
)
from build_engines.ctranslate2.convert import (
    CONFIG,
    MARIAN_TOKENIZER,
    TARGET_TOKENIZER,
    TOKENIZER,
    Conversion,
    Converted,
    SentencePieceTask,
    copy_configs,
)
from build_engines.ctranslate2.describe import START, describe_speech, describe_text
from build_engines.ctranslate2.memory import config_shape
from build_engines.ctranslate2.tokenizer import read_vocabulary, write_tokenizer
from build_engines.errors import BuildError, damaged, invalid, unsupported
from build_engines.manifest import CompiledSeq2Seq, Precision
from build_engines.openvino.export_runner import run_export
from build_engines.progress import BuildProgress
from build_engines.target import BuildOptions, CacheKey, Host, Task, installed_versions

COMPUTE_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8_float32"}
"""CTranslate2's names of the precisions; weights are converted when they are loaded."""
_SOURCES = ("source_vocabulary.json", "source_vocabulary.txt")
_STORED = {"bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
"""The types in which converted weights are stored; in the checkpoint's own for all others."""
_SMOKE_TOKENS = 4
_FRAMES = 3000


@dataclass(frozen=True)
class SmokeTest:
    """The settings of a test: the engine's directory `out`, and what it reads: a spectrogram with `mels` bands and the
    token ids of `prompt`, or the tokens of `source` without `mels`."""

    checkpoint: str
    out: str
    compute_type: str
    mels: int | None
    prompt: list[int]
    source: list[str]


@dataclass(frozen=True)
class SmokeTestResult:
    """The type in which the engine computes."""

    compute_type: str


@dataclass(frozen=True)
class CTranslate2Target:
    """The target `ctranslate2`. `precision` None: that of the weights."""

    precision: Precision | None
    max_seq_len: int | None
    smoke_test: bool
    task: Task | None

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        task = seq2seq_task(config)
        if task is None:
            raise unsupported(
                f"{directory} has the architecture {config['architectures'][0]}; --target ctranslate2 builds models"
                f" with an encoder and a decoder: {', '.join(SEQ2SEQ_TASKS)}."
            )
        if self.task not in (None, task):
            raise invalid(f"{directory} has a model with the task {task}; leave --task {self.task} out.")
        if config.get("share_encoder_decoder_embeddings") is False:
            raise unsupported(
                f"{directory} has one vocabulary for texts and one for answers, which are not read; name a model with"
                " one for both, or one in CTranslate2's format."
            )
        if task == "transcribe" and self.max_seq_len is not None:
            raise invalid(f"{directory} has a model for speech; --max-seq-len is for texts, so leave it out.")
        if config.get("quantization_config"):
            raise unsupported(
                f"{directory} is quantized already; build from the original weights, with --precision int8."
            )
        if not is_ctranslate2_model(directory):
            config_shape(ConfigFile(config, str(directory), "built"))
        if find_spec("ctranslate2") is None:
            raise BuildError(
                "--target ctranslate2 needs the package ctranslate2; say pip install 'inflight[speech]'.",
                "package_missing",
            )

    def cache_key(self) -> CacheKey:
        return CacheKey([self.precision, self.max_seq_len])

    def host(self) -> Host:
        return Host(installed_versions("ctranslate2", "transformers"))

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        return 0 if (checkpoint.directory / MODEL).is_symlink() else checkpoint.weight_bytes

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> CompiledSeq2Seq:
        directory, task = checkpoint.directory, seq2seq_task(checkpoint.config)
        converted = None
        if checkpoint.weights == (directory / MODEL,):
            progress.step(f"Taking the model of {directory.name} as it is")
            tokens = read_vocabulary(directory)
            link_or_copy(directory / MODEL, out / MODEL)
            for name in (*CONFIG_FILES, *VOCABULARIES, *_SOURCES, TOKENIZER, TARGET_TOKENIZER):
                if (directory / name).is_file():
                    shutil.copyfile(directory / name, out / name)
            content = read_json(out / CONFIG)
            if task == "text2text":  # `describe_text` puts these tokens around a text, so that the library must not
                content |= {"add_source_bos": False, "add_source_eos": False}
                (out / CONFIG).write_text(json.dumps(content, indent=2) + "\n")
            if (directory / MARIAN_TOKENIZER).is_file() and not (out / TOKENIZER).is_file():
                run_export(SentencePieceTask(str(directory), str(out), content.get("eos_token", "</s>")), progress)
        else:
            stored = _STORED.get(self.precision or "")
            conversion = Conversion(str(directory), str(out), stored, task == "transcribe")
            converted = Converted(**run_export(conversion, progress))
            copy_configs(directory, out)
            tokens = read_vocabulary(out)
        facts = read_ctranslate2(out)
        if task == "transcribe" and not (out / TOKENIZER).is_file():
            progress.step("Making a tokenizer from the vocabulary")
            write_tokenizer(tokens, out / TOKENIZER)
        precision = self.precision or facts.precision
        fields = (
            describe_speech(facts, tokens)
            if task == "transcribe"
            else describe_text(out, facts, tokens, checkpoint.config, converted, self.max_seq_len)
        )
        compiled = CompiledSeq2Seq(
            **fields,
            precision=precision,
            vocab_size=len(tokens),
            notes=tuple(converted.notes) if converted else (),
            properties={"compute_type": COMPUTE_TYPES[precision]},
        )
        if self.smoke_test:
            text = compiled.text
            source = [*text.before, *text.after] if text else []
            prompt = [] if text else [tokens.index(START)]
            test = SmokeTest(str(directory), str(out), COMPUTE_TYPES[precision], compiled.mels, prompt, source)
            run_export(test, progress)
        return compiled


def target(options: BuildOptions) -> CTranslate2Target:
    """Return the target for `options`."""
    precision = cast("Precision | None", options.precision)
    return CTranslate2Target(precision, options.max_seq_len, options.smoke_test, options.task)


def check_precision_here(precision: str) -> None:
    """Raise BuildError (`invalid_parameter`) for a precision that this processor does not compute."""
    if find_spec("ctranslate2") is None:
        return
    import ctranslate2

    kinds = ctranslate2.get_supported_compute_types("cpu")
    if COMPUTE_TYPES[precision] not in kinds:
        names = " or ".join(name for name, kind in COMPUTE_TYPES.items() if kind in kinds)
        raise invalid(f"CTranslate2 has no {precision} on this processor; choose --precision {names}.")


def export(task: SmokeTest, on_step: Callable[[str], None]) -> SmokeTestResult:
    """Load the engine, and transcribe silence or translate an empty text.

    Raises BuildError: `invalid_parameter` for a precision that this processor has not, and `checkpoint_damaged` for a
    model that the library can't run.
    """
    import ctranslate2
    import numpy as np

    on_step("Testing the engine")
    check_precision_here(next(name for name, kind in COMPUTE_TYPES.items() if kind == task.compute_type))
    try:
        if task.mels is None:
            model = ctranslate2.Translator(task.out, compute_type=task.compute_type)
            model.translate_batch([task.source], beam_size=1, max_decoding_length=_SMOKE_TOKENS)
        else:
            model = ctranslate2.models.Whisper(task.out, compute_type=task.compute_type)
            features = ctranslate2.StorageView.from_array(np.zeros((1, task.mels, _FRAMES), np.float32))
            model.generate(features, [task.prompt], beam_size=1, max_length=2 * _SMOKE_TOKENS)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise damaged(
            f"CTranslate2 can't run the model of {task.checkpoint} ({reason}); fetch or convert the model again."
        ) from error
    return SmokeTestResult(model.compute_type)
