"""Standard input and output of a command, which may be a terminal, a pipe, a full disk or closed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

import click

# Control characters, so that an answer cannot move the cursor, change colours or ring the bell.
_CONTROL_CHARACTERS = {code: None for code in [*range(32), 127, *range(128, 160)] if chr(code) not in "\n\t"}


def print_message(line: str) -> None:
    """Print what happened, and when, to standard error."""
    click.echo(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", err=True)


def standard_input() -> BinaryIO:
    """Return standard input as a binary file. Raises click.UsageError if it is closed."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed; connect it to a file or a pipe.")
    return sys.stdin.buffer


def stdout_is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def is_interactive() -> bool:
    """Return whether standard input and output are both terminals."""
    return sys.stdin is not None and sys.stdin.isatty() and stdout_is_terminal()


def printable(text: str) -> str:
    """Return the text without control characters, except line breaks and tabs."""
    return text.translate(_CONTROL_CHARACTERS)


def is_output_error(error: OSError) -> bool:
    """Return whether the error came from standard output or standard error. (click handles a closed reader itself.)"""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code is click.echo.__code__


def drop_output() -> None:
    """Discard what standard output still buffers and all later output; Python flushes it again at exit."""
    _redirect_to_null(sys.stdout)


@contextmanager
def ignore_closed_output() -> Iterator[None]:
    """Continue when standard output or standard error is closed or its disk is full."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (None if stream is None else cast("Any", _DiscardOnError(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _DiscardOnError:
    """A text stream that discards what can no longer be written."""

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
    with suppress(OSError):  # not every stream has a file descriptor
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
