"""The target `tensorrt-llm`: an engine that NVIDIA's programs compile for the GPU of this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from build_engines.capabilities.tensorrt_llm import Architecture, find_architecture, refuse_precision
from build_engines.checkpoints.checkpoint import Checkpoint, check_not_gguf, map_read_errors, read_config
from build_engines.checkpoints.model_facts import ModelFacts, SpecialIds, read_facts, read_special_ids
from build_engines.checkpoints.tokenizer_files import read_fast_tokenizer, write_fast_tokenizer
from build_engines.errors import invalid
from build_engines.machine import Machine
from build_engines.manifest import (
    CompiledEngine,
    GpuFeatures,
    GpuKvPrecision,
    GpuLimits,
    GpuPrecision,
    KvPrecision,
    Precision,
)
from build_engines.progress import BuildProgress
from build_engines.target import BuildOptions, CacheKey, Host
from build_engines.tensorrt_llm.commands import Command, commands
from build_engines.tensorrt_llm.engine_config import EngineConfig, check_engine
from build_engines.tensorrt_llm.programs import Docker, Native, Programs, docker_for, program_versions
from build_engines.tensorrt_llm.recipe import Recipe
from build_engines.tensorrt_llm.resolve_defaults import resolve_defaults
from build_engines.tensorrt_llm.rules.machine import check_calibration, check_machine, check_path
from build_engines.tensorrt_llm.rules.recipe import check_model, check_recipe
from build_engines.tensorrt_llm.run import logging_to, run_command

# It has the format of upstream's examples/generate_xgrammar_tokenizer_info.py (NVIDIA/TensorRT-LLM 7ed07f06), which
# needs TensorRT-LLM; all of its content comes from the tokenizer.


FILE_NAME = "xgrammar_tokenizer_info.json"


def write_xgrammar_tokenizer_info(tokenizer: Any, end_ids: Sequence[int], out: Path) -> None:
    """Write the file into `out`; a guided answer may end with any of `end_ids`.

    `tokenizer` is a fast tokenizer of transformers. Gaps in its ids become empty texts in the list.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    texts = [""] * (max(vocabulary.values()) + 1)
    for token, token_id in vocabulary.items():
        texts[token_id] = token
    info = {
        "encoded_vocab": texts,
        "tokenizer_str": tokenizer.backend_tokenizer.to_str(),
        "stop_token_ids": list(end_ids),
    }
    (out / FILE_NAME).write_text(json.dumps(info), encoding="utf-8")


# The checkpoint in TensorRT-LLM's format; removed from the engine directory at the end.
CHECKPOINT = "tllm_checkpoint"
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_KV_PRECISIONS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
# Bytes per parameter, including embeddings in 16 bits.
_BYTES = {"none": 2.0} | dict.fromkeys(("fp8", "int8_sq", "int8_wo"), 1.2)
_BYTES |= dict.fromkeys(("nvfp4", "int4_awq", "w4a8_awq", "int4_wo"), 0.8)
_WITHOUT_EFFECT = ("workers", "log_level")


@dataclass(frozen=True)
class TensorRtLlmSettings:
    """The target's settings besides the precision: the recipe, and where NVIDIA's programs run."""

    recipe: Recipe = field(default_factory=Recipe)
    programs: Programs = field(default_factory=Native)


@dataclass(frozen=True)
class BuildPlan:
    """A resolved recipe with its architecture and model, and notes for the user."""

    recipe: Recipe
    architecture: Architecture
    facts: ModelFacts
    notes: tuple[str, ...]


