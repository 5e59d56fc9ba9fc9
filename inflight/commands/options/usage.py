"""Errors of what the user gave, as click reports wrong usage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from build_engines.errors import BuildError
from loadtests.errors import LoadError


@contextmanager
def usage_errors(option: str = "") -> Iterator[None]:
    """Report a BuildError or LoadError of the block as wrong usage, of `option` if it is named."""
    try:
        yield
    except (BuildError, LoadError) as error:
        raise click.UsageError(f"{option}: {error}" if option else str(error)) from error
