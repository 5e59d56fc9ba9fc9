"""Makes a deployable model repository from the committed one, an engine directory and options."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_engines.manifest import Manifest
from inflight.deploy import kv_budget, model_configs
from inflight.deploy.draft import verified_draft
from inflight.deploy.errors import DeployError

ENGINE_MODEL = "tensorrt_llm"
SCRIPTED_MODEL = "tensorrt_llm_bls"
TEXT_MODELS = ("ensemble", SCRIPTED_MODEL)
"""Those that clients send text to, in the order in which they are unloaded."""

_FOLLOWERS = {
    ("postprocessing", "skip_special_tokens"): (ENGINE_MODEL, SCRIPTED_MODEL),
    (ENGINE_MODEL, "exclude_input_in_output"): (SCRIPTED_MODEL,),
}
"""Parameters of one model that others have to know too, which follow it unless they are told otherwise."""


@dataclass(frozen=True)
class DeploymentOptions:
    """What may differ between deployments of one engine; None leaves what is committed, or the default.

    `kv_cache_tokens`, `max_num_tokens` (per step), `max_num_sequences` (in flight) and `max_queue_size` (waiting; 0: no
    bound) bound the engine. Without `decoupled` each request gets exactly one response, as clients that don't open a
    stream need it, and nothing streams. The engine speculates with `draft_engine`, a directory, or with
    `prompt_lookup`, `num_draft_tokens` at a time. `adapters` are LoRA files, which requests name by their number from
    1. With `accumulate_tokens` the model `tensorrt_llm_bls` streams the whole text so far each time. With
    `wrap_token_ids` prompt ids beyond the vocabulary are taken modulo its size, else refused. `parameters` sets further
    ones, by model and key: {"tensorrt_llm": {"inflight_engine": "fake"}}.
    """

    kv_cache_tokens: int | None = None
    max_num_sequences: int | None = None
    max_num_tokens: int | None = None
    max_queue_size: int | None = None
    kv_cache_reuse: bool = True
    chunked_context: bool = True
    decoupled: bool = True
    draft_engine: Path | None = None
    prompt_lookup: bool = False
    num_draft_tokens: int | None = None
    adapters: tuple[Path, ...] = ()
    accumulate_tokens: bool = False
    wrap_token_ids: bool = False
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def check(self, engine: Path, manifest: Manifest) -> None:
        """Look at the files they name, and at what does not go together.

        Raises BuildError for a draft engine that is missing or damaged, and DeployError `invalid_parameter`.
        """
        if self.draft_engine is not None and self.prompt_lookup:
            raise DeployError(
                "A draft engine and prompt lookup were both asked for; the engine speculates with one of them.",
                "invalid_parameter",
            )
        if self.num_draft_tokens is not None and self.draft_engine is None and not self.prompt_lookup:
            raise DeployError(
                f"A number of draft tokens ({self.num_draft_tokens}) was given without anything to draft them; ask for"
                " a draft engine or prompt lookup too.",
                "invalid_parameter",
            )
        for path in self.adapters:
            if not path.is_file():
                raise DeployError(
                    f"There is no LoRA adapter at {path}; give its safetensors file.", "invalid_parameter"
                )
        if self.draft_engine is not None:
            verified_draft(self.draft_engine, engine, manifest)


def committed_repository() -> Path:
    """The model repository as it is committed: beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parent
    for place in (here / "model_repository", here.parent.parent / "model_repository"):
        if (place / "ensemble" / "config.pbtxt").is_file():
            return place
    raise DeployError(f"The model repository is missing beside {here}; install inflight again.", "server_start_failed")


def assemble(
    engine: Path, manifest: Manifest, out: Path, options: DeploymentOptions, source: Path | None = None
) -> model_configs.Configs:
    """Write a deployable repository to `out`, which must not exist, and return its configurations.

    The options were checked before. Raises DeployError for a parameter that no model declares, and a repository whose
    ensemble does not fit its models.
    """
    source = source or committed_repository()
    configs = model_configs.load(source)
    for model, values in _parameters(engine.resolve(), manifest, options, configs).items():
        if model not in configs:
            raise DeployError(
                f"There is no model {model!r} to set parameters of; there are {', '.join(configs)}.",
                "invalid_parameter",
            )
        model_configs.set_parameters(configs[model], values)
    for model in {ENGINE_MODEL, SCRIPTED_MODEL} & set(configs):
        model_configs.set_decoupled(configs[model], options.decoupled)
    if options.max_queue_size is not None:
        model_configs.set_max_queue_size(configs[ENGINE_MODEL], options.max_queue_size)
    model_configs.check(configs)
    for name in configs:
        shutil.copytree(source / name, out / name, ignore=shutil.ignore_patterns("__pycache__", ".gitkeep"))
    model_configs.write(configs, out)
    return configs


def _parameters(
    engine: Path, manifest: Manifest, options: DeploymentOptions, configs: model_configs.Configs
) -> dict[str, dict[str, str]]:
    """Every parameter to set, by model: the engine's place, its bounds, and whatever was asked for beyond."""
    sequences = options.max_num_sequences or _committed_number(configs, "max_num_sequences")
    if options.kv_cache_tokens is None:
        draft = None if options.draft_engine is None else Manifest.read(options.draft_engine)
        tokens = kv_budget.default_tokens(manifest, sequences, draft=draft)
    else:
        tokens = kv_budget.blocks(options.kv_cache_tokens)
    bounds = {
        "gpt_model_path": str(engine),
        "max_tokens_in_paged_kv_cache": str(tokens),
        "max_num_sequences": str(sequences),
        "enable_kv_cache_reuse": _flag(options.kv_cache_reuse),
        "enable_chunked_context": _flag(options.chunked_context),
        "prompt_lookup": _flag(options.prompt_lookup),
        "wrap_token_ids": _flag(options.wrap_token_ids),
        "lora_adapters": json.dumps([str(path.resolve()) for path in options.adapters]),
    }
    if options.max_num_tokens is not None:
        bounds["max_num_tokens"] = str(options.max_num_tokens)
    if options.draft_engine is not None:
        bounds["draft_model_path"] = str(options.draft_engine.resolve())
    if options.num_draft_tokens is not None:
        bounds["num_draft_tokens"] = str(options.num_draft_tokens)
    values = {
        "preprocessing": {"tokenizer_dir": str(engine)},
        ENGINE_MODEL: bounds,
        "postprocessing": {"tokenizer_dir": str(engine)},
        SCRIPTED_MODEL: {
            "tokenizer_dir": str(engine),
            "accumulate_tokens": _flag(options.accumulate_tokens),
            "engine_drafts": _flag(options.prompt_lookup or options.draft_engine is not None),
        },
    }
    for model, more in options.parameters.items():
        values[model] = {**values.get(model, {}), **more}
    for (model, key), followers in _FOLLOWERS.items():
        said = values[model].get(key, configs[model].parameters[key].string_value)
        for follower in followers:
            values[follower].setdefault(key, said)
    return values


def _committed_number(configs: Mapping[str, Any], key: str) -> int:
    return int(configs[ENGINE_MODEL].parameters[key].string_value)


def _flag(value: bool) -> str:
    return "true" if value else "false"
