"""What `embed`, `rerank`, `classify` and `translate` share: options, texts, and results in the order of the texts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click
from inflight_client.encodings import Encodings

from inflight.commands.option_sections import Decorated, section
from inflight.commands.options.call import RETRY_TIMEOUT
from inflight.commands.options.connection import connection_options
from inflight.commands.options.numbers import Seconds
from inflight.commands.terminal.standard_streams import printable, standard_input, stdout_is_terminal

BLOCK_TEXTS = 1024
"""Texts that are sent before their results are printed: four requests of the most texts."""

Result = TypeVar("Result", bound=Encodings)


def encoder_options(texts: str) -> Callable[[Decorated], Decorated]:
    """Add the options of all these commands; `texts` is what the input has a line for."""
    return section(
        texts.capitalize(),
        click.option(
            "--input",
            type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
            metavar="FILE",
            help=f"Read the {texts} from a file, one per line; - reads standard input.",
        ),
        click.option("--truncate", is_flag=True, help=f"Cut {texts} over the model's length instead of refusing them."),
        connection_options,
        click.option("--timeout", type=Seconds(exclusive=True), help="Timeout for each 1,024 texts, in seconds."),
        click.option("--priority", type=int, default=0, show_default=True, help="Higher goes first in the queue."),
        RETRY_TIMEOUT,
        starts={"timeout": "Time limits"},
    )


def request_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that all these calls of the client have, and remove them from `options`."""
    return {name: options.pop(name) for name in ("truncate", "priority", "timeout")}


def read_texts(arguments: Sequence[str], input_file: Path | None, name: str) -> Iterator[str]:
    """Return the texts: the arguments, or the lines of a file or of standard input (an argument -).

    `name` is the argument's. Raises click.UsageError unless exactly one of the two is given.
    """
    if arguments and input_file is not None:
        raise click.UsageError(f"Give either {name} or --input, not both.")
    if not arguments and input_file is None:
        raise click.UsageError(f"Missing argument '{name}...'.")
    if input_file is None and tuple(arguments) != ("-",):
        return iter(arguments)
    if input_file is None or str(input_file) == "-":
        return _lines(standard_input())
    return _file_lines(input_file)


def _file_lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            yield from _lines(file)
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}.", param_hint="'--input'") from error


def _lines(file: BinaryIO) -> Iterator[str]:
    # Bytes that are not UTF-8 are passed to the client, which reports them, even in a strict locale.
    for line in file:
        yield line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")


@dataclass
class Summary:
    """Counts of a command's texts, and the line about them on standard error."""

    texts: int = 0
    tokens: int = 0
    truncated: int = 0
    started: float = field(default_factory=time.monotonic)

    def add(self, result: Encodings) -> None:
        self.texts += len(result.input_tokens)
        self.tokens += result.total_tokens
        self.truncated += sum(result.truncated)

    def line(self, what: str, more: str = "") -> str:
        cut = f", {self.truncated} truncated" if self.truncated else ""
        return f"[{self.texts} {what}, {self.tokens} tokens{more}{cut} in {time.monotonic() - self.started:.2f} s]"


def in_blocks(
    texts: Iterator[str], call: Callable[[Sequence[str]], Result], summary: Summary, blank_lines: bool = False
) -> Iterator[tuple[int, str, Result, int]]:
    """Yield each text's index, the text, the result of its block, and its index there.

    `call` returns errors of texts beside results. The first error is raised once the results before it were yielded;
    with `blank_lines`, that of a text without characters is none.
    """
    size = 1 if texts_come_from_a_terminal() else BLOCK_TEXTS
    start = 0
    while block := list(islice(texts, size)):
        result = call(block)
        summary.add(result)
        for index, text in enumerate(block):
            if (error := result.errors.get(index)) and (text.strip() or not blank_lines):
                raise error.at(f"text {start + index + 1}")
            yield start + index, text, result, index
        start += len(block)


def texts_come_from_a_terminal() -> bool:
    """Return whether someone may be typing the texts, who waits for the result of each."""
    return sys.stdin is not None and sys.stdin.isatty()


def shown(text: str) -> str:
    """Return a text as a part of a line: without line breaks and tabs, for a terminal without control characters."""
    line = text.replace("\t", " ").replace("\r", " ").replace("\n", " ")
    return printable(line) if stdout_is_terminal() else line


def counts(result: Encodings, index: int) -> dict[str, Any]:
    """Return what a JSON object has of a text besides its result."""
    return {"input_tokens": result.input_tokens[index], "truncated": result.truncated[index]}


def json_line(values: Any) -> str:
    return json.dumps(values, ensure_ascii=False)
