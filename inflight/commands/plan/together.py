"""Which of several models fit into the memory of one machine together, as `inflight serve` loads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from build_engines.kv_cache import BLOCK
from build_engines.manifest import FILE_NAME, Manifest
from build_engines.plan import openvino_memory
from build_engines.plan.memory_plan import PlanRequest, make_plan
from build_engines.plan.model import read_model
from build_engines.plan.size import format_size
from inflight.commands.plan.engine_memory import EngineMemory, engine_memory
from inflight.deploy.repository.kv_budget import KV_CACHE_FRACTION
from inflight.deploy.repository.options import DeploymentOptions


def model_memory(directory: Path, request: PlanRequest, share: int) -> EngineMemory:
    """Return the memory of an engine, or of the engine that a checkpoint should be built to.

    The KV cache has a quarter of `share` bytes, or what all sequences use. Raises BuildError.
    """
    if (directory / FILE_NAME).is_file():
        return engine_memory(directory, Manifest.read(directory), DeploymentOptions(), share)
    plan = make_plan(read_model(directory), request)
    footprint = (plan.recommended or plan.fits[0]).footprint
    most = openvino_memory.MAX_NUM_SEQUENCES * plan.length
    affordable = int(share * KV_CACHE_FRACTION) // footprint.kv_token // BLOCK * BLOCK
    return EngineMemory(footprint.fixed, max(BLOCK, min(affordable, most)), footprint.kv_token)


def largest_sets(sizes: Mapping[str, int], memory: int) -> list[tuple[str, ...]]:
    """Return the sets of models that fit, without those that are part of a larger one."""
    found: list[tuple[str, ...]] = []
    for count in range(len(sizes), 0, -1):
        for names in combinations(sizes, count):
            if sum(sizes[name] for name in names) <= memory and not any(set(names) <= set(each) for each in found):
                found.append(names)
    return found


def show_together(models: Mapping[str, EngineMemory], memory: int, as_json: bool) -> bool:
    """Print the memory of each model and the sets that fit; return whether each model is in one."""
    sets = largest_sets({name: each.total for name, each in models.items()}, memory)
    if as_json:
        rows = [
            {
                "model": name,
                "fixed_bytes": each.fixed,
                "kv_cache_tokens": each.kv_cache_tokens,
                "kv_cache_bytes": each.kv_cache_tokens * each.token_bytes,
                "total_bytes": each.total,
            }
            for name, each in models.items()
        ]
        click.echo(json.dumps({"memory_bytes": memory, "models": rows, "fit_together": sets}, indent=2))
    else:
        _show_table(models, memory, sets)
    return {name for names in sets for name in names} == set(models)


def _show_table(models: Mapping[str, EngineMemory], memory: int, sets: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    for name in ("without KV cache", "KV tokens", "KV cache", "total"):
        table.add_column(name, justify="right")
    for name, each in models.items():
        cache = each.total - each.fixed
        sizes = (format_size(each.fixed), f"{each.kv_cache_tokens:,}", format_size(cache), format_size(each.total))
        table.add_row(name, *sizes)
    Console(highlight=False).print(table)
    alone = set(models) - {name for names in sets for name in names}
    if len(sets) == 1 and not alone:
        click.echo(f"All fit into {format_size(memory)} together.")
        return
    for names in sets:
        click.echo(f"In {format_size(memory)} at a time: {', '.join(names)}.")
    for name in sorted(alone):
        click.echo(f"{name} does not fit; raise --memory, or build it at a lower precision.")
