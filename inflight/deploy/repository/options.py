"""The options of a deployment."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from inflight.deploy.errors import invalid
from inflight.deploy.repository.model_names import ENCODER_MODELS, BatchedTask

_MAX_NAME_BYTES = 256


@dataclass(frozen=True)
class EncoderOptions:
    """Encoders to serve beside an engine, and the settings of all encoders; None keeps the committed value.

    The fields named as tasks are engine directories. `max_batch_tokens` limits a micro-batch: its texts times the
    longest one, in tokens; `max_batch_texts` limits its texts, or clips. `max_queue_texts` may wait; a text that has
    waited for `max_wait_ms` goes first. An encoder computes `num_requests` micro-batches at a time, on
    `encoder_threads` threads of the processor. `DeploymentOptions.parameters` sets these for one encoder:
    {"rerank": {"max_wait_ms": "20"}}.
    """

    embed: Path | None = None
    rerank: Path | None = None
    classify: Path | None = None
    transcribe: Path | None = None
    text2text: Path | None = None
    max_batch_tokens: int | None = None
    max_batch_texts: int | None = None
    max_queue_texts: int | None = None
    max_wait_ms: int | None = None
    num_requests: int | None = None
    encoder_threads: int | None = None

    def directories(self) -> dict[BatchedTask, Path]:
        """Return the engine directories that are set, by task."""
        return {task: directory for task in ENCODER_MODELS if (directory := getattr(self, task)) is not None}

    def with_directories(self, named: Mapping[BatchedTask, Path]) -> EncoderOptions:
        """Return the same settings for other engine directories."""
        directories: dict[str, Any] = {task: named.get(task) for task in ENCODER_MODELS}
        return replace(self, **directories)


@dataclass(frozen=True)
class DeploymentOptions:
    """What may differ between deployments of the same engines; None keeps the committed value, or the default.

    `kv_cache_tokens`, `max_num_tokens` (per step), `max_num_sequences` (in flight) and `max_queue_size` (waiting; 0:
    no limit) limit the engine, and `itl_bound` the time of steps with parts of prompts. Tenants share prefixes with
    `share_prefixes`. Without `decoupled`, each request gets exactly one response, for clients that don't open a
    stream. The engine speculates with `draft_engine`, a directory, or with `prompt_lookup`, `num_draft_tokens` at a
    time. `adapters` are LoRA files, which requests select by their number from 1; those in `adapter_directory` are
    loaded when a request first names one. Streamed responses have `stream_interval` tokens each, after an answer's
    first ones. The engine computes on `threads` threads of the processor. With `wrap_token_ids`, prompt ids outside
    the vocabulary are taken modulo its size; otherwise they are refused. If it is `reproducible`, the same request has
    the same answer, whatever runs beside it. `served_model_name` is the model's name for
    applications, by default the engine's. `settings` are parameters by upstream's names (`TensorRtLlmParameters`;
    `PythonBackendParameters` of other targets), in the user's form. `parameters` sets further ones, by model and key:
    {"tensorrt_llm": {"inflight_engine": "fake"}}.
    `encoders` are served too.
    """

    kv_cache_tokens: int | None = None
    max_num_sequences: int | None = None
    max_num_tokens: int | None = None
    itl_bound: float | None = None
    max_queue_size: int | None = None
    kv_cache_reuse: bool = True
    share_prefixes: bool = False
    chunked_context: bool = True
    decoupled: bool = True
    draft_engine: Path | None = None
    prompt_lookup: bool = False
    num_draft_tokens: int | None = None
    adapters: tuple[Path, ...] = ()
    adapter_directory: Path | None = None
    stream_interval: int | None = None
    generation_config: Literal["model", "ignore"] = "model"
    threads: int | None = None
    wrap_token_ids: bool = False
    reproducible: bool = False
    served_model_name: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    encoders: EncoderOptions = field(default_factory=EncoderOptions)

    def given_parameters(self) -> dict[str, Any]:
        """Return all given parameters by upstream's names, including those with a separate option.

        Raises DeployError `invalid_parameter` if one was given in both ways.
        """
        own: dict[str, Any] = {}
        if self.kv_cache_tokens is not None:
            own["max_tokens_in_paged_kv_cache"] = self.kv_cache_tokens
        if not self.kv_cache_reuse:
            own["enable_kv_cache_reuse"] = False
        if not self.chunked_context:
            own["enable_chunked_context"] = False
        for name in own:
            if name in self.settings:
                raise invalid(f"The parameter {name} was given together with its option; leave one of them out.")
        return {**self.settings, **own}


def given_options(options: DeploymentOptions | EncoderOptions) -> list[str]:
    """Return the names of the fields that differ from their defaults."""
    usual = type(options)()
    return [option.name for option in fields(options) if getattr(options, option.name) != getattr(usual, option.name)]


def check_served_model_name(name: str | None) -> None:
    """Raise DeployError `invalid_parameter` for a name that applications can't write in a request or an address."""
    if name is None:
        return
    if not name or name != name.strip() or not name.isprintable():
        raise invalid(
            f"The served model name {name!r} is empty, or has control characters or spaces at its ends; give one"
            " without them."
        )
    if len(name.encode(errors="replace")) > _MAX_NAME_BYTES:
        raise invalid(
            f"The served model name {name[:20]}... has more than {_MAX_NAME_BYTES} bytes; give a shorter one."
        )


def adapter_names(adapters: Sequence[Path], model: str) -> list[str]:
    """Return the names of LoRA adapters for applications: those of their directories or files, each once."""
    taken, names = {model}, []
    for number, path in enumerate(adapters, 1):
        name = path.stem if path.suffix == ".safetensors" else path.resolve().name
        names.append(f"{name}-{number}" if name in taken else name)
        taken.add(names[-1])
    return names


def adapter_files(path: Path) -> dict[str, Path]:
    """Return the files of a LoRA adapter by their names in a directory of PEFT; the settings are beside a lone file."""
    weights, settings = "adapter_model.safetensors", "adapter_config.json"
    files = {weights: path / weights if path.is_dir() else path}
    beside = files[weights].parent / settings
    return {**files, settings: beside} if beside.is_file() else files


def adapter_digests(adapters: Sequence[Path], model: str) -> dict[str, str]:
    """Return the SHA-256 of the files of each LoRA adapter by its name. Raises OSError."""
    names = adapter_names(adapters, model)
    return {name: _sha256(adapter_files(path)) for name, path in zip(names, adapters, strict=True)}


def _sha256(files: Mapping[str, Path]) -> str:
    parts = (name.encode() + hashlib.sha256(file.read_bytes()).digest() for name, file in files.items())
    return hashlib.sha256(b"".join(parts)).hexdigest()


def check_readable(*paths: Path | str) -> None:
    """Raise DeployError `invalid_parameter` for paths that are not UTF-8, which no configuration can hold."""
    for path in paths:
        try:
            os.path.realpath(path).encode()
        except UnicodeEncodeError:
            shown = os.fsencode(path).decode(errors="replace")
            raise invalid(f"The path {shown!r} holds bytes that are not UTF-8; rename it, or link to it.") from None
