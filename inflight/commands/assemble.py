"""`inflight assemble`: a self-contained model repository for somebody else's Triton."""

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
@click.option("--vendor", is_flag=True, help="Put the runtime in, for containers without the package inflight.")
@click.option(
    "--engine-path", help="Where the engine lies on the serving machine; then the repository doesn't hold it."
)
@click.option(
    "--repository-path",
    type=click.Path(path_type=Path),
    help="Where the repository will stand on the serving machine, for engines of tensorrt-llm.  [default: --out]",
)
@click.option(
    "--endpoint-url", help="Endpoint of an S3 that is not AWS's, as http://host:port.  [default: AWS_ENDPOINT_URL]"
)
@click.option("--force", is_flag=True, help="Write it again even if nothing changed.")
@click.option("--json", "as_json", envvar="INFLIGHT_ASSEMBLE_JSON", is_flag=True, help="Print one line of JSON.")
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
    **asked: Any,
) -> None:
    """Write a model repository that holds all of ENGINE_DIR that Triton needs.

    It is served by `inflight serve`, or by `tritonserver --model-repository` wherever the package inflight is
    installed in the same version, and with --vendor wherever its libraries are. What stands at --out stays as it is
    until the new repository is whole; on S3 it says meanwhile that it is being written.

    \b
      inflight assemble my-engine --out my-repository --vendor
      inflight assemble my-engine --out s3://models/my-model/v1
      inflight assemble my-engine --out s3://http://127.0.0.1:9000/models/my-model/v1
    """  # fmt: skip
    from build_engines.manifest import verify
    from inflight.deploy.publish.publish import publish_repository
    from inflight.deploy.publish.s3_address import parse_location
    from inflight.deploy.repository.assemble import AssemblyRequest

    started = time.monotonic()
    to = parse_location(out, endpoint_url)
    options = deployment_options_from(asked)
    manifest = verify(engine_dir)
    check_options(options, engine_dir, manifest)
    order = AssemblyRequest(engine_dir, manifest, options, vendor, engine_path, repository_path)
    shipped = publish_repository(order, to, lambda line: click.echo(line, err=True), force=force)
    for note in order.notes(to):
        click.echo(f"Note: {note}", err=True)
    if as_json:
        card = shipped.manifest.model_dump(mode="json", exclude={"files", "engine", "tags"})
        click.echo(json.dumps({"repository": str(to), "updated": shipped.updated, "model": manifest.name, **card}))
    elif shipped.updated:
        size = shipped.manifest.total_bytes / 1e6
        click.echo(f"Assembled {to} in {time.monotonic() - started:.0f} s: {manifest.name}, {size:,.1f} MB.")
    else:
        click.echo(f"{to} is up to date: same engine, options and version (--force writes it again).")
