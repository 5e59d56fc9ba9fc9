"""Finds `tritonserver` and builds its command line: a container's, or that of the wheel nvidia-pytriton.

The wheel has its server in site-packages, without a python stub where the backend expects it. So the layout is mirrored
into the run directory with symbolic links, and site-packages is never written.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import secrets
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from inflight.deploy.errors import DeployError
from inflight.deploy.server.grpc_tls import GrpcTls
from inflight.deploy.server.ports import ListenHosts, ListenPorts, in_brackets

CONTAINER_ROOT = Path("/opt/tritonserver")
STUB_NAME = "triton_python_backend_stub"
SERVER_CORES = "INFLIGHT_SERVER_CORES"
"""For the guard: the cores of tritonserver and its stubs, as a list."""

ENGINE_CORES = "INFLIGHT_ENGINE_CORES"
"""For the engine's process, which would otherwise inherit the server's."""

_ENGINE_CORES_PER_SERVER_CORE = 8


@dataclass(frozen=True)
class TritonInstallation:
    """A tritonserver. `root` holds bin/ and backends/; `wheel` says whether it has the wheel's layout."""

    program: Path
    root: Path
    wheel: bool


def find_triton() -> TritonInstallation:
    """Return the container's server if there is one, else the wheel's.

    Raises DeployError `server_not_found` if there is neither, or if it can't run this Python.
    """
    program = shutil.which("tritonserver") or shutil.which(str(CONTAINER_ROOT / "bin" / "tritonserver"))
    if program:
        path = Path(program).resolve()
        installation = TritonInstallation(path, path.parent.parent, wheel=False)
        stub_path(installation)
        return installation
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise DeployError(
            "There is no tritonserver: none on PATH, none in /opt/tritonserver, and the package nvidia-pytriton"
            " is not installed; run `make setup`, or `pip install '.[serve]'` in a checkout (Linux on x86-64), or run"
            " in NVIDIA's Triton container.",
            "server_not_found",
        )
    root = Path(spec.submodule_search_locations[0]) / "tritonserver"
    installation = TritonInstallation(root / "bin" / "tritonserver", root, wheel=True)
    stub_path(installation)
    shared_python()
    return installation


def stub_path(installation: TritonInstallation) -> Path:
    """Return the program that runs python models. Raises DeployError if there is none for this Python."""
    if installation.wheel:
        stub = installation.root / "python_backend_stubs" / python_version() / STUB_NAME
    else:
        stub = installation.root / "backends" / "python" / STUB_NAME
    if not stub.is_file():
        remedy = "use a Python from 3.8 to 3.13" if installation.wheel else "use a Triton with the python backend"
        raise DeployError(
            f"{installation.root} has no stub for Python {python_version()} ({stub} is missing); {remedy}.",
            "server_not_found",
        )
    library = re.search(rb"libpython(3\.\d+)", stub.read_bytes())
    if library and library[1].decode() != python_version():
        raise DeployError(
            f"{stub} runs Python {library[1].decode()} and this is Python {python_version()};"
            " install inflight for the former.",
            "server_not_found",
        )
    return stub


