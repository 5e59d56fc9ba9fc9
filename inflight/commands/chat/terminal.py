"""Reads messages from a terminal and shows answers on it."""

from __future__ import annotations

import readline
from typing import NamedTuple

import click

from inflight.commands.chat.history import ChatHistory
from inflight.commands.terminal.standard_streams import printable

_PROMPT, _CONTINUATION_PROMPT = ">>> ", "... "
_QUOTES = '"""'

EXIT_WORDS = ("exit", "quit")
"""Words that exit without a slash if they are alone on a line."""


class UserInput(NamedTuple):
    """What was typed: a message or a command.

    A command is a line that begins with a slash, or one of WORDS, and was neither quoted, continued nor pasted.
    """

    text: str
    is_command: bool


class ChatTerminal:
    """A terminal with line editing and history; answers go to standard output, all else to standard error."""

    def __init__(self, history: ChatHistory) -> None:
        self._history = history
        readline.set_auto_history(False)  # a message of several lines is one history entry
        readline.clear_history()
        for message in history.load():
            readline.add_history(message)

    def read(self) -> UserInput:
        """Return the next message or command. Raises EOFError at Ctrl-D, KeyboardInterrupt at Ctrl-C.

        A backslash at its end continues a line; \"\"\" begins and ends a message of several lines.
        """
        line = input(_PROMPT)
        quoted = line.startswith(_QUOTES)
        text = self._until_quotes(line.removeprefix(_QUOTES)) if quoted else self._read_continued(line)
        like_command = (text.startswith("/") or text.rstrip() in EXIT_WORDS) and "\n" not in text
        if text.strip():
            # Quote it, so that it is still a message when it is recalled from the history.
            kept = f"{_QUOTES}{text}{_QUOTES}" if quoted and like_command else text
            readline.add_history(kept)
            self._history.add(kept)
        return UserInput(text, like_command and not quoted)

    def show(self, text: str) -> None:
        """Show a part of an answer."""
        click.echo(printable(text), nl=False)

    def end(self) -> None:
        """End the answer's last line."""
        click.echo()

    def print_message(self, line: str) -> None:
        """Print a line that is not part of an answer."""
        click.secho(line, err=True, dim=True)

    @staticmethod
    def _until_quotes(line: str) -> str:
        lines = [line]
        while not lines[-1].rstrip().endswith(_QUOTES):
            lines.append(input(_CONTINUATION_PROMPT))
        lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
        return "\n".join(lines).strip("\n")

    @staticmethod
    def _read_continued(line: str) -> str:
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{input(_CONTINUATION_PROMPT)}"
        return line
