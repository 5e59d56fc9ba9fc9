"""Options of one call to a model, shared by `generate` and `chat`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any, cast

import click
from inflight_client import InflightError, Sampling
from inflight_client.call import Call, CallOptions
from inflight_client.sampling import PARAMETERS

from inflight.commands.option_sections import Decorated, section
from inflight.commands.options.numbers import ParsedValue, Seconds
from inflight.common.schema.cli_options import Lines

RETRY_TIMEOUT = click.option(
    "--retry-timeout",
    type=Seconds(),
    default=0.0,
    show_default=True,
    help="How long to retry temporary failures, such as a full queue or a starting engine, in seconds.",
)
_CALL = ("max_tokens", "timeout", "first_token_timeout", "tenant", "traceparent", "chat_template_kwargs")


def _json_object(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text} is not valid JSON: {error}.") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"{text} is not a JSON object, such as {{}}.")
    return parsed


def call_options(template_section: str, max_tokens: int) -> Callable[[Decorated], Decorated]:
    """Add the call options; `call_options_from` reads them."""
    return section(
        "Sampling",
        click.option(
            "--max-tokens",
            type=click.IntRange(1, 2**31 - 1),
            default=max_tokens,
            show_default=True,
            help="Maximum tokens to generate.",
        ),
        *(
            click.option(f"--{name.replace('_', '-')}", type=int if parameter.whole else float, help=parameter.help)
            for name, parameter in PARAMETERS.items()
            if name != "end_id"
        ),
        click.option(
            "--stop",
            type=Lines(),
            multiple=True,
            help="Stop word that ends the answer and is not part of it (repeatable); in the environment one per line.",
        ),
        click.option("--timeout", type=Seconds(exclusive=True), help="Timeout for the whole answer, in seconds."),
        click.option(
            "--first-token-timeout", type=Seconds(exclusive=True), help="Timeout for the first token, in seconds."
        ),
        RETRY_TIMEOUT,
        click.option("--tenant", default="", help="Tenant of the request, for the engine's events."),
        click.option("--traceparent", default="", help="Trace that the request belongs to (W3C Trace Context)."),
        click.option(
            "--chat-template",
            type=click.Path(exists=True, file_okay=False),
            metavar="DIR",
            help="Checkpoint whose chat template renders the messages, for servers without one.",
        ),
        click.option(
            "--chat-template-kwargs",
            type=ParsedValue("json", _json_object),
            metavar="JSON",
            help="Further arguments of the chat template, as a JSON object: tools, enable_thinking and others.",
        ),
        starts={"timeout": "Time limits", "tenant": "Connection", "chat_template": template_section},
    )


def call_options_from(arguments: dict[str, Any]) -> CallOptions:
    """Return the options of a call and remove them from `arguments`.

    Raises click.UsageError for values out of range.
    """
    values = {name: arguments.pop(name) for name in _CALL}
    values["chat_template_kwargs"] = values["chat_template_kwargs"] or {}
    try:
        sampling = Sampling(
            **{field.name: arguments.pop(field.name) for field in fields(Sampling) if field.name in arguments}
        )
        options = cast(CallOptions, {**values, "sampling": sampling})
        # The template's arguments are only valid with messages.
        Call([{"role": "user"}] if values["chat_template_kwargs"] else "", stream=True, **options)
    except InflightError as error:
        raise click.UsageError(f"{error} [{error.code}]") from error
    return options
