"""Shows the commands of a build without running them; needs only the checkpoint's config.json, no GPU."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from build_engines.checkpoints.checkpoint import map_read_errors, read_config
from build_engines.tensorrt_llm.commands import Command
from build_engines.tensorrt_llm.programs import Docker, Programs, docker_for
from build_engines.tensorrt_llm.target import CHECKPOINT, TensorRtLlmTarget, environment, plan_build, read_paths


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
    programs: Programs = target.programs
    if isinstance(programs, Docker):
        programs = docker_for(out, programs)
    commands = plan.commands(programs.paths(model, engine / CHECKPOINT, engine))
    variables = environment(plan.recipe)
    if isinstance(programs, Docker):
        paths = [model, engine, *read_paths(plan.recipe)]
        lines = [f"mkdir -p {shlex.quote(str(engine))}"]
        lines += [shlex.join(programs.line(command, variables, paths)) for command in commands]
    else:
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        lines += [command.shell() for command in commands]
    return DryRun(variables, commands, tuple(lines), plan.notes)
