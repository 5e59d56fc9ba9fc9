"""How an answer is to be: the options that `generate` and `chat` share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, cast

import click
from inflight_client import InflightError, Sampling
from inflight_client.call import Call, CallOptions

from inflight.commands.options.seconds import Seconds
from inflight.common.schema.cli_options import Lines

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_CALL = ("max_tokens", "timeout", "first_token_timeout", "tenant", "traceparent", "chat_template_kwargs")


class JsonObject(click.ParamType[dict[str, Any]]):
    """An object of JSON, as a mapping; None where the option isn't given."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as error:
            self.fail(f"{value} is no JSON: {error}.", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"{value} is no object of JSON, such as {{}}.", param, ctx)
        return found


def call_options(max_tokens: int) -> Callable[[Decorated], Decorated]:
    """Decorate a command with the options; it gets them by keyword, for `call_options_from`."""
    options = [
        click.option(
            "--max-tokens",
            type=click.IntRange(1, 2**31 - 1),
            default=max_tokens,
            show_default=True,
            help="Longest answer, in tokens.",
        ),
        click.option("--temperature", type=float, help="Above 0: sample; the higher, the wilder. 0: greedy."),
        click.option("--top-k", type=int, help="Sample among the k likeliest tokens."),
        click.option("--top-p", type=float, help="Sample among the likeliest tokens that make up this probability."),
        click.option("--seed", type=int, help="Seed of the sampling."),
        click.option("--repetition-penalty", type=float, help="Above 1: tokens that came before become less likely."),
        click.option(
            "--presence-penalty", type=float, help="-2 to 2, subtracted from the logits of tokens that came before."
        ),
        click.option(
            "--frequency-penalty",
            type=float,
            help="-2 to 2, subtracted once for each time that a token came before.",
        ),
        click.option("--min-tokens", type=int, help="Shortest answer, in tokens."),
        click.option(
            "--stop",
            type=Lines(),
            multiple=True,
            help="Text at which the answer ends, without it (repeatable); in the environment one per line.",
        ),
        click.option("--timeout", type=Seconds(exclusive=True), help="Seconds allowed for the whole answer."),
        click.option(
            "--first-token-timeout", type=Seconds(exclusive=True), help="Seconds allowed for the first token."
        ),
        click.option(
            "--retry-timeout",
            type=Seconds(),
            default=0.0,
            show_default=True,
            help="How long to send again what fails for now: a full queue, an engine that is being started.",
        ),
        click.option("--tenant", default="", help="On whose account; it reaches the engine's events."),
        click.option("--traceparent", default="", help="The trace this is part of, by W3C's Trace Context."),
        click.option(
            "--chat-template",
            type=click.Path(exists=True, file_okay=False),
            metavar="DIR",
            help="A checkpoint whose template renders messages, for servers that can't.",
        ),
        click.option(
            "--chat-template-kwargs",
            type=JsonObject(),
            metavar="JSON",
            help="What the template is given beside the messages, an object: tools, enable_thinking, and what else it"
            " reads.",
        ),
    ]

    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def call_options_from(asked: dict[str, Any]) -> CallOptions:
    """What a call is given, of the keywords that `call_options` gives, which are taken out of `asked`.

    Raises click.UsageError for values out of bounds.
    """
    given = {name: asked.pop(name) for name in _CALL}
    given["chat_template_kwargs"] = given["chat_template_kwargs"] or {}
    try:
        sampling = Sampling(**{field.name: asked.pop(field.name) for field in fields(Sampling) if field.name in asked})
        options = cast(CallOptions, {**given, "sampling": sampling})
        # The template's arguments go with messages alone.
        Call([{"role": "user"}] if given["chat_template_kwargs"] else "", stream=True, **options)
    except InflightError as error:
        raise click.UsageError(f"{error} [{error.code}]") from error
    return options
