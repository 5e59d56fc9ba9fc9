"""`inflight doctor`: what this machine has and lacks for serving."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click

from inflight.deploy.doctor import Finding, examine

_MARKS = {"ok": "ok     ", "warning": "warning", "missing": "MISSING"}


@click.command(short_help="Say what is missing on this machine and how to mend it.")
@click.argument("engine_dir", type=click.Path(path_type=Path), required=False)
@click.option(
    "--json", "as_json", envvar="INFLIGHT_DOCTOR_JSON", is_flag=True, help="One JSON object instead of lines."
)
def command(engine_dir: Path | None, as_json: bool) -> None:
    """Look at what serving needs, say what is there, what is missing, and how to mend it.

    With ENGINE_DIR also whether that engine is whole and runs here: versions, GPUs, driver.

    Exit code 1 if this machine can't serve as it is.
    """
    findings: list[Finding] = []
    for finding in examine(engine_dir):
        findings.append(finding)
        if not as_json:
            _say(finding)
    able = all(finding.state != "missing" for finding in findings)
    if as_json:
        report = {"can_serve": able, "findings": [dataclasses.asdict(finding) for finding in findings]}
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo("This machine can serve." if able else "This machine can't serve yet.")
    sys.exit(0 if able else 1)


def _say(finding: Finding) -> None:
    click.echo(f"{_MARKS[finding.state]}  {finding.name}: {finding.found}")
    if finding.remedy:
        click.echo(f"         -> {finding.remedy}")
