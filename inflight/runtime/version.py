"""Whether a model repository was written for this version of the runtime."""

from __future__ import annotations

from inflight import __version__


def compatible(one: str, other: str) -> bool:
    """Whether what one version wrote the other one can run: the first two numbers decide (0.1.0 and 0.1.3 can)."""
    return one.split(".")[:2] == other.split(".")[:2]


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
