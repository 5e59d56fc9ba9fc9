"""Errors of the load tests that a user can act on."""

from __future__ import annotations


class LoadError(Exception):
    """A sentence that names the input, what is wrong and what to do; `code` is in docs/errors.md."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
