"""Environments of other programs under .cache/bench, which take the packages that they can from this one."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fixtures import BENCH_DIRECTORY


def shared_environment(
    name: str, packages: Sequence[str], *, beside: Sequence[Path] = (), without: Sequence[str] = ()
) -> Path:
    """Return the Python of an environment, made the first time, with `packages` as pip's arguments.

    Packages of this environment, and before them those of the Pythons `beside`, need no download. `without` are
    uninstalled again. It is made again if those packages have moved. Raises CalledProcessError.
    """
    directory = BENCH_DIRECTORY / name
    python, complete = directory / "bin" / "python", directory / ".installed"
    others = [str(_packages(each.parents[1].absolute())) for each in beside]
    inherits, paths = _packages(directory) / "environment.pth", "\n".join([*others, sysconfig.get_path("purelib"), ""])
    if not complete.exists() or inherits.read_text() != paths:
        venv.create(directory, with_pip=True, clear=True)
        inherits.write_text(paths)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", *packages], check=True, stdout=sys.stderr)
        if without:
            subprocess.run([*pip, "uninstall", "--yes", *without], check=True, stdout=sys.stderr)
        complete.touch()
    return python


def _packages(directory: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)}))
