"""What serving needs of this machine, looked at one by one, each with what to do where it is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from inflight.deploy.errors import DeployError

_PACKAGES = ("tokenizers", "tritonclient", "pydantic", "psutil", "numpy")
# What loads an engine, by its target; for tensorrt-llm that is a backend of Triton's, and no package.
_LIBRARIES = {"openvino": "openvino-genai", "llmapi": "tensorrt_llm"}
_INSTALL = "`make setup`, or `pip install '.[serve]'` in a checkout"
_CONTAINER = "serve it in NVIDIA's container with TensorRT-LLM"
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8")
_DEFAULT_PORTS = (8000, 8001, 8002)
_MEBI, _GIBI = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `missing` prevents serving, `warning` may hinder it."""

    name: str
    state: Literal["ok", "warning", "missing"]
    found: str
    remedy: str = ""


def examine(place: str | Path | None = None) -> Iterator[Finding]:
    """Look at everything, the cheap things first; findings come as they are made.

    `place` is what shall be served: an engine directory, or an assembled repository in a directory or on S3.
    """
    packages = _packages()
    yield packages
    yield _python()
    yield _server()
    yield _engines()
    yield _shared_memory()
    yield _processor()
    if packages.state != "missing":
        yield from (_memory(), _ports(), _leftovers(), _trial())
    yield _gpu()
    if place is not None and packages.state != "missing":
        yield from _engine(place)


def _packages() -> Finding:
    found = {package: _version(package) for package in _PACKAGES}
    absent = [package for package, version in found.items() if version is None]
    if absent:
        return Finding("packages", "missing", f"no {', '.join(absent)}", _INSTALL)
    return Finding("packages", "ok", ", ".join(f"{package} {version}" for package, version in found.items()))


