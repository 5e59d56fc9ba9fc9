"""What a user of the load tests did wrong, or what kept a run from being made."""

from __future__ import annotations


class LoadError(Exception):
    """One sentence that names the input, what is wrong with it and what to do; `code` is of the one table."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
