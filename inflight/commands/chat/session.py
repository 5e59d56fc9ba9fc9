"""The loop of an interactive conversation: read messages and commands, show answers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from click import HelpFormatter
from inflight_client import Client, InflightError, Sampling
from inflight_client.call import Call, CallOptions
from inflight_client.sampling import PARAMETERS

from inflight.commands.chat.conversation import Conversation
from inflight.commands.chat.terminal import EXIT_WORDS, ChatTerminal
from inflight.commands.terminal.answer_format import summary_line

_NUMBERS = tuple(name for name in PARAMETERS if name not in ("end_id", "adapter"))
_HELP = (
    ("/reset", "clear the conversation, except the system message"),
    ("/undo", "remove your last message and its answer"),
    ("/retry", "answer your last message again"),
    ("/drop", "remove your oldest message and its answer"),
    ("/system [TEXT]", 'show or set the system message; "/system none" removes it'),
    ("/set [NAME VALUE]", "show or set temperature, top_p, top_k, max_tokens, ...; none for the model's default"),
    ("/save FILE", "save the conversation as JSON"),
    ("/load FILE", "continue a saved conversation"),
    ("/exit, exit", "exit, as Ctrl-D does; also /quit, quit and /bye"),
    ('"""', "begins and ends a message of several lines, which is never a command"),
    ("\\", "at the end of a line continues it on the next one"),
    ("Ctrl-C", "stops an answer; twice in a row exits"),
)


class ChatSession:
    """An interactive chat that sends the whole conversation each time and keeps each answer."""

    def __init__(
        self, client: Client, conversation: Conversation, options: CallOptions, terminal: ChatTerminal
    ) -> None:
        self._client = client
        self._conversation = conversation
        self._options = options
        self._terminal = terminal

    def run(self) -> None:
        """Read and answer until the user exits."""
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
                self._terminal.print_message("Press Ctrl-C again to exit, or Ctrl-D.")
                continue
            interrupted = False
            if is_command:
                if not self._command(*text.strip().partition(" ")[::2]):
                    return None
            elif text.strip():
                interrupted = self._answer(text)

    def _answer(self, text: str) -> bool:
        """Show the model's answer; return whether the user interrupted it."""
        try:
            with self._client.stream(self._conversation.with_question(text), **self._options) as stream:
                try:
                    for delta in stream:
                        self._terminal.show(delta.text)
                except KeyboardInterrupt:
                    stream.close()  # cancels the request on the server
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
            kept = "the part received is kept" if stream.text else "nothing was received, so the message is not kept"
            self._terminal.print_message(f"[stopped; {kept}]")
        return answer is None

    def _report_failure(self, error: InflightError) -> str:
        """Return the error and the resulting state of the conversation."""
        sentence = f"Error: {error} [{error.code}]"
        if error.code == "prompt_too_long" and self._conversation.exchanges:
            return f"{sentence}\nThe conversation is too long: shorten it with /drop, /undo or /reset."
        return f"{sentence}\nThe conversation is as it was before this message."

    def _command(self, name: str, argument: str) -> bool:
        """Run a command; return False to exit."""
        argument = argument.strip()
        if name in ("/exit", "/quit", "/bye", *EXIT_WORDS):
            return False
        if name == "/system":
            self._system(argument)
        elif name == "/set":
            self._set(*argument.partition(" ")[::2])
        elif name == "/retry":
            self._retry()
        elif name in ("/save", "/load"):
            self._file(name, argument)
        elif name in ("/reset", "/undo", "/drop"):
            self._reset(name)
        elif name in ("/help", "/?"):
            self._terminal.print_message(_help())
        else:
            self._terminal.print_message(
                f"Unknown command {name}; /help lists the commands. To send it as a message, put a space before it."
            )
        return True

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = "" if text == "none" else text
        self._terminal.print_message(f"System message: {self._conversation.system or 'none'}")

    def _retry(self) -> None:
        """Answer the last message again; its old answer stays if there is no new one."""
        before = list(self._conversation.messages)
        text = self._conversation.undo()
        if text is None:
            self._terminal.print_message("The conversation has no messages.")
            return
        self._answer(text)
        if len(self._conversation.messages) < len(before):
            self._conversation.messages = before

    def _set(self, name: str, value: str) -> None:
        """Show the options of answers, or set one."""
        options, sampling = self._options, self._options.get("sampling", Sampling())
        try:
            if name:
                if name not in ("max_tokens", *_NUMBERS):
                    raise InflightError(
                        f"there is no option {name!r}; set one of max_tokens, {', '.join(_NUMBERS)}",
                        "invalid_parameter",
                    )
                number: Any = None if value.strip() == "none" else _number(value.strip())
                if name == "max_tokens":
                    options = {**options, "max_tokens": number}
                else:
                    options = {**options, "sampling": replace(sampling, **{name: number})}
                Call("", True, **options)  # raises for what no server takes
                self._options = options
        except InflightError as error:
            self._terminal.print_message(f"Error: {error} [{error.code}]")
            return
        sampling = options.get("sampling", sampling)
        shown = {"max_tokens": options.get("max_tokens"), **{each: getattr(sampling, each) for each in _NUMBERS}}
        self._terminal.print_message(", ".join(f"{key} {shown[key]}" for key in shown if shown[key] is not None))

    def _reset(self, name: str) -> None:
        if name == "/reset":
            self._conversation.reset()
        elif not (self._conversation.undo() is not None if name == "/undo" else self._conversation.drop()):
            self._terminal.print_message("The conversation has no messages.")
            return
        self._terminal.print_message(self._status())

    def _file(self, name: str, path: str) -> None:
        if not path:
            self._terminal.print_message(f"{name} needs a file name.")
            return
        try:
            file = Path(path).expanduser().absolute()
            if name == "/save":
                self._conversation.save(file)
            else:
                self._conversation.load(file)
        except InflightError as error:
            self._terminal.print_message(f"Error: {error} [{error.code}]")
        except (OSError, ValueError, RuntimeError) as error:  # NUL in the path; home of an unknown user
            self._terminal.print_message(f"Error: {path}: {getattr(error, 'strerror', None) or error}")
        else:
            done = f"Saved to {file}." if name == "/save" else f"Loaded {file}."
            self._terminal.print_message(f"{done} {self._status()}")

    def _status(self) -> str:
        count = self._conversation.exchanges
        return f"The conversation has {count} message{'s' * (count != 1)} from you."


def _number(text: str) -> float | str:
    """Return the number of a text, or the text, which is refused where it is used."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _help() -> str:
    """Return the list of commands, wrapped to the terminal's width."""
    formatter = HelpFormatter(width=shutil.get_terminal_size().columns)
    formatter.write_dl(_HELP)
    return formatter.getvalue().rstrip("\n")
