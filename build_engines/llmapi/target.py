"""The LLM API target: writes the checkpoint, its tokenizer and the library's arguments to the engine directory."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from build_engines.capabilities.llmapi import LATER_ARCHITECTURES, SUPPORTED_ARCHITECTURES
from build_engines.capabilities.quantization import CheckpointQuantization, only_in_config, read_quantization
from build_engines.capabilities.tensorrt_llm import CAPABILITIES
from build_engines.checkpoints.checkpoint import Checkpoint, check_not_gguf, read_checkpoint
from build_engines.checkpoints.model_facts import ModelFacts, read_facts, read_special_ids
from build_engines.checkpoints.tokenizer_files import read_fast_tokenizer, write_fast_tokenizer
from build_engines.containers import ENGINE_LINE
from build_engines.engine_files import hash_file
from build_engines.errors import invalid, unsupported
from build_engines.llmapi.arguments import LlmArguments
from build_engines.manifest import (
    CompiledEngine,
    GpuFeatures,
    GpuKvPrecision,
    GpuLimits,
    GpuPrecision,
    KeptKvPrecision,
    KvPrecision,
    Precision,
)
from build_engines.progress import BuildProgress
from build_engines.target import BuildOptions, CacheKey, Host

_GENERATORS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the text model in the parsed config.json `config`.

    Missing keys of a text section get transformers' defaults, if it knows the model (Gemma 3 4B has neither its heads
    nor its vocabulary). Keys outside the section, such as ids of special tokens, take precedence.
    """
    name = next((name for name in _TEXT_SECTIONS if isinstance(config.get(name), dict)), None)
    if name is None or "num_hidden_layers" in config:
        return config
    section = {key: value for key, value in config[name].items() if value is not None}
    of_the_whole = {key: value for key, value in config.items() if key not in _TEXT_SECTIONS and value is not None}
    return {**_transformers_defaults(config), **section, **of_the_whole}


def _transformers_defaults(config: dict[str, Any]) -> dict[str, Any]:
    from transformers import CONFIG_MAPPING

    try:
        whole = CONFIG_MAPPING[str(config["model_type"])].from_dict(config)
        usual = whole.get_text_config(decoder=True).to_dict()
    except Exception:  # transformers doesn't know the model or rejects its config: no defaults
        return {}
    # The default type of the class is not the type of the weights.
    return {key: value for key, value in usual.items() if key not in ("dtype", "torch_dtype")}


MODEL_FILE = "model.yaml"
CHECKPOINT = "checkpoint"
# Suffixes of a checkpoint's files other than weights: configs, tokenizers in all formats, chat templates.
_SUFFIXES = {".json", ".model", ".txt", ".jinja", ".tiktoken"}
# The checkpoint's code may read other files too; larger ones are copies of the weights in another format.
_MAX_OWN_FILE_BYTES = 16 << 20
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_PRECISIONS: dict[str, Precision] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_KV_PRECISIONS: dict[str, KvPrecision] = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_NOT_TRIED = "The engine is untested: TensorRT-LLM loads it on a GPU, in NVIDIA's container, when it is first served."

_NARROWED = "The checkpoint's weights are float32 and the engine computes in bfloat16; --precision fp32 keeps float32."
_UNTYPED = (
    "config.json has no torch_dtype of 16 or 32 bits, so the engine computes in bfloat16; --precision changes it."
)
_INLINE = (
    "The checkpoint has no hf_quant_config.json; its ModelOpt quantization is only in config.json, and some versions of"
    " TensorRT-LLM (possibly 1.2) don't load it."
)
_OWN_CODE = (
    "The code in the checkpoint (auto_map in config.json) was not copied; if the library requires it,"
    " build with --llm-argument trust_remote_code=true."
)


