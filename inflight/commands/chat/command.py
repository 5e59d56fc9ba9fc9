"""`inflight chat`: a conversation with a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import click
from inflight_client import Client
from inflight_client.call import CallOptions
from inflight_client.model_defaults import with_model_defaults

from inflight.commands.chat.conversation import Conversation
from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.options.call import call_options, call_options_from
from inflight.commands.options.connection import connection_options, open_client
from inflight.commands.terminal.answer_format import answer_line
from inflight.commands.terminal.standard_streams import is_interactive, standard_input


@click.command(cls=SectionedCommand, short_help="Chat with a model.")
@connection_options
@section(
    "Conversation",
    click.option("--system", default="", help="System message for the model."),
    click.option("--no-history", is_flag=True, help="Do not read or write the history file."),
)
@call_options("Conversation", max_tokens=512)
@section(
    "Output",
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Read messages from standard input, one per line, and print each answer as a JSON object.",
    ),
)
def command(
    system: str, no_history: bool, as_json: bool, retry_timeout: float, chat_template: str | None, **arguments: Any
) -> None:
    """Chat with the model of a server.

    At a terminal, answers are streamed, each with its speed; /help lists the commands. Ctrl-C stops an answer and keeps
    the part received so far; Ctrl-D exits. Input history for the arrow keys is kept in
    ~/.local/state/inflight/chat_history.

    From a pipe, each line is a message, never a command, and the first failure ends the conversation.

    \b
      inflight chat
      inflight chat --system "Answer in one sentence." --temperature 0.7 --top-p 0.95
      printf 'What is tea?\\nAnd green tea?\\n' | inflight chat --json
    """  # fmt: skip
    options = call_options_from(arguments)
    conversation = Conversation(system)
    piped = standard_input() if as_json or not is_interactive() else None
    with open_client(arguments, retry_timeout, chat_template=chat_template) as client:
        options["sampling"] = with_model_defaults(options["sampling"], client.deployment().served)
        if piped:
            _answer_piped_messages(client, conversation, options, as_json, piped)
        else:
            _run_interactive(client, conversation, options, no_history)


def _run_interactive(client: Client, conversation: Conversation, options: CallOptions, no_history: bool) -> None:
    """Chat at a terminal. A missing server is reported before the first prompt."""
    # Imported here because pipes need no line editing, and not every Python has readline.
    from inflight.commands.chat.history import ChatHistory, state_file
    from inflight.commands.chat.session import ChatSession
    from inflight.commands.chat.terminal import ChatTerminal

    name = _model_name(client)
    terminal = ChatTerminal(ChatHistory(None if no_history else state_file()))
    terminal.print_message(f"Chatting with {name}. /help lists the commands, Ctrl-D exits.")
    ChatSession(client, conversation, options, terminal).run()


def _model_name(client: Client) -> str:
    deployment = client.deployment()
    return str(deployment.served.get("model") or deployment.display_name)


def _answer_piped_messages(
    client: Client, conversation: Conversation, options: CallOptions, as_json: bool, piped: BinaryIO
) -> None:
    """Answer messages from a pipe: one message per line; print each answer as it is streamed."""
    for text in _piped_messages(piped):
        with client.stream(conversation.with_question(text), **options) as stream:
            for delta in stream:
                if not as_json:
                    click.echo(delta.text, nl=False)
            answer = stream.generation
        assert answer is not None, "a stream that ended well has its whole answer"
        conversation.add_exchange(text, answer.text)
        click.echo(answer_line(answer) if as_json else "")


def _piped_messages(piped: BinaryIO) -> Iterator[str]:
    """Yield the lines of `piped` that are not blank, as they come."""
    for line in piped:
        text = line.decode("utf-8", "surrogateescape").strip("\r\n")
        if text.strip():
            yield text