@dataclass
class TensorRtLlmTarget:
    """Compiles an engine from `recipe` with `programs`. `machine` is cached: detection takes seconds in docker."""

    recipe: Recipe
    programs: Programs
    machine: Machine | None = None

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        plan_build(self.recipe, directory, config)

    def cache_key(self) -> CacheKey:
        recipe = self.recipe.model_dump(mode="json", exclude=set(_WITHOUT_EFFECT))
        return CacheKey([recipe], _stamps(self.recipe))

    def host(self) -> Host:
        machine = self.machine = self.programs.detect()
        check_machine(self.recipe, machine, self.programs.where)
        check_calibration(self.recipe)
        versions = program_versions(self.programs, machine, "tensorrt_llm", "tensorrt", "cuda")
        return Host(versions, machine.built_on)

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        """Return the size of TensorRT-LLM's checkpoint and the engine, which exist at the same time."""
        full = 4.0 if self.recipe.dtype == "float32" else _BYTES["none"]
        each = full if self.recipe.quantization == "none" else _BYTES[self.recipe.quantization]
        return int(2 * checkpoint.parameters * each)

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> CompiledEngine:
        plan = plan_build(self.recipe, checkpoint.directory, checkpoint.config)
        tokenizer = read_fast_tokenizer(checkpoint.directory)
        programs = docker_for(out, self.programs) if isinstance(self.programs, Docker) else self.programs
        config = self._run(plan, programs, checkpoint, out, progress)
        write_fast_tokenizer(tokenizer, out)
        special = read_special_ids(checkpoint.directory, checkpoint.config, tokenizer)
        write_xgrammar_tokenizer_info(tokenizer, special.end_ids, out)
        return _compiled(plan, config, special)

    def _run(
        self, plan: BuildPlan, programs: Programs, checkpoint: Checkpoint, out: Path, progress: BuildProgress
    ) -> EngineConfig:
        """Run the programs, and return the config of the new engine."""
        model, between = checkpoint.directory.resolve(), out.resolve() / CHECKPOINT
        places = programs.paths(model, between, out.resolve())
        steps = commands(plan.recipe, plan.architecture, places)
        script = next(part for part in steps[0].arguments if part.endswith(".py"))
        programs.check(script.removeprefix(f"{places.examples}/"))
        machine = self.machine or programs.detect()
        between.mkdir()
        paths = [model, out.resolve(), *read_paths(plan.recipe)]
        with logging_to(out) as log:
            for step in steps:
                run_command(step, programs, environment(plan.recipe), paths, plan.recipe.world_size, log, progress)
            progress.step("Checking the engine")
            config = check_engine(out, plan.recipe, machine.versions.get("tensorrt_llm"), log.path)
        shutil.rmtree(between)
        return config


def plan_build(recipe: Recipe, directory: Path, config: dict[str, Any]) -> BuildPlan:
    """Resolve `recipe` for the checkpoint `directory` with the parsed config.json `config`, and check both.

    Raises BuildError: `unsupported_architecture`, `not_a_checkpoint`, `invalid_parameter`.
    """
    check_not_gguf(directory, "tensorrt-llm")
    architecture = find_architecture(directory, config)
    refuse_precision(architecture, recipe.quantization, recipe.kv_cache_dtype)
    facts = read_facts(directory, config)
    settled, notes = resolve_defaults(recipe, facts)
    check_recipe(settled)
    check_model(settled, architecture, facts)
    check_path(settled, architecture, directory)
    return BuildPlan(settled, architecture, facts, notes)


def environment(recipe: Recipe) -> dict[str, str]:
    """Return the environment variables of all programs: only a calibration dataset may be downloaded."""
    fetched = recipe.needs_calibration and not os.path.isdir(recipe.calibration.dataset)
    return {} if fetched else {"HF_HUB_OFFLINE": "1"}


def read_paths(recipe: Recipe) -> list[Path]:
    """Return the directories besides the checkpoint that the programs read."""
    paths = list(recipe.lora.directories) if recipe.lora else []
    if recipe.speculation and recipe.speculation.model:
        paths.append(recipe.speculation.model)
    if os.path.isdir(recipe.calibration.dataset):
        paths.append(Path(recipe.calibration.dataset))
    return [path.resolve() for path in paths]


def target(options: BuildOptions) -> TensorRtLlmTarget:
    settings = options.settings or TensorRtLlmSettings()
    if not isinstance(settings, TensorRtLlmSettings):
        raise invalid("The target tensorrt-llm needs a recipe; pass TensorRtLlmSettings.")
    return TensorRtLlmTarget(_with_options(settings.recipe, options), settings.programs)


