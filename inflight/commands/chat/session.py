"""A conversation at a terminal: messages and commands in, answers out, until the user leaves."""

from __future__ import annotations

import shutil
from pathlib import Path

from click import HelpFormatter
from inflight_client import Client, InflightError
from inflight_client.call import CallOptions

from inflight.commands.chat.conversation import Conversation
from inflight.commands.chat.terminal import EXIT_WORDS, ChatTerminal
from inflight.commands.terminal.answer_format import summary_line

_HELP = (
    ("/reset", "forget the conversation, but for the system's message"),
    ("/undo", "forget your last message and its answer"),
    ("/drop", "forget the oldest message and its answer"),
    ("/system [TEXT]", 'show or set what the model is told before all else; "/system none" for nothing'),
    ("/save FILE", "write the conversation as JSON"),
    ("/load FILE", "go on with one that was written"),
    ("/exit, exit", "leave, as Ctrl-D does; also /quit, quit and /bye"),
    ('"""', "begins a message of several lines, and ends it; what is quoted so is never a command"),
    ("\\", "at the end of a line continues it on the next one"),
    ("Ctrl-C", "ends an answer; twice in a row leaves"),
)


class ChatSession:
    """Asks the model with the whole conversation each time, and keeps what it answered."""

    def __init__(
        self, client: Client, conversation: Conversation, options: CallOptions, terminal: ChatTerminal
    ) -> None:
        self._client = client
        self._conversation = conversation
        self._options = options
        self._terminal = terminal

    def run(self) -> None:
        """Until the user leaves."""
        interrupted = False
        while True:
            try:
                text, is_command = self._terminal.read()
            except EOFError:
                return self._terminal.end()
            except KeyboardInterrupt:
                self._terminal.end()
                if interrupted:
                    return None
                interrupted = True
                self._terminal.print_message("Once more leaves, as Ctrl-D does.")
                continue
            interrupted = False
            if is_command:
                if not self._command(*text.strip().partition(" ")[::2]):
                    return None
            elif text.strip():
                interrupted = self._answer(text)

    def _answer(self, text: str) -> bool:
        """Show the model's answer; whether the user interrupted it."""
        try:
            with self._client.stream(self._conversation.with_question(text), **self._options) as stream:
                try:
                    for delta in stream:
                        self._terminal.show(delta.text)
                except KeyboardInterrupt:
                    stream.close()  # cancels on the server
        except InflightError as error:
            self._terminal.end()
            self._terminal.print_message(self._report_failure(error))
            return False
        self._terminal.end()
        answer = stream.generation
        if answer is not None or stream.text:
            self._conversation.add_exchange(text, stream.text)
        if answer is not None:
            self._terminal.print_message(summary_line(answer))
        else:
            kept = "what came of the answer is kept" if stream.text else "nothing came yet, so the message is not kept"
            self._terminal.print_message(f"[stopped; {kept}]")
        return answer is None

    def _report_failure(self, error: InflightError) -> str:
        """The error, and where the conversation stands now."""
        sentence = f"Error: {error} [{error.code}]"
        if error.code == "prompt_too_long" and self._conversation.exchanges:
            return f"{sentence}\nIt is too long by now: make room with /drop, /undo or /reset, or send less."
        return f"{sentence}\nThe conversation stands as it was before this message."

    def _command(self, name: str, argument: str) -> bool:
        """Obey a command; False for leaving."""
        argument = argument.strip()
        if name in ("/exit", "/quit", "/bye", *EXIT_WORDS):
            return False
        if name == "/system":
            self._system(argument)
        elif name in ("/save", "/load"):
            self._file(name, argument)
        elif name in ("/reset", "/undo", "/drop"):
            self._reset(name)
        elif name in ("/help", "/?"):
            self._terminal.print_message(_help())
        else:
            self._terminal.print_message(
                f"There is no command {name}; /help lists them. A space before it makes it a message."
            )
        return True

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = "" if text == "none" else text
        self._terminal.print_message(f"The system's message: {self._conversation.system or 'none'}")

    def _reset(self, name: str) -> None:
        if name == "/reset":
            self._conversation.reset()
        elif not (self._conversation.undo() if name == "/undo" else self._conversation.drop()):
            self._terminal.print_message("There is nothing to forget.")
            return
        self._terminal.print_message(self._status())

    def _file(self, name: str, path: str) -> None:
        if not path:
            self._terminal.print_message(f"{name} needs the name of a file.")
            return
        try:
            file = Path(path).expanduser().absolute()
            if name == "/save":
                self._conversation.save(file)
            else:
                self._conversation.load(file)
        except InflightError as error:
            self._terminal.print_message(f"Error: {error} [{error.code}]")
        except (OSError, ValueError, RuntimeError) as error:  # the last two for a NUL, and for the home of nobody
            self._terminal.print_message(f"Error: {path}: {getattr(error, 'strerror', None) or error}")
        else:
            done = f"Saved to {file}." if name == "/save" else f"Loaded {file}."
            self._terminal.print_message(f"{done} {self._status()}")

    def _status(self) -> str:
        count = self._conversation.exchanges
        return f"The conversation has {count} message{'s' * (count != 1)} of yours."


def _help() -> str:
    """The commands, wrapped to the terminal's width."""
    formatter = HelpFormatter(width=shutil.get_terminal_size().columns)
    formatter.write_dl(_HELP)
    return formatter.getvalue().rstrip("\n")