def shared_python() -> Path:
    """Return the directory of this Python's shared library, which the stub needs. Raises DeployError without one."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    places = [sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL"), f"{sys.base_prefix}/lib"]
    if multiarch:
        places += [f"/usr/lib/{multiarch}", f"/lib/{multiarch}"]
    for place in filter(None, places):
        # Path.is_file raises for a forbidden place.
        if name.startswith("libpython") and ".so" in name and os.path.isfile(f"{place}/{name}"):
            return Path(place)
    raise DeployError(
        f"{sys.executable} was built without a shared library (libpython{python_version()}.so), which Triton's"
        f" python backend needs; use one built with --enable-shared, such as Debian's python{python_version()} with the"
        f" packages python{python_version()}-venv and libpython{python_version()}.",
        "server_not_found",
    )


def mirror_wheel(installation: TritonInstallation, into: Path) -> TritonInstallation:
    """Mirror the wheel's server under `into` in the layout that it expects; a container's is returned unchanged.

    The package `inflight` is linked beside the backend, where the stub finds it if it is not installed.
    """
    if not installation.wheel:
        return installation
    root = into / "pytriton" / "tritonserver"
    backend = root / "backends" / "python"
    backend.mkdir(parents=True)
    (root / "bin").mkdir()
    (into / "nvidia_pytriton.libs").symlink_to(installation.root.parent.parent / "nvidia_pytriton.libs")
    (root / "caches").symlink_to(installation.root / "caches")
    (root / "bin" / "tritonserver").symlink_to(installation.program)
    for file in (installation.root / "backends" / "python").iterdir():
        if file.is_file():
            (backend / file.name).symlink_to(file)
    shutil.copy(stub_path(installation), backend / STUB_NAME)
    (backend / "inflight").symlink_to(Path(__file__).resolve().parents[2])
    return TritonInstallation(root / "bin" / "tritonserver", root, wheel=True)


def server_environment(installation: TritonInstallation) -> dict[str, str]:
    """Return the server's environment.

    The stub is an isolated interpreter that ignores PYTHONPATH: it uses the environment of the first `python3` on PATH,
    with its .pth files, so this Python's own directory comes first there.
    """
    variables = dict(os.environ)
    programs = str(Path(sys.executable).parent)
    variables["PATH"] = os.pathsep.join([programs, variables.get("PATH", os.defpath)])
    variables["INFLIGHT_SUPERVISED"] = "1"
    # Its processes find one another by a name that can't be guessed.
    variables["INFLIGHT_SERVER_ID"] = secrets.token_hex(8)
    if not has_gpu():
        variables.update(affinity_environment())
    if installation.wheel:
        libraries = [str(shared_python()), variables.get("LD_LIBRARY_PATH", "")]
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
        variables["INFLIGHT_STUB_LAYOUT"] = "2.51"  # for inflight.runtime.triton.stub.guard_launcher
    return variables


def affinity_environment(allowed: set[int] | None = None) -> dict[str, str]:
    """Return environment variables that assign one of every eight available cores to the server, at least one.

    Every token passes through four processes in a row. If each of them wakes another one on a different core, the
    wake-up costs more than the work, especially in a virtual machine, and takes a core away from the engine's forward
    pass. So the server's processes share few cores and don't preempt the engine, which may use all cores; see
    docs/internals/measurements.md. The choice is random, so that the servers of a machine don't share the same cores.
    """
    cores = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    few = max(1, len(cores) // _ENGINE_CORES_PER_SERVER_CORE)
    begin = random.randrange(0, len(cores) - few + 1, few)
    return {SERVER_CORES: ",".join(map(str, cores[begin : begin + few])), ENGINE_CORES: ",".join(map(str, cores))}


def server_command(
    installation: TritonInstallation,
    repository: Path | str,
    *,
    hosts: ListenHosts,
    ports: ListenPorts,
    shm_prefix: str,
    admin_key: str,
    exit_seconds: int,
    grpc_tls: GrpcTls | None = None,
) -> list[str]:
    """Return the command line; `hosts` are numeric addresses.

    Models are loaded at the start and never change; draining unloads them (see `drain` in instance.py), so the
    repository API requires `admin_key`. So do the APIs that write files, slow the server down or map memory.
    """
    key = f"model-repository,logging,trace,shared-memory:inflight-admin-key={admin_key}"
    return [
        *_common_arguments(installation, repository, shm_prefix, exit_seconds),
        "--load-model=*",
        f"--http-restricted-api={key}",
        f"--grpc-restricted-protocol={key}",
        f"--http-address={_of_http(hosts.http)}",
        f"--grpc-address={in_brackets(hosts.grpc)}",
        f"--metrics-address={_of_http(hosts.metrics)}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        # The time to the first response, which TensorRT-LLM's backend reports nowhere else.
        "--metrics-config=histogram_latencies=true",
        *(grpc_tls.arguments() if grpc_tls else ()),
    ]


def _of_http(address: str) -> str:
    """Return a host in the undocumented form of Triton's HTTP server (evhtp_bind_socket of libevhtp)."""
    return f"ipv6:{address}" if ":" in address else address


def follower_command(
    installation: TritonInstallation, repository: Path | str, *, model: str, shm_prefix: str, exit_seconds: int
) -> list[str]:
    """Return the command line of a rank other than the first: it loads only `model`, and serves no requests."""
    return [
        *_common_arguments(installation, repository, shm_prefix, exit_seconds),
        f"--load-model={model}",
        "--allow-http=false",
        "--allow-grpc=false",
        "--allow-metrics=false",
    ]


def _common_arguments(
    installation: TritonInstallation, repository: Path | str, shm_prefix: str, exit_seconds: int
) -> list[str]:
    arguments = [
        str(installation.program),
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        f"--exit-timeout-secs={exit_seconds}",
        "--log-verbose=0",
    ]
    if installation.wheel:
        arguments += [
            f"--backend-directory={installation.root / 'backends'}",
            f"--cache-directory={installation.root / 'caches'}",
        ]
    if not has_gpu():
        arguments.append("--allow-gpu-metrics=false")
    return arguments


def has_gpu() -> bool:
    """Return whether an NVIDIA driver is loaded."""
    return Path("/dev/nvidiactl").exists()


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
