"""Where NVIDIA's programs run: on this machine (inside the container), or in the container through docker."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from build_engines.containers import DEFAULT_CONTAINER, container_from_image, container_from_release
from build_engines.errors import BuildError
from build_engines.machine import Machine, detect_machine, python_of_tensorrt_llm
from build_engines.tensorrt_llm.commands import BuildPaths, Command

EXAMPLES = PurePath("/app/tensorrt_llm/examples")
# Triton's containers set this to their release.
_RELEASE = "NVIDIA_TRITON_SERVER_VERSION"


@dataclass(frozen=True)
class Native:
    """The programs on the PATH, as inside the container. `examples` is the directory of the scripts.

    `where` names the place in messages; `stop_command` ends what a killed parent left running.
    """

    examples: PurePath = EXAMPLES
    where: str = "this machine"

    @property
    def stop_command(self) -> list[str]:
        return []

    def detect(self) -> Machine:
        """Return the GPUs and software; raises BuildError (`package_missing`) if they can't be determined."""
        return detect_machine()

    def container(self) -> str | None:
        container = container_from_release(os.environ.get(_RELEASE, ""))
        return container.image if container else None

    def paths(self, model: Path, checkpoint: Path, engine: Path) -> BuildPaths:
        return BuildPaths(model, checkpoint, engine, self.examples, tuple(python_of_tensorrt_llm()))

    def line(self, command: Command, environment: Mapping[str, str], paths: list[Path]) -> list[str]:
        """Return the command line that runs `command`; `paths` are the directories that it reads or writes."""
        return list(command.arguments)

    def check(self, script: str) -> None:
        """Raise BuildError (`package_missing`) if a program is missing; `script` is relative to the examples."""
        if shutil.which("trtllm-build") is None:
            raise BuildError(
                f"There is no trtllm-build on the PATH; run inflight in {DEFAULT_CONTAINER.image}, or pass --docker.",
                "package_missing",
            )
        if not Path(self.examples, script).is_file():
            raise BuildError(
                f"{self.examples} has no {script}; pass the directory of TensorRT-LLM's examples with --examples-dir.",
                "package_missing",
            )


@dataclass(frozen=True)
class Docker:
    """The programs in a container; `docker run` starts one for each program.

    Directories are mounted at the same paths, so commands and logs look as on the machine itself. New files belong to
    the user who builds. `name` is the container's name, by which it can be stopped.
    """

    image: str = DEFAULT_CONTAINER.image
    gpus: str = "all"
    shared_memory: str = "8g"
    examples: PurePath = EXAMPLES
    name: str = "inflight-build"

    @property
    def where(self) -> str:
        return self.image

    @property
    def stop_command(self) -> list[str]:
        return ["docker", "kill", self.name]

    def detect(self) -> Machine:
        self._check_image()
        return detect_machine(["docker", "run", "--rm", "--gpus", self.gpus, self.image])

    def _check_image(self) -> None:
        if shutil.which("docker") is None:
            raise BuildError("There is no docker on the PATH; install it, or leave out --docker.", "package_missing")
        asked = subprocess.run(["docker", "image", "inspect", self.image], capture_output=True, check=False)
        if asked.returncode != 0:
            raise BuildError(
                f"The image {self.image} is not on this machine; fetch it with `docker pull {self.image}` "
                "(about 14 GB).",
                "package_missing",
            )

    def container(self) -> str | None:
        container = container_from_image(self.image)
        return container.image if container else self.image

    def paths(self, model: Path, checkpoint: Path, engine: Path) -> BuildPaths:
        return BuildPaths(model, checkpoint, engine, self.examples)

    def line(self, command: Command, environment: Mapping[str, str], paths: list[Path]) -> list[str]:
        variables = {"HOME": "/tmp", "USER": "inflight", **environment, **command.environment}
        return [
            *("docker", "run", "--rm", "--init", "--name", self.name, "--gpus", self.gpus),
            *("--shm-size", self.shared_memory, "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"),
            *("--user", f"{os.getuid()}:{os.getgid()}", "--workdir", "/tmp"),
            *(part for name, value in variables.items() for part in ("-e", f"{name}={value}")),
            *(part for path in _mounted(paths) for part in ("-v", f"{path}:{path}")),
            self.image,
            *command.arguments,
        ]

    def check(self, script: str) -> None:
        looked = subprocess.run(
            ["docker", "run", "--rm", "--entrypoint", "test", self.image, "-f", str(self.examples / script)],
            capture_output=True,
            check=False,
        )
        if looked.returncode != 0:
            raise BuildError(
                f"{self.image} has no {self.examples / script}; pass the examples' directory in it with "
                "--examples-dir.",
                "package_missing",
            )


Programs = Native | Docker


def program_versions(programs: Programs, machine: Machine, *names: str) -> dict[str, str]:
    """Return the versions of these packages, those that there are, and the container of the programs."""
    container = programs.container()
    versions = {name: machine.versions[name] for name in names if name in machine.versions}
    return versions | ({"container": container} if container else {})


def docker_for(out: Path, docker: Docker) -> Docker:
    """Return `docker` with a container name for the output, which has only one writer."""
    digest = hashlib.sha256(os.fsencode(out.resolve())).hexdigest()[:12]
    return replace(docker, name=f"inflight-build-{digest}")


def _mounted(paths: list[Path]) -> list[Path]:
    """Return the directories to mount: `paths`, and the targets of their links, as in the hub's cache."""
    directories = set[Path]()
    for path in paths:
        directories.add(path)
        with contextlib.suppress(OSError):
            directories.update(_behind_links(path))
    return sorted(place for place in directories if not any(other in place.parents for other in directories))


def _behind_links(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        if path.is_symlink() and path.exists():
            yield path.resolve().parent
