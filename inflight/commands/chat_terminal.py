"""Where a person types messages and reads answers."""

from __future__ import annotations

import readline

import click

from inflight.commands.chat_history import ChatHistory

_PROMPT, _FURTHER = ">>> ", "... "
_QUOTES = '"""'
# An answer moves no cursor, changes no colour and rings no bell.
_HARMLESS = {code: None for code in [*range(32), 127, *range(128, 160)] if chr(code) not in "\n\t"}


class ChatTerminal:
    """Reads messages with line editing and history; shows answers as they come, and all else on standard error."""

    def __init__(self, history: ChatHistory) -> None:
        self._history = history
        readline.set_auto_history(False)  # a message of several lines is one entry
        readline.clear_history()
        for message in history.load():
            readline.add_history(message)

    def read(self) -> str:
        '''The next message. EOFError at Ctrl-D, KeyboardInterrupt at Ctrl-C.

        A backslash at its end continues a line; """ begins a message of several lines, and ends it.
        '''
        line = input(_PROMPT)
        message = self._until_quotes(line.removeprefix(_QUOTES)) if line.startswith(_QUOTES) else self._unbroken(line)
        if message.strip():
            readline.add_history(message)
            self._history.add(message)
        return message

    def show(self, text: str) -> None:
        """A piece of an answer."""
        click.echo(text.translate(_HARMLESS), nl=False)

    def end(self) -> None:
        """The answer's end."""
        click.echo()

    def say(self, line: str) -> None:
        """What is no answer."""
        click.secho(line, err=True, dim=True)

    @staticmethod
    def _until_quotes(line: str) -> str:
        lines = [line]
        while not lines[-1].rstrip().endswith(_QUOTES):
            lines.append(input(_FURTHER))
        lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
        return "\n".join(lines).strip("\n")

    @staticmethod
    def _unbroken(line: str) -> str:
        while line.endswith("\\"):
            line = f"{line[:-1]}\n{input(_FURTHER)}"
        return line
