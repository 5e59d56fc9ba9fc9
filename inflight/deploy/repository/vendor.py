"""Puts the runtime into a repository, for containers that don't have the package inflight.

Triton hands each model its own folder alone (from S3: a copy of it under a name of its own), so each model that runs
Python gets the runtime beside its `model.py`, which looks there first: an installed inflight, of whatever version, is
not used. It is one zip file, from which Python imports as from a directory: of a directory Triton asks S3 several
questions a file, and the runtime has scores of them. What the runtime itself imports (numpy, tokenizers, the engine's
library) is the container's.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

ARCHIVE = "inflight.zip"

_PACKAGE = Path(__file__).resolve().parents[2]
_PATH_PRELUDE = f'''\
import sys
from pathlib import Path

# This repository brings its own runtime, which goes before an installed one.
sys.path.insert(0, str(Path(__file__).resolve().with_name("{ARCHIVE}")))

'''


def vendor_runtime(version: Path) -> None:
    """Put the runtime into a model's version directory, and have its model.py take it from there."""
    with zipfile.ZipFile(version / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in vendored_files():
            # With one date for all, so that the same runtime is always the same file.
            entry = zipfile.ZipInfo(path.relative_to(_PACKAGE.parent).as_posix(), (1980, 1, 1, 0, 0, 0))
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    model = version / "model.py"
    docstring, _, code = model.read_text(encoding="utf-8").partition("\n\n")
    model.write_text(f"{docstring}\n\n{_PATH_PRELUDE}{code}", encoding="utf-8")


def vendored_files() -> list[Path]:
    """What is brought along."""
    return [
        _PACKAGE / "__init__.py",
        *sorted((_PACKAGE / "common").glob("*.py")),
        *sorted((_PACKAGE / "runtime").rglob("*.py")),
    ]