def check_architecture(directory: Path, config: dict[str, Any], trust_remote_code: bool) -> tuple[str, ...]:
    """Return notes for the user about a supported architecture; `trust_remote_code` allows an unknown one.

    Raises BuildError (`unsupported_architecture`) if the model is not a text decoder or if no version of the library
    lists it; the message names a target that supports it.
    """
    name = str(config["architectures"][0])
    if config.get("is_encoder_decoder"):
        raise unsupported(
            f"{directory} holds a {name}, which has an encoder, and only decoders can be built; "
            "use a decoder-only model that generates text (…ForCausalLM)."
        )
    if name in SUPPORTED_ARCHITECTURES:
        return ()
    if name in LATER_ARCHITECTURES:
        return (f"TensorRT-LLM 1.2 doesn't support {name}: it needs the container of a later version.",)
    if not name.endswith(_GENERATORS):
        raise unsupported(
            f"{directory} holds a {name}, and only models that generate text (…ForCausalLM) can be built."
        )
    if trust_remote_code:
        return (f"TensorRT-LLM doesn't list {name}: the engine loads only if the version that serves it supports it.",)
    other = "build it with --target tensorrt-llm" if name in CAPABILITIES[ENGINE_LINE] else "use another model"
    raise unsupported(
        f"{directory} holds a {name}, which TensorRT-LLM's LLM API doesn't list; {other}, or pass --llm-argument "
        "trust_remote_code=true if the version that will serve it supports it."
    )


@dataclass
class LlmApiTarget:
    """The target `llmapi`: the user's settings, and the checkpoint's after `check_supported` has read them."""

    arguments: LlmArguments
    precision: Precision | GpuPrecision | None = None
    kv_precision: GpuKvPrecision | None = None
    quantization: CheckpointQuantization = field(default_factory=CheckpointQuantization)
    notes: tuple[str, ...] = ()
    own_files: str | None = None

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        check_not_gguf(directory, "llmapi")
        self.notes = check_architecture(directory, config, self.arguments.trust_remote_code)
        self.quantization = read_quantization(directory, config)
        self.own_files = _hash_own_files(directory) if self.arguments.trust_remote_code else None
        has = self.quantization.precision
        if has is not None and self.precision not in (None, has):
            raise invalid(
                f"{directory} is quantized to {has}, so --precision {self.precision} is not possible; leave it out."
            )
        if has is None and self.precision not in (None, *DTYPES):
            raise invalid(
                f"{directory} is not quantized, and --target llmapi quantizes nothing, so --precision {self.precision}"
                " is not possible; quantize it with ModelOpt first, or use --target tensorrt-llm."
            )

    def cache_key(self) -> CacheKey:
        kept = self.quantization
        arguments = self.arguments.model_dump(mode="json")
        return CacheKey([arguments, self.precision, self.kv_precision, kept.precision, kept.kv], [self.own_files])

    def host(self) -> Host:
        return Host({})

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        """Return 0: weights are linked if possible; a copy that doesn't fit fails with the system's error."""
        return 0

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> CompiledEngine:
        progress.step("Copying the checkpoint")
        config = text_config(checkpoint.config)
        facts = read_facts(checkpoint.directory, config)
        keywords = self.keywords(checkpoint, facts)
        link_checkpoint(checkpoint, out / CHECKPOINT, self.arguments.trust_remote_code)
        tokenizer = read_fast_tokenizer(checkpoint.directory)
        write_fast_tokenizer(tokenizer, out)
        (out / MODEL_FILE).write_text(as_yaml(keywords), encoding="utf-8")
        special = read_special_ids(checkpoint.directory, config, tokenizer)
        arguments = self.arguments
        dtype = facts.dtype if keywords.get("dtype", "auto") == "auto" else keywords["dtype"]
        return CompiledEngine(
            precision=self.quantization.precision or _PRECISIONS[dtype],
            kv_cache_precision=self._kv() or _KV_PRECISIONS[dtype],
            properties={},
            max_seq_len=keywords["max_seq_len"],
            vocab_size=facts.vocab_size,
            **asdict(special),
            layers=facts.layers,
            kv_heads=facts.kv_heads,
            head_dim=facts.head_dim,
            tensor_parallel=arguments.tensor_parallel_size,
            pipeline_parallel=arguments.pipeline_parallel_size,
            limits=GpuLimits(
                max_batch_size=arguments.max_batch_size,
                max_num_tokens=arguments.max_num_tokens,
                max_input_len=keywords["max_seq_len"] - 1,
                max_beam_width=arguments.max_beam_width,
            ),
            features=GpuFeatures(
                kv_cache_reuse=arguments.kv_cache_config.enable_block_reuse,
                chunked_context=arguments.enable_chunked_prefill,
                lora=arguments.enable_lora,
                speculative_decoding_mode=(arguments.speculative_config or {}).get("decoding_type"),
                max_draft_len=(arguments.speculative_config or {}).get("max_draft_len") or 0,
            ),
            notes=(_NOT_TRIED, *self.notes, *self._notes(checkpoint, facts)),
        )

    def keywords(self, checkpoint: Checkpoint, facts: ModelFacts) -> dict[str, Any]:
        """Return the arguments of `LLM`; raise BuildError (`invalid_parameter`) for a length above the model's."""
        length = self.arguments.max_seq_len or facts.positions
        if length > facts.positions:
            raise invalid(
                f"{checkpoint.directory} can be built for {facts.positions} tokens at most, so max_seq_len {length} is"
                " too high; lower it."
            )
        keywords = self.arguments.keywords(length)
        if self.precision in DTYPES:
            keywords["dtype"] = DTYPES[self.precision]
        elif self._narrows(facts):
            keywords["dtype"] = "bfloat16"
        if self.kv_precision is not None:
            keywords["kv_cache_config"]["dtype"] = self.kv_precision
        return keywords

    def _narrows(self, facts: ModelFacts) -> bool:
        """Return whether the engine computes float32 weights in bfloat16 by default, without a type from the user."""
        return facts.dtype == "float32" and (self.precision, self.arguments.dtype) == (None, "auto")

    def _notes(self, checkpoint: Checkpoint, facts: ModelFacts) -> Iterator[str]:
        config = text_config(checkpoint.config)
        if self._narrows(facts):
            named = config.get("torch_dtype") or config.get("dtype")
            yield _NARROWED if named == "float32" else _UNTYPED
        if only_in_config(checkpoint.directory, checkpoint.config):
            yield _INLINE
        if config.get("auto_map") and not self.arguments.trust_remote_code:
            yield _OWN_CODE

    def _kv(self) -> GpuKvPrecision | KeptKvPrecision | None:
        if self.kv_precision == "fp8" or self.arguments.kv_cache_config.dtype == "fp8":
            return "fp8"
        return self.quantization.kv


