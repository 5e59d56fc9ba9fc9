"""The processes of an engine on several GPUs, and the command line that starts them.

TensorRT-LLM's C++ backend runs a rank of the engine on each GPU, and the ranks use MPI. In leader mode, each rank is a
tritonserver, and the first one serves; in orchestrator mode, one tritonserver spawns a worker for each rank of each
instance. Both start as in upstream's scripts/launch_triton_server.py (NVIDIA/TensorRT-LLM at 0a2e2c1f).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from build_engines.machine import find_gpus
from build_engines.manifest import Manifest
from inflight.common import process_guard
from inflight.deploy.errors import DeployError, invalid
from inflight.deploy.repository.engine_set import AnyManifest
from inflight.deploy.repository.environment import world_size
from inflight.deploy.server.preflight import visible_gpus

MultiGpuMode = Literal["leader", "orchestrator"]
MULTI_GPU_MODES: tuple[MultiGpuMode, ...] = ("leader", "orchestrator")

SHARED_MEMORY_DIRECTORY = Path("/dev/shm")
_GUARDED_COMMAND = (sys.executable, "-I", "-S", process_guard.__file__)
# Its path in NVIDIA's containers if it is not on PATH.
_MPIRUNS = ("/usr/local/mpi/bin/mpirun", "/opt/hpcx/ompi/bin/mpirun")
# The ranks use shared memory (NCCL and MPI); docker's default of 64 MiB for all of them is too little.
_MIN_SHARED_MEMORY_BYTES = 64 << 20


@dataclass(frozen=True)
class ProcessLayout:
    """`ranks` tritonservers under `mpirun`, or without it a single one without MPI.

    An orchestrator spawns its workers, or with `spawns_workers` false uses ranks. `gpus` is the number of visible ones.
    """

    mode: MultiGpuMode | None = None
    ranks: int = 1
    spawns_workers: bool = True
    mpirun: str = ""
    gpus: int = 0

    def command(self, server: list[str], follower: Callable[[int], list[str]]) -> list[str]:
        """Return the whole command line, made of the server's and those of the ranks from 1 on."""
        if self.mode is None:
            return server
        line = [self.mpirun]
        if os.geteuid() == 0:
            line.append("--allow-run-as-root")
        # By default, mpirun binds each rank and all its threads to one core, and starts at most one rank per core.
        line += ["--bind-to", "none", "--oversubscribe"]
        for rank in range(self.ranks):
            line += [":"] if rank else []
            line += ["-n", "1", *_GUARDED_COMMAND, *(follower(rank) if rank else server), *self._memory_arguments()]
        return line

    def variables(self, run: Path) -> dict[str, str]:
        """Return environment variables. MPI's own files go into the run directory, which is removed later."""
        if self.mode is None:
            return {}
        variables = {"PRTE_MCA_prte_tmpdir_base": str(run), "OMPI_MCA_orte_tmpdir_base": str(run)}
        if self.mode == "orchestrator":
            variables["TRTLLM_ORCHESTRATOR"] = "1"
            variables["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] = "1" if self.spawns_workers else "0"
        return variables

    def _memory_arguments(self) -> list[str]:
        """Return memory arguments: an orchestrator computes nothing, and must not take GPU memory from its workers."""
        if self.mode != "orchestrator" or not self.spawns_workers:
            return []
        pools = [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(self.gpus)]
        return ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools]


