"""Errors before serving."""

from __future__ import annotations


class BuildError(Exception):
    """An error with a stable `code`: one sentence that names the input, the problem and the remedy."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(sentence: str) -> BuildError:
    """Return the error for an option that the user gave."""
    return BuildError(sentence, "invalid_parameter")


def unsupported(sentence: str) -> BuildError:
    """Return the error for a model that can't be built."""
    return BuildError(sentence, "unsupported_architecture")


def damaged(sentence: str) -> BuildError:
    """Return the error for a checkpoint with files that are wrong."""
    return BuildError(sentence, "checkpoint_damaged")
