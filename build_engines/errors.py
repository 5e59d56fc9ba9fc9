"""What goes wrong before serving."""

from __future__ import annotations


class BuildError(Exception):
    """One sentence that names the input, says what is wrong and what to do, with a stable `code`."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
