"""Standard input and output, as a shell may give them: a terminal, a pipe, a full disk, or nothing at all."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

import click

# An answer moves no cursor, changes no colour and rings no bell.
_HARMLESS = {code: None for code in [*range(32), 127, *range(128, 160)] if chr(code) not in "\n\t"}


def standard_input() -> BinaryIO:
    """Its bytes. Raises click.UsageError where it is closed."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed.")
    return sys.stdin.buffer


def shows_terminal() -> bool:
    """Whether a person sees what is printed."""
    return sys.stdout is not None and sys.stdout.isatty()


def has_person() -> bool:
    """Whether a person types, and sees what is printed."""
    return sys.stdin is not None and sys.stdin.isatty() and shows_terminal()


def shown(text: str) -> str:
    """The text for a terminal: line breaks and tabs are all that it controls."""
    return text.translate(_HARMLESS)


def is_of_output(error: OSError) -> bool:
    """Whether it came of what was printed, and not of another file. (click itself ends well where a reader leaves.)"""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code is click.echo.__code__


def drop_output() -> None:
    """Let what standard output still holds, and what yet comes, go nowhere: Python writes it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
