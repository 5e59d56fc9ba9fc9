"""Checks of what this machine needs for serving, each with a remedy for what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from build_engines.cpu_precision import choose_precision, find_processor
from inflight.deploy.errors import DeployError

if TYPE_CHECKING:
    from inflight.deploy.repository.engine_set import AnyManifest

_PACKAGES = ("tokenizers", "tritonclient", "pydantic", "psutil", "numpy")
# The package that loads an engine, by target; tensorrt-llm needs a backend of Triton instead of a package.
_LIBRARIES = {"openvino": "openvino", "llmapi": "tensorrt_llm", "tensorrt": "tensorrt"}
_INSTALL_REMEDY = "`make setup`, or `pip install '.[serve]'` in a checkout"
_CONTAINER_REMEDY = "serve it in NVIDIA's container with TensorRT-LLM"
_ENCODE_REMEDY = "serve it where TensorRT-LLM 1.3 or later is installed"
_DEFAULT_PORTS = (8000, 8001, 8002)
_ENCODE_TIMEOUT = 60.0
_MEBI, _GIBI = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Finding:
    """The result of one check. `missing` prevents serving, `warning` may affect it."""

    name: str
    state: Literal["ok", "warning", "missing"]
    found: str
    remedy: str = ""


def run_checks(location: str | Path | None = None) -> Iterator[Finding]:
    """Run all checks, the cheap ones first, and yield each finding at once.

    `location` is what to serve: an engine directory, or an assembled repository in a directory or on S3.
    """
    packages = _packages()
    yield packages
    yield _python()
    yield _server()
    yield _engines()
    yield _shared_memory()
    yield _processor()
    if packages.state != "missing":
        yield from (_memory(), _ports(), _leftovers(), _smoke_test())
    yield _gpu()
    if location is not None and packages.state != "missing":
        yield from _engine(location)


def _packages() -> Finding:
    versions = {package: _version(package) for package in _PACKAGES}
    absent = [package for package, version in versions.items() if version is None]
    if absent:
        return Finding("packages", "missing", f"no {', '.join(absent)}", _INSTALL_REMEDY)
    return Finding("packages", "ok", ", ".join(f"{package} {version}" for package, version in versions.items()))


def _engines() -> Finding:
    """Check for which targets engines can be loaded here; one suffices, since no machine serves all."""
    from inflight.deploy.repository.model_names import CPP_BACKEND

    libraries = {**_LIBRARIES, "ctranslate2": "ctranslate2"}
    loadable = [f"{target} ({name} {version})" for target, name in libraries.items() if (version := _version(name))]
    backends = _backends()
    if backends is not None and (backends / CPP_BACKEND).is_dir():
        loadable.append(f"tensorrt-llm (Triton's backend {CPP_BACKEND})")
    if not loadable:
        here = "no library that loads an engine: neither OpenVINO nor TensorRT-LLM"
        return Finding("engines", "missing", here, f"{_INSTALL_REMEDY}; for GPUs NVIDIA's container with TensorRT-LLM")
    return Finding("engines", "ok", f"of target {', '.join(loadable)}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _backends() -> Path | None:
    """Return the directory of Triton's backends if there is a Triton."""
    from inflight.deploy.server.triton import find_triton

    try:
        return find_triton().root / "backends"
    except DeployError:
        return None


def _python() -> Finding:
    from inflight.deploy.server.triton import find_triton, shared_python

    def look() -> str:
        python = f"{platform.python_version()} at {sys.executable}"
        try:
            container = not find_triton().wheel
        except DeployError:
            container = False
        # A container's stub has its own Python library.
        return python if container else f"{python}, shared library in {shared_python()}"

    return _missing_on_error("python", look)


def _server() -> Finding:
    from inflight.deploy.server.triton import find_triton, stub_path

    def look() -> str:
        installation = find_triton()
        origin = "from the wheel nvidia-pytriton" if installation.wheel else "installed on this machine"
        return f"{installation.program} ({origin}), stub {stub_path(installation)}"

    return _missing_on_error("tritonserver", look)


def _smoke_test() -> Finding:
    from inflight.deploy.checks.smoke_test import smoke_test

    return _missing_on_error("smoke test", lambda: f"tritonserver {smoke_test()} runs a python model")


def _shared_memory() -> Finding:
    if not os.path.isdir("/dev/shm"):
        return Finding("shared memory", "missing", "there is no /dev/shm", "mount a tmpfs there")
    free = shutil.disk_usage("/dev/shm").free
    space = f"{free / _MEBI:,.0f} MiB free in /dev/shm"
    if free < 16 * _MEBI:
        return Finding("shared memory", "missing", space, "give the container more, as with --shm-size=1g")
    if free < 256 * _MEBI:
        return Finding("shared memory", "warning", space, "give the container more, as with --shm-size=1g")
    return Finding("shared memory", "ok", space)


def _memory() -> Finding:
    from inflight.deploy.memory import available_bytes

    available = available_bytes()
    amount = f"{available / _GIBI:.1f} GiB available"
    if available < 2 * _GIBI:
        return Finding("memory", "warning", amount, "close other programs, or serve a smaller engine")
    return Finding("memory", "ok", amount)


def _processor() -> Finding:
    processor = find_processor()
    choice = choose_precision(processor)
    description = f"{processor}; {choice.precision} weights suit it: {choice.reason}"
    if not processor.features:
        return Finding("processor", "warning", description, "expect the embedded engine to be slow")
    return Finding("processor", "ok", description)