def _with_options(recipe: Recipe, options: BuildOptions) -> Recipe:
    """Return the recipe with the options that all targets share."""
    changed: dict[str, Any] = {}
    dtypes = {short: dtype for dtype, short in _PRECISIONS.items()}
    if options.precision in dtypes:
        changed |= {"dtype": dtypes[options.precision], "quantization": "none"}
    elif options.precision is not None:
        changed["quantization"] = options.precision
    if options.kv_precision is not None:
        changed["kv_cache_dtype"] = options.kv_precision
    if options.max_seq_len is not None:
        changed["limits"] = recipe.limits.model_copy(update={"max_seq_len": options.max_seq_len})
    return recipe.model_copy(update=changed)


def _stamps(recipe: Recipe) -> list[Any]:
    """Return a fingerprint of each further input, to detect changes."""
    files = (path for directory in read_paths(recipe) for path in sorted(directory.rglob("*")) if path.is_file())
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def _compiled(plan: BuildPlan, config: EngineConfig, special: SpecialIds) -> CompiledEngine:
    recipe, facts = plan.recipe, plan.facts
    plain = recipe.quantization == "none"
    precision = _PRECISIONS[recipe.dtype] if plain else recipe.quantization
    cache = _KV_PRECISIONS[recipe.dtype] if recipe.kv_cache_dtype == "auto" else recipe.kv_cache_dtype
    limits = {name: config.limits[name] for name in GpuLimits.model_fields if name in config.limits}
    return CompiledEngine(
        precision=cast(Precision | GpuPrecision, precision),
        kv_cache_precision=cast(KvPrecision | GpuKvPrecision, cache),
        properties={},
        max_seq_len=recipe.limits.max_seq_len or facts.positions,
        vocab_size=facts.vocab_size,
        **asdict(special),
        layers=facts.layers,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        tensor_parallel=config.tensor_parallel,
        pipeline_parallel=config.pipeline_parallel,
        limits=GpuLimits(**limits),
        features=_features(recipe, config),
        notes=(*plan.notes, *_differences(recipe, config)),
    )


def _features(recipe: Recipe, config: EngineConfig) -> GpuFeatures:
    """Return the engine's features: from its config, or else from the recipe."""
    speculation, paged = recipe.speculation, config.paged_context_fmha
    return GpuFeatures(
        paged_context_fmha=paged,
        kv_cache_reuse=paged and bool(recipe.kv_cache_reuse),
        chunked_context=paged and bool(recipe.chunked_context),
        lora=config.lora,
        context_logits=config.context_logits,
        generation_logits=recipe.gather_generation_logits,
        speculative_decoding_mode=speculation.mode if speculation else None,
        max_draft_len=speculation.max_draft_len if speculation else 0,
    )


def _differences(recipe: Recipe, config: EngineConfig) -> Iterator[str]:
    """Yield notes on changes that trtllm-build only logs as warnings, in an engine that can be served."""
    if recipe.paged_context_fmha and not config.paged_context_fmha:
        yield (
            "trtllm-build switched paged_context_fmha off (see build.log), so prefixes are not reused and long prompts "
            "not computed in chunks."
        )


@dataclass(frozen=True)
class DryRun:
    """The commands of a build, the environment variables of all of them, and the same as shell lines."""

    environment: dict[str, str]
    commands: tuple[Command, ...]
    lines: tuple[str, ...]
    notes: tuple[str, ...]


def dry_run(directory: Path, out: Path, target: TensorRtLlmTarget) -> DryRun:
    """Return what `target` would run to build the checkpoint `directory` into `out`.

    A real build writes beside `out` until the engine is complete. Raises BuildError as a build does, except for
    errors of the machine.
    """
    with map_read_errors(directory):
        plan = plan_build(target.recipe, directory, read_config(directory))
    model, engine = directory.resolve(), out.resolve()
    programs = docker_for(out, target.programs) if isinstance(target.programs, Docker) else target.programs
    steps = commands(plan.recipe, plan.architecture, programs.paths(model, engine / CHECKPOINT, engine))
    variables = environment(plan.recipe)
    if isinstance(programs, Docker):
        paths = [model, engine, *read_paths(plan.recipe)]
        lines = [f"mkdir -p {shlex.quote(str(engine))}"]
        lines += [shlex.join(programs.line(command, variables, paths)) for command in steps]
    else:
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        lines += [command.shell() for command in steps]
    return DryRun(variables, steps, tuple(lines), plan.notes)
