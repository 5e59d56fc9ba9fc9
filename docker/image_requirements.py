#!/usr/bin/env python3
"""What an image asks pip for, in pip's own format.

`--extras serve` prints the requirements of pyproject.toml, without those that the image has in another way:

    image_requirements.py --extras serve --without nvidia-pytriton > wanted.txt

`--lock requirements.lock` prints constraints: the lock's versions of all packages that this Python has not. Those that
it has are left out, so that pip keeps them if they will do:

    image_requirements.py --lock requirements.lock > constraints.txt

Needs Python 3.11 and nothing else.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
from collections.abc import Iterable
from pathlib import Path

import tomllib

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def canonical(requirement: str) -> str:
    """The name that a requirement begins with, as PEP 503 compares names."""
    found = _NAME.match(requirement.strip())
    if found is None:
        raise SystemExit(f"Error: {requirement!r} is no requirement.")
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def image_requirements(project: Path, extras: Iterable[str], without: Iterable[str]) -> list[str]:
    """The requirements of the base and of `extras`, sorted, less those named in `without`."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    optional = table["optional-dependencies"]
    found = list(table["dependencies"])
    for extra in extras:
        if extra not in optional:
            raise SystemExit(f"Error: there is no extra {extra!r}; there are {', '.join(optional)}.")
        found += optional[extra]
    left_out = {canonical(name) for name in without}
    if unknown := left_out - {canonical(requirement) for requirement in found}:
        raise SystemExit(f"Error: {', '.join(sorted(unknown))} is not required, so it can't be left out.")
    return sorted({requirement for requirement in found if canonical(requirement) not in left_out})


def constraints(lock: Path) -> list[str]:
    """The lines of the lock whose packages are not installed."""
    names = (found.name for found in importlib.metadata.distributions())
    installed = {canonical(name) for name in names if name}  # a broken one has no name
    lines = [line.strip() for line in lock.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line and not line.startswith("#") and canonical(line) not in installed]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--project", type=Path, default=Path("pyproject.toml"))
    parser.add_argument("--extras", help="extras of the project, with commas between them")
    parser.add_argument("--without", action="append", default=[], help="a package that is not to be installed")
    parser.add_argument("--lock", type=Path, help="print constraints from this file instead")
    given = parser.parse_args()
    if given.lock is not None:
        lines = constraints(given.lock)
    else:
        lines = image_requirements(given.project, filter(None, (given.extras or "").split(",")), given.without)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
