"""Whether a model repository was written for this version of the runtime."""

from __future__ import annotations

from inflight import __version__, compatible


def check_version(written: str, model: str) -> None:
    """Refuse a model of a repository that another version wrote; `written` is empty where nobody said.

    Raises RuntimeError, at load, before anything of the model is read.
    """
    if written and not compatible(written, __version__):
        raise RuntimeError(
            f"the model {model} was written by inflight {written} and the package inflight that runs it here is"
            f" {__version__}; install inflight {written} here, or assemble the repository again with {__version__}, or"
            " with --vendor, which brings its own"
        )
