"""The target `tensorrt` of models that embed, rerank or classify texts: a TensorRT plan for the GPU of this machine.

The graph is exported here, and the plan is built from it by the Python that has TensorRT: the one of TensorRT-LLM, or
the one of a container.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_engines.checkpoints.checkpoint import Checkpoint, map_read_errors, read_config
from build_engines.containers import DEFAULT_CONTAINER
from build_engines.encoders.graph_options import GraphOptions
from build_engines.encoders.onnx_export import MODEL, ONNX_DIRECTORY, OUTPUT, OnnxExportTask
from build_engines.errors import BuildError, invalid
from build_engines.machine import Machine
from build_engines.manifest import CompiledEncoder, EncoderLimits, Precision
from build_engines.openvino.export_runner import run_export
from build_engines.progress import BuildProgress
from build_engines.target import BuildOptions, CacheKey, Host, installed_versions
from build_engines.tensorrt_llm.commands import Command
from build_engines.tensorrt_llm.programs import Docker, Native, Programs, docker_for, program_versions
from build_engines.tensorrt_llm.run import logging_to, run_command
from inflight.common.micro_batch import default_batch_tokens

DEFAULT_PRECISION: Precision = "fp16"
DEFAULT_LIMITS = EncoderLimits(max_batch_texts=256, max_batch_tokens=default_batch_tokens(0, "tensorrt"))
PLAN = "model.plan"
_SCRIPT = Path(__file__).with_name("build_plan.py")
_TASK = "task.json"
# Bytes per parameter of the ONNX model and of the plan, which exist at the same time.
_BYTES = {"fp32": 8.0, "fp16": 4.0, "bf16": 4.0}
# The first version whose networks keep the types of an ONNX model in all operators.
_OLDEST = (10, 12)
_SHORTEST_PROFILE = 128
_NOT_TRIED = "The engine is untested: it first computes texts when it is served."

Shape = tuple[int, int]


@dataclass(frozen=True)
class TensorRtSettings:
    """The target's settings besides those of the graph: limits, and where the plan is built."""

    limits: EncoderLimits = DEFAULT_LIMITS
    programs: Programs = field(default_factory=Native)


@dataclass
class TensorRtEncoderTarget:
    """Builds a plan with `settings`. `machine` is kept, since detection takes seconds in docker."""

    options: GraphOptions
    settings: TensorRtSettings
    machine: Machine | None = None

    def check_supported(self, directory: Path, config: dict[str, Any]) -> None:
        self.options.settings_of(directory, config)

    def cache_key(self) -> CacheKey:
        return CacheKey([*self.options.cache_key(), self.settings.limits.model_dump()])

    def host(self) -> Host:
        programs = self.settings.programs
        machine = self.machine = programs.detect()
        _check_machine(machine, programs.where)
        versions = installed_versions("transformers", "torch") | program_versions(programs, machine, "tensorrt", "cuda")
        return Host(versions, machine.built_on)

    def bytes_needed(self, checkpoint: Checkpoint) -> int:
        return int(checkpoint.parameters * _BYTES[self.options.precision])

    def compile(self, checkpoint: Checkpoint, out: Path, progress: BuildProgress) -> CompiledEncoder:
        settings = self.options.settings_of(checkpoint.directory, checkpoint.config)
        facts = run_export(self.options.export_task(OnnxExportTask, checkpoint, settings, out, {}), progress)
        programs = self.settings.programs
        programs = docker_for(out, programs) if isinstance(programs, Docker) else programs
        between = out.resolve() / ONNX_DIRECTORY
        shutil.copyfile(_SCRIPT, between / _SCRIPT.name)  # a container has the engine's directory alone
        task = self.plan_task(out.resolve(), facts["inputs"], settings.max_seq_len)
        (between / _TASK).write_text(json.dumps(task), encoding="utf-8")
        with logging_to(out) as log:
            command = plan_command(programs, out.resolve())
            run_command(command, programs, {}, [out.resolve()], 1, log, progress)
        shutil.rmtree(between)
        facts |= {"limits": self.settings.limits, "notes": (_NOT_TRIED, *settings.notes)}
        return self.options.compiled(settings, facts)

    def plan_task(self, out: Path, inputs: list[str], max_seq_len: int) -> dict[str, Any]:
        """Return what build_plan.py reads, for the engine directory `out`."""
        return {
            "onnx": str(out / ONNX_DIRECTORY / MODEL),
            "plan": str(out / PLAN),
            "inputs": inputs,
            "output": OUTPUT,
            "profiles": list(profiles(max_seq_len, self.settings.limits)),
            "tf32": self.options.precision != "fp32",
        }