def target(options: BuildOptions) -> LlmApiTarget:
    """Return the target for `options`. Its length and type can be set in `options` or in `options.settings`.

    Raises BuildError (`invalid_parameter`) if the two differ.
    """
    arguments = options.settings if isinstance(options.settings, LlmArguments) else LlmArguments()
    if arguments.dtype != "auto" and DTYPES.get(options.precision or "", arguments.dtype) != arguments.dtype:
        raise invalid(f"--precision is {options.precision} and dtype is {arguments.dtype}; leave one out.")
    length = options.max_seq_len
    if length is not None:
        if arguments.max_seq_len not in (None, length):
            raise invalid(f"--max-seq-len is {length} and max_seq_len is {arguments.max_seq_len}; leave one out.")
        arguments = arguments.model_copy(update={"max_seq_len": length})
    kv: GpuKvPrecision | None = "fp8" if options.kv_precision == "fp8" else None
    return LlmApiTarget(arguments, options.precision, kv)


def model_yaml(checkpoint: Path, options: BuildOptions) -> str:
    """Return the model.yaml that a build would write. Raises BuildError as the build would; writes nothing."""
    llmapi = target(options)
    source = read_checkpoint(checkpoint, check=llmapi.check_supported)
    return as_yaml(llmapi.keywords(source, read_facts(source.directory, text_config(source.config))))


def as_yaml(keywords: dict[str, Any]) -> str:
    text = yaml.safe_dump(json.loads(json.dumps(keywords)), sort_keys=False, allow_unicode=True)
    return f"# Arguments of tensorrt_llm.LLM except the model; the checkpoint is in {CHECKPOINT}/.\n{text}"


def link_checkpoint(checkpoint: Checkpoint, into: Path, own_code: bool) -> None:
    """Link the weights, or copy them if linking fails; copy the other files, which users edit in place."""
    into.mkdir()
    for path in checkpoint.weights:
        try:
            os.link(path.resolve(), into / path.name)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            shutil.copyfile(path, into / path.name)
    beside = {path for path in checkpoint.directory.iterdir() if path.is_file() and path.suffix in _SUFFIXES}
    beside |= set(_own_files(checkpoint.directory)) if own_code else set()
    for path in sorted(beside.difference(checkpoint.weights)):
        shutil.copyfile(path, into / path.name)


def _own_files(directory: Path) -> list[Path]:
    """Return the checkpoint's code and the files that the code may read."""
    beside = (path for path in directory.iterdir() if path.is_file() and not path.name.startswith("."))
    return sorted(path for path in beside if path.suffix == ".py" or path.stat().st_size <= _MAX_OWN_FILE_BYTES)


def _hash_own_files(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in _own_files(directory):
        digest.update(f"\0{path.name}\0{hash_file(path)}".encode())
    return digest.hexdigest()
