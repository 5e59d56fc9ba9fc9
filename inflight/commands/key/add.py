"""`inflight key add`: create an API key."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from inflight.commands.key.options import key_file_option
from inflight.gateway.keys import KeyFile, default_key_file

_NAME = re.compile(r"[ -~]{1,128}")
_DURATION = re.compile(r"(\d{1,5})([hdw])")
_UNIT_SECONDS = {"h": 3600, "d": 86400, "w": 604800}


@click.command()
@click.argument("name")
@click.option("--tenant", help="Tenant of the key's requests in metrics and logs.  [default: NAME]")
@click.option("--model", "models", multiple=True, help="Model that the key may use (repeatable).  [default: all]")
@click.option("--expires", help="When the key ends: 12h, 30d, 8w, or a date such as 2027-01-31.  [default: never]")
@key_file_option
@click.option(
    "--json",
    "as_json",
    envvar="INFLIGHT_KEY_ADD_JSON",
    is_flag=True,
    help="Print the key and its record as one line of JSON.",
)
def command(
    name: str, tenant: str | None, models: tuple[str, ...], expires: str | None, key_file: Path | None, as_json: bool
) -> None:
    """Create an API key and print it. It is shown only now: the file holds its hash.

    \b
      inflight key add my-app
      inflight key add batch-team --tenant data --model Qwen/Qwen2.5-0.5B-Instruct --expires 30d
      export OPENAI_API_KEY=$(inflight key add my-app)
    """  # fmt: skip
    for value, hint in ((name, "NAME"), (tenant, "--tenant")):
        if value is not None and not _NAME.fullmatch(value):
            raise click.BadParameter("pass 1 to 128 printable ASCII characters.", param_hint=hint)
    until = None if expires is None else _moment(expires)
    key, token = KeyFile(key_file or default_key_file()).add(name, tenant or name, models, until)
    if as_json:
        click.echo(json.dumps({"id": key.id, "name": key.name, "tenant": key.tenant, "key": token}))
        return
    click.echo(f"This is the only time that the key of {name!r} (id {key.id}) is shown:", err=True)
    click.echo(token)


def _moment(text: str) -> int:
    if match := _DURATION.fullmatch(text):
        return int(time.time()) + int(match[1]) * _UNIT_SECONDS[match[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither like 30d nor a date.", param_hint="--expires") from None
    found = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    if found <= time.time():
        raise click.BadParameter(f"{text} is in the past.", param_hint="--expires")
    return found