def target(options: BuildOptions) -> TensorRtEncoderTarget:
    """Return the target for `options`, which name a task."""
    settings = options.settings or TensorRtSettings()
    if not isinstance(settings, TensorRtSettings):
        raise invalid("The target tensorrt needs its own settings; pass TensorRtSettings.")
    return TensorRtEncoderTarget(GraphOptions.of(options, DEFAULT_PRECISION), settings)


def profiles(max_seq_len: int, limits: EncoderLimits) -> Iterator[tuple[Shape, Shape, Shape]]:
    """Yield the optimization profiles: their smallest, usual and largest [texts, tokens].

    TensorRT needs memory for the largest shape of a profile and knows no budget of tokens. So there is one for texts of
    up to 128 tokens, one for up to 256, and so on: the largest shape of each has at most twice the budget, or short
    texts.
    """
    longest = 0
    while longest < max_seq_len:
        shortest, longest = longest + 1, min(max(2 * longest, _SHORTEST_PROFILE), max_seq_len)
        most = max(1, min(limits.max_batch_texts, limits.max_batch_tokens // shortest))
        usual = max(1, min(most, limits.max_batch_tokens // longest))
        yield (1, shortest), (usual, longest), (most, longest)


def plan_command(programs: Programs, out: Path) -> Command:
    """Return the command that builds the plan in the engine directory `out`."""
    between = out / ONNX_DIRECTORY
    python = programs.paths(out, between, out).python
    return Command("build", (*python, str(between / _SCRIPT.name), str(between / _TASK)))


def dry_run(directory: Path, out: Path, target: TensorRtEncoderTarget) -> str:
    """Return what a build of the checkpoint `directory` into `out` would run, as shell lines: the export, which has no
    command of its own, as a comment. Raises BuildError as a build does, except for errors of the machine."""
    with map_read_errors(directory):
        settings = target.options.settings_of(directory, read_config(directory))
    programs, place = target.settings.programs, out.resolve()
    programs = docker_for(out, programs) if isinstance(programs, Docker) else programs
    command = plan_command(programs, place)
    line = shlex.join(programs.line(command, {}, [place])) if isinstance(programs, Docker) else command.shell()
    task = target.plan_task(place, ["input_ids", "attention_mask"], settings.max_seq_len)
    return f"# {task['onnx']} in {target.options.precision}, with inputs of {json.dumps(task['profiles'])}\n{line}"


def _check_machine(machine: Machine, where: str) -> None:
    """Raise BuildError: `package_missing` without TensorRT, `invalid_parameter` for an old one, `gpu_missing`."""
    version = machine.versions.get("tensorrt")
    if version is None:
        raise BuildError(
            f"There is no TensorRT in {where}; run inflight in {DEFAULT_CONTAINER.image}, or pass --docker.",
            "package_missing",
        )
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise invalid(
            f"{where} has TensorRT {version}, and encoders need {'.'.join(map(str, _OLDEST))} or newer; use "
            f"{DEFAULT_CONTAINER.image}."
        )
    if not machine.gpus:
        raise BuildError(
            f"nvidia-smi finds no GPU in {where}, which TensorRT needs to choose kernels; build on the machine that "
            "serves the engine.",
            "gpu_missing",
        )
    if sentence := machine.several_kinds(where):
        raise invalid(sentence)
