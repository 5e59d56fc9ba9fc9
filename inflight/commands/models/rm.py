"""`inflight rm`: remove engines from the cache."""

from __future__ import annotations

import click

from build_engines.errors import BuildError
from build_engines.model_cache.cache import CachedEngine, ModelCache
from build_engines.target import PRECISIONS
from inflight.commands.options.engine import TargetPrecision, revision_option, target_option


@click.command("rm", short_help="Remove engines from the cache.")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--all", "everything", is_flag=True, help="Remove all engines.")
@revision_option("Only engines of this revision, or of one that begins like this.")
@target_option("Only engines for this target.")
@click.option("--precision", type=TargetPrecision(PRECISIONS), help="Only engines of this precision.")
def command(
    models: tuple[str, ...], everything: bool, revision: str | None, target: str | None, precision: str | None
) -> None:
    """Remove the engines of each MODEL, as `inflight list` names it. An engine in use by a server is kept.

    The downloaded checkpoints of the Hugging Face hub are kept too; the command `hf cache` removes these.

    \b
      inflight rm Qwen/Qwen2.5-0.5B-Instruct
      inflight rm Qwen/Qwen2.5-0.5B-Instruct --precision int8
      inflight rm --all
    """  # fmt: skip
    if everything == bool(models):
        raise click.UsageError("Name the models to remove, or pass --all.")
    cache = ModelCache.default()
    named = cache.entries() if everything else [entry for name in models for entry in cache.find(name)]
    chosen = [
        entry
        for entry in {entry.directory: entry for entry in named}.values()
        if _begins(revision, entry) and target in (None, entry.target) and precision in (None, entry.precision)
    ]
    if named and not chosen:
        raise BuildError("No engine in the cache has these options; `inflight list` shows them.", "engine_not_found")
    failure = None
    for entry in chosen:
        size = entry.bytes
        try:
            cache.remove(entry)
        except BuildError as error:  # remove the others first
            failure = failure or error
        else:
            click.echo(f"Removed {entry.record.name} at {entry.record.revision[:12]} ({size / 1e6:,.0f} MB).")
    if failure:
        raise failure
    if not chosen:
        click.echo(f"The cache {cache.root} is empty.")


def _begins(revision: str | None, entry: CachedEngine) -> bool:
    return revision is None or revision == entry.record.requested_revision or entry.record.revision.startswith(revision)
