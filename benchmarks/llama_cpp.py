"""llama.cpp's server, built from the sources in PyPI's llama-cpp-python, in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.environments import shared_environment
from benchmarks.fixtures import BENCH_DIRECTORY

VERSION = "0.3.36"
_DIRECTORY = BENCH_DIRECTORY / "llama.cpp"
SERVER = _DIRECTORY / "build" / "bin" / "llama-server"
_OPTIONS = ("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_CURL=OFF")
_CONVERTER = Path(__file__).with_name("llama_cpp_gguf.py")


def installed() -> bool:
    return SERVER.exists()


def install() -> None:
    """Build the server, in about 10 minutes on two cores. Raises CalledProcessError."""
    cmake = str(_python().with_name("cmake"))
    package = f"llama-cpp-python=={VERSION}"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--no-deps",
        "--no-binary",
        "llama-cpp-python",
    ]
    subprocess.run([*pip, "--dest", str(_DIRECTORY), package], check=True, stdout=sys.stderr)
    (archive,) = _DIRECTORY.glob("*.tar.gz")
    shutil.unpack_archive(archive, _DIRECTORY)
    source, build = archive.with_suffix("").with_suffix("") / "vendor" / "llama.cpp", _DIRECTORY / "build"
    jobs = str(len(os.sched_getaffinity(0)))
    for arguments in (
        ["-S", str(source), "-B", str(build), "-G", "Unix Makefiles", *_OPTIONS],
        ["--build", str(build), "--target", "llama-server", "--parallel", jobs],
    ):
        subprocess.run([cmake, *arguments], check=True, stdout=sys.stderr)


def command(checkpoint: Path, port: int, places: int) -> list[str]:
    """Return the command that serves a checkpoint of the Qwen2 family with weights of 8 bits."""
    model = _DIRECTORY / f"{checkpoint.name}.gguf"
    if not model.exists():
        subprocess.run([str(_python()), str(_CONVERTER), str(checkpoint), str(model)], check=True, stdout=sys.stderr)
    options = ["--host", "127.0.0.1", "--port", str(port), "--parallel", str(places), "--ctx-size", str(512 * places)]
    return [str(SERVER), "--model", str(model), "--alias", "bench", *options]


def _python() -> Path:
    return shared_environment("llama-venv", ["cmake", "--no-deps", "gguf==0.19.0"])
