"""Adds the runtime to a repository, for containers without the package inflight.

Triton gives each model only its own folder (from S3: a copy of it in a random directory), so each Python model gets the
runtime beside its `model.py`, which imports from there first: an installed inflight of any version is not used. The
runtime is one zip file: for each file of a directory, Triton sends several requests to S3. The container provides what
the runtime imports (numpy, tokenizers, the engine's library).
"""

from __future__ import annotations

import zipfile
from pathlib import Path

ARCHIVE = "inflight.zip"

_PACKAGE = Path(__file__).resolve().parents[2]
_PATH_PRELUDE = f'''\
import sys
from pathlib import Path

# This repository contains its runtime, which takes precedence over an installed one.
sys.path.insert(0, str(Path(__file__).resolve().with_name("{ARCHIVE}")))

'''


def vendor_runtime(version: Path) -> None:
    """Add the runtime to a model's version directory, and make its model.py import it from there."""
    with zipfile.ZipFile(version / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in vendored_files():
            # A constant date makes the same runtime the same file.
            entry = zipfile.ZipInfo(path.relative_to(_PACKAGE.parent).as_posix(), (1980, 1, 1, 0, 0, 0))
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    model = version / "model.py"
    docstring, _, code = model.read_text(encoding="utf-8").partition("\n\n")
    model.write_text(f"{docstring}\n\n{_PATH_PRELUDE}{code}", encoding="utf-8")


def vendored_files() -> list[Path]:
    """Return the files of the runtime."""
    return [
        _PACKAGE / "__init__.py",
        *sorted((_PACKAGE / "common").glob("*.py")),
        *sorted((_PACKAGE / "text").glob("*.py")),
        *sorted((_PACKAGE / "runtime").rglob("*.py")),
    ]
