"""The command line that runs a module in a child process without searching the current directory."""

from __future__ import annotations

import sys


def python_module(module: str, *arguments: str) -> list[str]:
    """Return `python -P -m MODULE ARGUMENT...`; before Python 3.11, which has no `-P`, an equivalent.

    `-m` alone puts the current directory first in `sys.path`, so that a file `numpy.py` there would replace the
    library.
    """
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module, *arguments]
    run = f"import sys; del sys.path[0]; import runpy; runpy.run_module({module!r}, None, '__main__', True)"
    return [sys.executable, "-c", run, *arguments]
