"""`inflight generate`: send one prompt and print the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from inflight_client import Client
from inflight_client.call import CallOptions, Prompt
from inflight_client.model_defaults import as_conversation, with_model_defaults
from inflight_client.validation import check_utf8

from inflight.commands.chat.conversation import read_messages
from inflight.commands.option_sections import SectionedCommand, section
from inflight.commands.options.call import call_options, call_options_from
from inflight.commands.options.connection import connection_options, open_client
from inflight.commands.terminal.answer_format import answer_line, delta_line, final_line, summary_line
from inflight.commands.terminal.standard_streams import printable, standard_input, stdout_is_terminal


@click.command(cls=SectionedCommand, short_help="Send a prompt to a server and stream the answer.")
@click.argument("prompt", required=False)
@connection_options
@section(
    "Prompt",
    click.option(
        "--messages",
        metavar="FILE",
        help="Send a conversation instead: a JSON list of objects with role and content, as /save of inflight chat "
        "writes it; - reads standard input.",
    ),
    click.option("--raw", is_flag=True, help="Send PROMPT as a text, without the model's chat template."),
)
@call_options("Prompt", max_tokens=128)
@section(
    "Output",
    click.option("--stream/--no-stream", default=True, help="Print the text as it is generated, or all at the end."),
    click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print JSON objects, one per line: the text of each step, and at the end finish_reason, usage, timings "
        "(seconds) and request_id; with --no-stream one object.",
    ),
    click.option("--log-probs", is_flag=True, help="With --json: include the log probability of each token."),
    click.option(
        "--top-log-probs",
        type=click.IntRange(0, 20),
        default=0,
        help="With --json: also those of this many likeliest tokens at each place, by their ids.",
    ),
    click.option("--token-ids", is_flag=True, help="With --json: include the id of each token."),
)
def command(
    prompt: str | None,
    messages: str | None,
    raw: bool,
    stream: bool,
    as_json: bool,
    log_probs: bool,
    top_log_probs: int,
    token_ids: bool,
    retry_timeout: float,
    chat_template: str | None,
    **arguments: Any,
) -> None:
    """Send PROMPT to a server and stream the answer; - reads the prompt from standard input.

    PROMPT is sent as a user's message if the model has a chat template, and answers are sampled as the model's
    generation_config.json says, if the server publishes both; otherwise it is a text to continue, greedily. Works with
    any deployment of TensorRT-LLM's Triton backend.

    \b
      inflight generate "Tell me about tea."
      inflight generate "Tea is a drink that" --raw
      inflight generate "Tell me about tea." --max-tokens 200 --temperature 0.8 --top-p 0.95 --seed 7
      echo "Tell me about tea." | inflight generate - --json
      echo '[{"role": "user", "content": "Tell me about tea."}]' | inflight generate --messages -
      inflight generate "Tell me about tea." --server https://triton.example --header "Authorization: Bearer $KEY"
    """  # fmt: skip
    sent = _read_prompt(prompt, messages)
    if isinstance(sent, str):
        check_utf8("the prompt", sent)
    options = call_options_from(arguments)
    if options["chat_template_kwargs"] and raw:
        raise click.UsageError("--chat-template-kwargs is for the chat template, which --raw leaves out.")
    if raw and messages is not None:
        raise click.UsageError("--raw is for a text, and --messages are a conversation; leave out one.")
    if log_probs:
        options["return_log_probs"] = True
    options["top_log_probs"] = top_log_probs
    if token_ids:
        options["return_token_ids"] = True
    with open_client(arguments, retry_timeout, chat_template=chat_template) as client:
        served = client.deployment().served
        options["sampling"] = with_model_defaults(options["sampling"], served)
        if isinstance(sent, str) and not raw:
            sent = as_conversation(sent, {**served, **({"chat_template": True} if chat_template else {})})
        if isinstance(sent, str):
            options.pop("chat_template_kwargs", None)
        if stream:
            _stream(client, sent, options, as_json)
        else:
            answer = client.generate(sent, **options)
            click.echo(answer_line(answer) if as_json else _printable(answer.text))


def _read_prompt(prompt: str | None, messages: str | None) -> Prompt:
    """Return the text or the messages to send."""
    if (prompt is None) == (messages is None):
        raise click.UsageError(
            "Missing argument 'PROMPT'." if prompt is None else "Give either PROMPT or --messages, not both."
        )
    if messages == "-":
        return read_messages(standard_input(), "standard input")
    if messages is not None:
        try:
            with Path(messages).open("rb") as file:  # may be a pipe, from a shell's <(...)
                return read_messages(file, messages)
        except OSError as error:
            raise click.BadParameter(f"{messages}: {error.strerror}.", param_hint="'--messages'") from error
    # Bytes that are not UTF-8 are passed to the client, which reports them, even in a strict locale.
    return standard_input().read().decode("utf-8", "surrogateescape") if prompt == "-" else prompt or ""


def _stream(client: Client, sent: Prompt, options: CallOptions, as_json: bool) -> None:
    """Print the answer as it is generated."""
    with client.stream(sent, **options) as stream:
        for delta in stream:
            click.echo(delta_line(delta) if as_json else _printable(delta.text), nl=as_json)
        answer = stream.generation
    assert answer is not None, "a stream that ended well has its whole answer"
    if as_json:
        click.echo(final_line(answer))
    else:
        click.echo()
        click.echo(summary_line(answer), err=True)


def _printable(text: str) -> str:
    """Return the text unchanged for programs, and without control characters for a terminal."""
    return printable(text) if stdout_is_terminal() else text