def _engines() -> Finding:
    """Engines of which targets can be loaded here; one will do, since no machine serves all."""
    from inflight.deploy.tensorrtllm_models import BACKEND

    found = [f"{target} ({name} {version})" for target, name in _LIBRARIES.items() if (version := _version(name))]
    backends = _backends()
    if backends is not None and (backends / BACKEND).is_dir():
        found.append(f"tensorrt-llm (Triton's backend {BACKEND})")
    if not found:
        here = "nothing that loads an engine: no openvino-genai, no TensorRT-LLM"
        return Finding("engines", "missing", here, f"{_INSTALL}; for GPUs NVIDIA's container with TensorRT-LLM")
    return Finding("engines", "ok", f"of target {', '.join(found)}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _backends() -> Path | None:
    """Where Triton's backends lie, if there is a Triton."""
    from inflight.deploy.triton import find

    try:
        return find().root / "backends"
    except DeployError:
        return None


def _python() -> Finding:
    from inflight.deploy.triton import find, shared_python

    def look() -> str:
        found = f"{platform.python_version()} at {sys.executable}"
        try:
            container = not find().wheel
        except DeployError:
            container = False
        # The stub of a container has its own.
        return found if container else f"{found}, shared library in {shared_python()}"

    return _or_missing("python", look)


def _server() -> Finding:
    from inflight.deploy.triton import find, stub_of

    def look() -> str:
        installation = find()
        origin = "from the wheel nvidia-pytriton" if installation.wheel else "installed on this machine"
        return f"{installation.program} ({origin}), stub {stub_of(installation)}"

    return _or_missing("tritonserver", look)


def _trial() -> Finding:
    from inflight.deploy.trial import trial_start

    return _or_missing("trial start", lambda: f"tritonserver {trial_start()} runs a python model")


def _shared_memory() -> Finding:
    if not os.path.isdir("/dev/shm"):
        return Finding("shared memory", "missing", "there is no /dev/shm", "mount a tmpfs there")
    free = shutil.disk_usage("/dev/shm").free
    found = f"{free / _MEBI:,.0f} MiB free in /dev/shm"
    if free < 16 * _MEBI:
        return Finding("shared memory", "missing", found, "give the container more, as with --shm-size=1g")
    if free < 256 * _MEBI:
        return Finding("shared memory", "warning", found, "give the container more, as with --shm-size=1g")
    return Finding("shared memory", "ok", found)


def _memory() -> Finding:
    from inflight.deploy.memory import available_bytes

    available = available_bytes()
    found = f"{available / _GIBI:.1f} GiB available"
    if available < 2 * _GIBI:
        return Finding("memory", "warning", found, "close other programs, or serve a smaller engine")
    return Finding("memory", "ok", found)


def _processor() -> Finding:
    flags: set[str] = set()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("flags"):
                flags = set(line.partition(":")[2].split())
                break
    known = [name for name in _INSTRUCTIONS if name in flags]
    found = f"{len(os.sched_getaffinity(0))} cores, {', '.join(known) or 'no vector instructions that matter'}"
    if "avx2" not in flags:
        return Finding("processor", "warning", found, "expect the embedded engine to be slow")
    return Finding("processor", "ok", found)


def _ports() -> Finding:
    from inflight.deploy.ports import is_free

    taken = [port for port in _DEFAULT_PORTS if not is_free("127.0.0.1", port)]
    if not taken:
        return Finding("ports", "ok", "8000, 8001 and 8002 are free")
    users = {port: _listener(port) for port in taken}
    found = ", ".join(f"{port} in use by {user}" for port, (user, _) in users.items())
    ours = all(is_ours for _, is_ours in users.values())
    choose = "choose others with --http-port, --grpc-port, --metrics-port (0: any free one)"
    return Finding("ports", "ok" if ours else "warning", found, f"for another server {choose}" if ours else choose)


def _listener(port: int) -> tuple[str, bool]:
    """Who listens on a port of this machine, and whether that is a server of inflight's."""
    import psutil

    from inflight.deploy.run_directory import owners

    try:
        listening = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
        process = next(
            (psutil.Process(one.pid) for one in listening if one.laddr and one.laddr.port == port and one.pid), None
        )
        if process is None:
            return "a program of another user", False
        above = [parent.pid for parent in process.parents() if parent.pid in owners()]
        return (
            (f"inflight (process {above[0]})", True) if above else (f"{process.name()} (process {process.pid})", False)
        )
    except psutil.Error:
        return "another program", False


def _leftovers() -> Finding:
    from inflight.deploy.run_directory import default_home, leftovers

    left = leftovers()
    if left:
        found = f"{len(left)} of dead servers in {default_home()}"
        return Finding("leftovers", "warning", found, "nothing: the next start sweeps them")
    return Finding("leftovers", "ok", f"none in {default_home()}")


def _gpu() -> Finding:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding("gpu", "ok", "none (the embedded engine runs on the processor)")
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("gpu", "warning", f"nvidia-smi fails ({error})", "look at the driver")
    if listed.returncode:
        return Finding("gpu", "warning", (listed.stdout + listed.stderr).strip(), "look at the driver")
    return Finding("gpu", "ok", "; ".join(listed.stdout.strip().splitlines()))


def _engine(place: str | Path) -> Iterator[Finding]:
    """Whether the engine, or the repository that was made of one, is whole and runs on this machine."""
    from build_engines import machine
    from build_engines.errors import BuildError
    from inflight.deploy.deployment import engine_parameters, find_source
    from inflight.deploy.launch import choose
    from inflight.deploy.options import DeploymentOptions
    from inflight.deploy.preflight import problems

    fit = True
    try:
        source = find_source(place, DeploymentOptions())
        manifest, backends = source.manifest, _backends()
        library = _LIBRARIES.get(manifest.target)
        if library is not None and _version(library) is None:
            fit = False
            found = f"{manifest.name} is for target {manifest.target}, which takes the package {library}"
            yield Finding("engine", "missing", found, _INSTALL if manifest.target == "openvino" else _CONTAINER)
        for problem in problems(manifest, machine.look(), backends) if backends else ():
            fit = False
            finding = _as_missing("engine", problem.sentence)
            yield finding if problem.code else replace(finding, state="warning")
        choose(manifest, engine_parameters(source), None)
    except (BuildError, DeployError) as error:
        yield _as_missing("engine", str(error))
        return
    if fit:
        yield Finding(
            "engine", "ok", f"{place}: {manifest.name} for {manifest.target}, whole, and fit for this machine"
        )


def _or_missing(name: str, look: Callable[[], str]) -> Finding:
    """What `look` finds; its error says what is missing and, after a semicolon, how to mend it."""
    try:
        return Finding(name, "ok", look())
    except DeployError as error:
        return _as_missing(name, str(error))


def _as_missing(name: str, sentence: str) -> Finding:
    found, semicolon, remedy = sentence.rpartition("; ")
    return Finding(name, "missing", found if semicolon else sentence, remedy.rstrip(".") if semicolon else "")
