"""Standard input and output, as a shell may give them: a terminal, a pipe, a full disk, or nothing at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

import click

# An answer moves no cursor, changes no colour and rings no bell.
_CONTROL_CHARACTERS = {code: None for code in [*range(32), 127, *range(128, 160)] if chr(code) not in "\n\t"}


def standard_input() -> BinaryIO:
    """Its bytes. Raises click.UsageError where it is closed."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed.")
    return sys.stdin.buffer


def stdout_is_terminal() -> bool:
    """Whether a person sees what is printed."""
    return sys.stdout is not None and sys.stdout.isatty()


def is_interactive() -> bool:
    """Whether a person types, and sees what is printed."""
    return sys.stdin is not None and sys.stdin.isatty() and stdout_is_terminal()


def printable(text: str) -> str:
    """The text for a terminal: line breaks and tabs are all that it controls."""
    return text.translate(_CONTROL_CHARACTERS)


def is_output_error(error: OSError) -> bool:
    """Whether it came of what was printed, and not of another file. (click itself ends well where a reader leaves.)"""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code is click.echo.__code__


def drop_output() -> None:
    """Let what standard output still holds, and what yet comes, go nowhere: Python writes it once more at its end."""
    _redirect_to_null(sys.stdout)


@contextmanager
def ignore_closed_output() -> Iterator[None]:
    """Standard output and standard error may lose their reader, or their room, and whoever writes there goes on."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (None if one is None else cast("Any", _DiscardOnError(one)) for one in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _DiscardOnError:
    """A stream of text that takes whatever is written, also once it can't be."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except OSError:
            _redirect_to_null(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            _redirect_to_null(self._stream)


def _redirect_to_null(stream: Any) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):  # not every stream has a file
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
