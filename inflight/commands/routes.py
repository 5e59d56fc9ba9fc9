"""`inflight routes`: the routes file of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from inflight_client import InflightError

from inflight.gateway.checks.judges import FAILURES, Judges
from inflight.gateway.checks.specs import CheckSpec, ClassifierCheck
from inflight.gateway.routes_file import Route, read_routes
from inflight.gateway.server_pool import ServerPool
from inflight.gateway.settings import GatewaySettings


@click.group()
def command() -> None:
    """Check the routes file of the gateway: names with several targets, a canary and a shadow."""


@command.command(short_help="Check a routes file, and what servers must have for it.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--server", multiple=True, metavar="ADDRESS", help="Server of the gateway to look for the targets at (repeatable)."
)
def check(file: Path, server: tuple[str, ...]) -> None:
    """Print the routes and checks of FILE; fail with one sentence for what is wrong.

    A running gateway takes changes by itself.

    \b
      inflight routes check routes.yaml
      inflight routes check routes.yaml --server gpu1:8001 --server 'openai+https://api.openai.com/v1?key=OPENAI_API_KEY'
      inflight gateway --routes routes.yaml --server gpu1:8001

    \b
    A file:
      routes:
        chat:
          targets:
            - {model: qwen-7b, weight: 3}
            - {server: "openai+https://llm.example/v1?model=qwen-7b&key=LLM_KEY"}
          canary: {model: qwen-7b-v2, share: 0.05}
          shadow: {model: qwen-14b, share: 0.1, file: shadow.jsonl}
    """  # fmt: skip
    found = read_routes(file)
    for name, route in found.routes.items():
        click.echo(f"{name}: {_described(route)}")
    for each in found.checks:
        click.echo(f"check {each.name}: {each.action}, {each.at}")
    if server and (missing := asyncio.run(_missing(GatewaySettings(server, routes=str(file)), found.checks))):
        raise InflightError(
            f"{'; '.join(missing)}; name models and labels that servers have, or start them",
            "invalid_parameter",
        )


async def _missing(settings: GatewaySettings, checks: Sequence[CheckSpec]) -> list[str]:
    """Return a sentence for each target, and each label of a classifier, that no server has."""
    settings.check_servers()
    pool = ServerPool(settings)
    judges = Judges(partial(pool.encoder, "classify"))
    await pool.start()
    try:
        missing = pool.missing_targets()
        for each in checks:
            if isinstance(each, ClassifierCheck):
                try:
                    (scores,) = await judges.scores(each, ["text"])
                except FAILURES as error:
                    missing.append(f"the check {each.name} has the model {each.model}: {error}")
                else:
                    labels = ", ".join(scores)
                    wrong = [label for label in each.labels if label not in scores]
                    missing += [
                        f"the check {each.name} has the label {label}; {each.model} has {labels}" for label in wrong
                    ]
        return missing
    finally:
        await judges.close()
        await pool.close()


def _described(route: Route) -> str:
    whole = sum(each.weight for each in route.targets)
    parts = [f"{each.name} {each.weight / whole:.0%}" for each in route.targets]
    if route.canary:
        parts.append(f"canary {route.canary.name} {route.canary.share:.1%}")
    if route.shadow:
        parts.append(f"shadow {route.shadow.name} {route.shadow.share:.1%}, into {route.shadow.file}")
    return ", ".join(parts)
