"""`inflight list`: the engines of the cache."""

from __future__ import annotations

import datetime
import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from build_engines.model_cache.cache import CachedEngine, ModelCache, State

_PIPE_WIDTH = 200
_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"))


@click.command("list", short_help="List the engines in the cache.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def command(as_json: bool) -> None:
    """List the engines that `inflight serve` and `inflight pull` have built, with size and last use.

    They are in $INFLIGHT_CACHE, by default in ~/.cache/inflight/engines.

    \b
      inflight list
      inflight list --json
    """  # fmt: skip
    cache = ModelCache.default()
    entries = [as_dict(entry) for entry in cache.entries()]
    if as_json:
        click.echo(json.dumps(entries, indent=2))
        return
    if not entries:
        click.echo(f"No engines in {cache.root}; `inflight pull MODEL` builds one.", err=True)
        return
    table = Table(box=None, pad_edge=False)
    for name in ("name", "revision", "task", "target", "precision", "size", "last used", "state"):
        table.add_column(name, justify="right" if name == "size" else "left", no_wrap=name != "name", overflow="fold")
    for facts in entries:
        size = f"{facts['bytes'] / 1e6:,.0f} MB"
        used = _ago(datetime.datetime.fromisoformat(facts["last_used"]))
        what = (facts["task"] or "", facts["target"], facts["precision"] or "")
        table.add_row(facts["name"], facts["revision"][:12], *what, size, used, facts["state"])
    console = Console(highlight=False, markup=False)
    (console if console.is_terminal else Console(highlight=False, markup=False, width=_PIPE_WIDTH)).print(table)


def _ago(when: datetime.datetime) -> str:
    seconds = (datetime.datetime.now(datetime.timezone.utc) - when).total_seconds()
    for size, unit in _UNITS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def as_dict(entry: CachedEngine, state: State | None = None) -> dict[str, Any]:
    """Return what is known of an engine of the cache; `state` where the caller knows it already."""
    used = datetime.datetime.fromtimestamp(entry.last_used, datetime.timezone.utc)
    return {
        "name": entry.record.name,
        "revision": entry.record.revision,
        "task": entry.manifest.task if entry.manifest else None,
        "target": entry.target,
        "precision": entry.precision,
        "bytes": entry.bytes,
        "last_used": used.isoformat(timespec="seconds"),
        "state": state or entry.state,
        "version": entry.record.version,
        "engine": str(entry.engine),
    }