def choose_layout(manifest: AnyManifest, parameters: Mapping[str, str], asked: MultiGpuMode | None) -> ProcessLayout:
    """Choose how to start the main engine: `parameters` are those of its model, `asked` is the requested mode.

    Raises DeployError `invalid_parameter` for a mode that does not match, `gpu_missing`, `server_not_found` without
    mpirun, and `server_start_failed` for too little shared memory.
    """
    if not isinstance(manifest, Manifest) or manifest.target != "tensorrt-llm":
        if asked is not None:
            kind = manifest.target if manifest.task == "generate" else "encoders"
            raise _layout_error(f"The mode {asked} is for engines of target tensorrt-llm, not {kind}")
        return ProcessLayout()
    groups, participants = (_groups(parameters.get(name, "")) for name in ("gpu_device_ids", "participant_ids"))
    instances = max(len(groups), len(participants), 1)
    named = [rank for group in participants for rank in group]
    mode = asked or ("orchestrator" if instances > 1 or named else "leader" if world_size(manifest) > 1 else None)
    gpus = visible_gpus(find_gpus()) if mode or groups else ()
    _check_gpus([gpu for group in groups for gpu in group], len(gpus))
    if mode is None:
        return ProcessLayout()
    if mode == "leader" and named:
        raise _layout_error(
            "The parameter participant_ids names the ranks of an orchestrator, and leader mode has no orchestrator"
        )
    if mode == "leader" and instances > 1:
        raise _layout_error(
            f"The parameter gpu_device_ids asks for {instances} instances, and leader mode has only one"
        )
    if parameters.get("num_nodes", "1") != "1":
        raise invalid(
            f"The parameter num_nodes is {parameters['num_nodes']}, and `inflight serve` starts ranks on this machine"
            " only; assemble a repository and start it with the cluster's own launcher."
        )
    _check_participants(named)
    if mode == "orchestrator" and not named:
        _check_worker(parameters.get("executor_worker_path", ""))
    ranks = len(named) + 1 if mode == "orchestrator" else world_size(manifest)
    workers = world_size(manifest) * instances
    _check_shared_memory(workers)
    return ProcessLayout(mode, ranks, not named, _find_mpirun(workers), len(gpus))


def _check_participants(named: list[int]) -> None:
    """Check that each started rank is in an instance; others would exit."""
    if sorted(named) != list(range(1, len(named) + 1)):
        shown = ",".join(map(str, named))
        raise invalid(
            f"The parameter participant_ids names the ranks {shown}, and 0 is the orchestrator's own; name those from 1"
            f" to {len(named)}, each once."
        )


def _check_gpus(named: list[int], count: int) -> None:
    for number in named:
        if number >= count:
            raise DeployError(
                f"The parameter gpu_device_ids names GPU {number}, and this machine has {count}, numbered from 0;"
                " name others.",
                "gpu_missing",
            )


def _check_worker(path: str) -> None:
    if not os.access(path, os.X_OK):
        raise DeployError(
            f"There is no program {path or 'of the workers'}, which an orchestrator spawns for each rank; set its path"
            " with --set executor_worker_path=PATH.",
            "server_not_found",
        )


def _check_shared_memory(workers: int) -> None:
    free = shutil.disk_usage(SHARED_MEMORY_DIRECTORY).free
    if free < workers * _MIN_SHARED_MEMORY_BYTES:
        raise DeployError(
            f"{SHARED_MEMORY_DIRECTORY} has {free >> 20:,} MiB free, and {workers} ranks need"
            f" {workers * _MIN_SHARED_MEMORY_BYTES >> 20:,}"
            " to communicate; give the container more, as with --shm-size=1g.",
            "server_start_failed",
        )


def _find_mpirun(workers: int) -> str:
    for name in ("mpirun", *_MPIRUNS):
        if path := shutil.which(name):
            return os.path.abspath(path)
    raise DeployError(
        f"There is no mpirun, which starts the {workers} ranks of this engine: none on PATH, none in"
        f" {' or '.join(_MPIRUNS)}; serve it in NVIDIA's container, or install Open MPI.",
        "server_not_found",
    )


def _groups(text: str) -> list[list[int]]:
    """Parse "0,1;2,3" to a list of numbers per group."""
    groups = ([int(number) for number in group.split(",") if number.strip()] for group in text.split(";"))
    return [group for group in groups if group]


def _layout_error(what: str) -> DeployError:
    return DeployError(f"{what}; leave --multi-gpu out, or choose the other mode.", "invalid_parameter")
