"""`inflight assemble`: export a self-contained model repository for another Triton server."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from inflight.commands.options.deployment import deployment_options, deployment_options_from
from inflight.deploy.repository.option_checks import check_options


@click.command(short_help="Export a model repository for another Triton server.")
@click.argument("engine_dir", type=click.Path(path_type=Path))
@click.option("--out", required=True, help="Directory, or s3://bucket/path, to write the repository to.")
@click.option("--vendor", is_flag=True, help="Include the runtime, for containers without the inflight package.")
@click.option(
    "--engine-path", help="Path of the engine on the serving machine; the repository then does not include the engine."
)
@click.option(
    "--repository-path",
    type=click.Path(path_type=Path),
    help="Path of the repository on the serving machine, for tensorrt-llm engines.  [default: --out]",
)
@click.option(
    "--endpoint-url", help="Endpoint of an S3 service other than AWS, as http://host:port.  [default: AWS_ENDPOINT_URL]"
)
@click.option("--force", is_flag=True, help="Write the repository even if nothing changed, or a server uses it.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@deployment_options("assemble")
def command(
    engine_dir: Path,
    out: str,
    vendor: bool,
    engine_path: str | None,
    repository_path: Path | None,
    endpoint_url: str | None,
    force: bool,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Write a model repository with everything that Triton needs to serve ENGINE_DIR.
    Serve it with `inflight serve`, or with `tritonserver --model-repository` where the same version of the inflight
    package is installed; with --vendor the package's dependencies are enough. An existing repository at --out is
    replaced only when the new one is complete; on S3 it is marked as being written until then.

    \b
      inflight assemble my-engine --out my-repository --vendor
      inflight assemble my-engine --out s3://models/my-model/v1
      inflight assemble my-engine --out s3://http://127.0.0.1:9000/models/my-model/v1
    """  # fmt: skip
    from inflight.deploy.publish.publish import publish_repository
    from inflight.deploy.publish.s3_address import parse_location
    from inflight.deploy.repository.assemble import AssemblyRequest
    from inflight.deploy.repository.engine_set import EngineSet

    started = time.monotonic()
    to = parse_location(out, endpoint_url)
    options = deployment_options_from(arguments)
    engines = EngineSet.find(engine_dir, options)
    check_options(options, engines)
    order = AssemblyRequest(engines, options, vendor, engine_path, repository_path)
    shipped = publish_repository(order, to, lambda line: click.echo(line, err=True), force=force)
    for note in order.notes(to):
        click.echo(f"Note: {note}", err=True)
    if as_json:
        card = shipped.manifest.model_dump(mode="json", exclude={"files", "engine", "encoders", "tags"})
        click.echo(
            json.dumps(
                {"repository": str(to), "updated": shipped.updated, "model": shipped.manifest.model_name, **card}
            )
        )
    elif shipped.updated:
        size = shipped.manifest.total_bytes / 1e6
        click.echo(
            f"Assembled {to} in {time.monotonic() - started:.0f} s: {shipped.manifest.model_name}, {size:,.1f} MB."
        )
    else:
        click.echo(f"{to} is up to date: same engine, options and version (--force writes it again).")
