"""NVIDIA's perf_analyzer, an independent client of Triton's protocol, to compare its measurements with ours.

It is a C++ program that shares no code with ours. Current releases of tritonclient do not contain it; the wheel of
2.48.0 on PyPI does, and the libraries that it lacks on a plain machine are in the wheel of Triton itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inflight.deploy.server import triton

PERF_ANALYZER_DIRECTORY = Path(".cache/perf_analyzer")
VERSION = "2.48.0"
_SHA256 = "7074885798e8a711fedaf94d6dd77f310973fe2ebf29fb2837db350a43e2d6a5"
_LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


class PerfAnalyzerMissingError(Exception):
    """The program is not available here, and why."""


@dataclass(frozen=True)
class MeasuredRequest:
    """One request as perf_analyzer saw it, in seconds of wall-clock time."""

    sent: float
    responses: tuple[float, ...]


def install(place: Path = PERF_ANALYZER_DIRECTORY) -> Path:
    """Return the program, downloaded from PyPI (14 MB) if necessary. Raises PerfAnalyzerMissingError."""
    program = place / VERSION / "perf_analyzer"
    if program.is_file():
        return program
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        wheel = _download(Path(folder))
        made = Path(folder) / VERSION
        made.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/bin/perf_analyzer"))
            (made / program.name).write_bytes(archive.read(name))
        (made / program.name).chmod(0o755)
        for library, pattern in _LIBRARIES.items():
            (made / library).symlink_to(_library(pattern))
        shutil.rmtree(program.parent, ignore_errors=True)
        made.rename(program.parent)
    return program


def run(program: Path, address: str, inputs: Mapping[str, object], load: list[str]) -> list[MeasuredRequest]:
    """Stream answers of the model `ensemble` over gRPC; return every request, in order of sending.

    `inputs` are the request's tensors of one value each, `load` the options for the number of requests and their times.
    Raises RuntimeError with its output if it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        data, export = Path(folder) / "inputs.json", Path(folder) / "export.json"
        data.write_text(json.dumps({"data": [{name: [value] for name, value in inputs.items()}]}))
        command = [
            *(str(program), "-m", "ensemble", "-u", address, "-i", "grpc", "--streaming", "--async"),
            *("--input-data", str(data), "--profile-export-file", str(export), "--stability-percentage", "999"),
            *(word for name in inputs for word in ("--shape", f"{name}:1")),
            *load,
        ]
        paths = [str(program.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode != 0 or not export.is_file():
            raise RuntimeError(f"perf_analyzer ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        records = json.loads(export.read_text())["experiments"][0]["requests"]
    tensors = [
        MeasuredRequest(entry["timestamp"] / 1e9, tuple(at / 1e9 for at in entry["response_timestamps"]))
        for entry in records
    ]
    return sorted(tensors, key=lambda entry: entry.sent)


def _download(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    arguments = ["--only-binary", ":all:", "--platform", "manylinux1_x86_64", f"tritonclient=={VERSION}"]
    done = subprocess.run([*pip, *arguments, "--dest", str(folder)], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise PerfAnalyzerMissingError(f"perf_analyzer can't be downloaded: {done.stderr.strip()[-300:]}")
    if hashlib.sha256(wheels[0].read_bytes()).hexdigest() != _SHA256:
        raise PerfAnalyzerMissingError(
            f"{wheels[0].name} has an unexpected hash; perf_analyzer is not installed from it"
        )
    return wheels[0]


def _library(pattern: str) -> Path:
    root = triton.find_triton().root
    for library in sorted((root.parent.parent / "nvidia_pytriton.libs").glob(pattern)):
        return library
    raise PerfAnalyzerMissingError(f"{root} has no {pattern}, which perf_analyzer needs; install nvidia-pytriton")