def _ports() -> Finding:
    from inflight.deploy.server.ports import is_free

    taken = [port for port in _DEFAULT_PORTS if not is_free("127.0.0.1", port)]
    if not taken:
        return Finding("ports", "ok", "8000, 8001 and 8002 are free")
    users = {port: _listener(port) for port in taken}
    uses = ", ".join(f"{port} in use by {user}" for port, (user, _) in users.items())
    ours = all(is_ours for _, is_ours in users.values())
    choose = "choose others with --http-port, --grpc-port, --metrics-port (0: any free one)"
    return Finding("ports", "ok" if ours else "warning", uses, f"for another server {choose}" if ours else choose)


def _listener(port: int) -> tuple[str, bool]:
    """Return the program that listens on a port of this machine, and whether it is an inflight server."""
    import psutil

    from inflight.deploy.server.run_directory import server_pids

    try:
        listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        process = next(
            (psutil.Process(each.pid) for each in listening if each.laddr and each.laddr.port == port and each.pid),
            None,
        )
        if process is None:
            return "a program of another user", False
        above = [parent.pid for parent in process.parents() if parent.pid in server_pids()]
        return (
            (f"inflight (process {above[0]})", True) if above else (f"{process.name()} (process {process.pid})", False)
        )
    except psutil.Error:
        return "another program", False


def _leftovers() -> Finding:
    from inflight.deploy.server.run_directory import default_base_directory, stale_run_directories

    left = stale_run_directories()
    if left:
        count = f"{len(left)} of dead servers in {default_base_directory()}"
        return Finding("leftovers", "warning", count, "nothing: the next start removes them")
    return Finding("leftovers", "ok", f"none in {default_base_directory()}")


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


def _engine(location: str | Path) -> Iterator[Finding]:
    """Check that the engine or repository is complete and runs on this machine; let each encoder encode a text."""
    from build_engines import machine
    from build_engines.errors import BuildError
    from inflight.deploy.repository.options import DeploymentOptions
    from inflight.deploy.server.preflight import find_problems
    from inflight.deploy.server.process_layout import choose_layout
    from inflight.deploy.server.source import engine_parameters, find_source

    fit = True
    try:
        source = find_source(location, DeploymentOptions())
        backends = _backends()
        for manifest in source.engines.all:
            library = _LIBRARIES.get(manifest.target)
            if library is not None and _version(library) is None:
                fit = False
                reason = f"{manifest.name} is for target {manifest.target}, which needs the package {library}"
                encodes = manifest.task != "generate" and manifest.target == "llmapi"
                on_gpu = _ENCODE_REMEDY if encodes else _CONTAINER_REMEDY
                yield Finding("engine", "missing", reason, _INSTALL_REMEDY if manifest.target == "openvino" else on_gpu)
            for problem in find_problems(manifest, machine.detect_machine(), backends) if backends else ():
                fit = fit and not problem.code
                finding = _missing("engine", problem.sentence)
                yield finding if problem.code else replace(finding, state="warning")
        choose_layout(source.engines.main, engine_parameters(source), None)
    except (BuildError, DeployError) as error:
        yield _missing("engine", str(error))
        return
    if not fit:
        return
    for manifest in source.engines.all:
        facts = "".join(f", {fact}" for fact in _facts(manifest))
        yield Finding(
            "engine", "ok", f"{location}: {manifest.name} for {manifest.target}{facts}, whole, and fit for this machine"
        )
    if source.engines.generator is None and backends is not None:
        yield _missing_on_error("encoder", lambda: _encode_a_text(location))


def _facts(manifest: AnyManifest) -> Iterator[str]:
    """Yield what an encoder does, in words, and whether an engine can be served with --reproducible."""
    if manifest.task == "generate":
        if (manifest.target, manifest.precision, manifest.kv_cache_precision) == ("openvino", "fp32", "f32"):
            yield "fit for --reproducible"
        return
    yield f"task {manifest.task}"
    if manifest.task == "transcribe":
        yield ", ".join(manifest.languages) or "English only"
    elif manifest.task == "text2text":
        yield from filter(None, [", ".join(manifest.languages)])
        yield f"texts of up to {manifest.max_source_len:,} tokens"
    else:
        yield f"{len(manifest.labels)} labels" if manifest.task == "classify" else f"{manifest.dimensions} dimensions"
        yield f"texts of up to {manifest.max_seq_len:,} tokens"


def _encode_a_text(location: str | Path) -> str:
    """Serve encoders for a moment. Raises DeployError if one does not answer."""
    from inflight.deploy.server.server import Server

    began = time.monotonic()
    with Server(location, on_message=lambda line: None) as server:
        started = time.monotonic() - began
        began = time.monotonic()
        for task in server.engines.tasks:
            server.instance.probe.ask(task, _ENCODE_TIMEOUT)
        took = time.monotonic() - began
        models = ", ".join(server.engines.model_names.values())
    return f"{models} answered {started:.1f} s after the start, and computed a request in {took * 1e3:.0f} ms"


def _missing_on_error(name: str, look: Callable[[], str]) -> Finding:
    """Return the finding of `look`; its error says what is missing and, after a semicolon, how to fix it."""
    try:
        return Finding(name, "ok", look())
    except DeployError as error:
        return _missing(name, str(error))


def _missing(name: str, sentence: str) -> Finding:
    problem, semicolon, remedy = sentence.rpartition("; ")
    return Finding(name, "missing", problem if semicolon else sentence, remedy.rstrip(".") if semicolon else "")
