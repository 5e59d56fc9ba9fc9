"""Errors before serving."""

from __future__ import annotations


class BuildError(Exception):
    """An error with a stable `code`: one sentence that names the input, the problem and the remedy."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
