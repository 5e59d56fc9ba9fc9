"""`inflight key add`: create a key."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import click
from inflight_client import InflightError

from inflight.commands.key.options import as_record, key_file_option, quota_options, quotas_from
from inflight.commands.options.numbers import ParsedValue
from inflight.gateway.key_editing import add_key, revoke_key
from inflight.gateway.key_file import OPTIONS, ApiKey, parse_time

_PERIOD = re.compile(r"(\d{1,9})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 168}


def _expiry(value: str) -> datetime:
    """Return the end of a period from now (`12h`, `30d`, `8w`), or an ISO 8601 date or time."""
    try:
        if period := _PERIOD.fullmatch(value):
            end = datetime.now(timezone.utc) + timedelta(hours=int(period[1]) * _HOURS[period[2]])
            return end.replace(microsecond=0)
        return parse_time(value).replace(microsecond=0)
    except (ValueError, OverflowError):
        raise ValueError(f"{value!r} is not a time; pass a period such as 30d, or a date such as 2027-01-01.") from None


def _names(value: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise ValueError(f"{value!r} has an empty name; leave --models out to permit every model.")
    return names


@click.command(short_help="Create a key and print it once.")
@click.argument("name")
@click.option("--tenant", help="Tenant of the key's requests, printable ASCII.  [default: NAME]")
@click.option(
    "--models",
    type=ParsedValue("names", _names),
    metavar="NAME,...",
    multiple=True,
    help="Models that the key may use (repeatable).  [default: every model]",
)
@click.option(
    "--expires",
    type=ParsedValue("time", _expiry),
    metavar="TIME",
    help="When the key expires: a period in hours, days or weeks (12h, 30d, 8w), or a date or time, in UTC without an "
    "offset (2027-01-01, 2027-01-01T18:00+02:00).  [default: never]",
)
@click.option(
    "--trusted",
    is_flag=True,
    help="Let the key read the metrics of all tenants, and send requests of any priority.",
)
@click.option(
    "--weight",
    type=click.IntRange(OPTIONS["weight"].least, OPTIONS["weight"].most),
    default=OPTIONS["weight"].default,
    show_default=True,
    help="Share of the key's tenant in the places, relative to other tenants; that of its heaviest key counts.",
)
@click.option(
    "--max-priority",
    type=click.IntRange(OPTIONS["max_priority"].least, OPTIONS["max_priority"].most),
    default=OPTIONS["max_priority"].default,
    show_default=True,
    help="Highest priority of the key's requests; `service_tier: priority` is 1.",
)
@click.option(
    "--degrade/--no-degrade",
    default=OPTIONS["degrade"].default,
    show_default=True,
    help="Whether answers may be shorter, or of a smaller model, where an overloaded route has a ladder.",
)
@click.option(
    "--cache", is_flag=True, help="Let the response cache answer the key's requests (docs/response-cache.md)."
)
@quota_options
@key_file_option
@click.option("--json", "as_json", is_flag=True, help="Print the key and what it permits as one JSON object.")
def command(
    name: str,
    tenant: str | None,
    models: tuple[list[str], ...],
    expires: datetime | None,
    key_file: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Create a key with this NAME and print it to standard output.

    The key is printed once and is not stored: the file has its SHA-256. Clients send it as `Authorization: Bearer KEY`.

    \b
      inflight key add web-shop
      inflight key add nightly --tenant research --models llama,qwen --expires 30d
      inflight key add demo --requests-per-minute 60 --tokens-per-day 1000000 --max-concurrent 4
      inflight key add shop --weight 4 --max-priority 1
      inflight key add prometheus --trusted
      inflight key add ci --expires 2027-01-01 --json | jq -r .key
    """
    try:
        named = [model for names in models for model in names]
        chosen = {option: options[option] for option in OPTIONS}
        key = ApiKey.new(name, tenant=tenant, models=named, expires=expires, quotas=quotas_from(options), **chosen)
    except InflightError as error:
        raise click.UsageError(f"{error} [{error.code}]") from error
    if sys.stdout is None:
        raise click.UsageError("standard output is closed; connect it, since the key is printed only once.")
    token = add_key(key_file, key)
    try:
        click.echo(json.dumps({**as_record(key), "key": token}) if as_json else token)
    except BaseException:  # a key that was not printed is of no use; click exits if the reader has left
        with suppress(InflightError):
            revoke_key(key_file, key.id)
        raise
    click.echo(f"Added the key {key.id} to {key_file}. It is printed only now; keep it secret.", err=True)
