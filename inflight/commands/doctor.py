"""`inflight doctor`: check whether this machine can serve."""

from __future__ import annotations

import dataclasses
import json
import sys

import click

from inflight.deploy.checks.doctor import Finding, run_checks

_MARKS = {"ok": "ok     ", "warning": "warning", "missing": "MISSING"}


@click.command(short_help="Check this machine and show how to fix problems.")
@click.argument("engine_dir", required=False)
@click.option(
    "--json", "as_json", envvar="INFLIGHT_DOCTOR_JSON", is_flag=True, help="Print one JSON object instead of lines."
)
def command(engine_dir: str | None, as_json: bool) -> None:
    """Check what serving needs; show what is present, what is missing and how to fix it.

    With ENGINE_DIR, also check that the engine is complete and runs here: versions, GPUs, driver. ENGINE_DIR may be a
    repository that `inflight assemble` wrote: its directory, or its address on S3.

    Exit code 1 if this machine cannot serve.

    \b
      inflight doctor
      inflight doctor my-gpu-engine
      inflight doctor s3://models/my-model/v1 --json
    """  # fmt: skip
    findings: list[Finding] = []
    for finding in run_checks(engine_dir):
        findings.append(finding)
        if not as_json:
            _print_finding(finding)
    able = all(finding.state != "missing" for finding in findings)
    if as_json:
        report = {"can_serve": able, "findings": [dataclasses.asdict(finding) for finding in findings]}
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo("This machine can serve." if able else "This machine cannot serve yet.")
    sys.exit(0 if able else 1)


def _print_finding(finding: Finding) -> None:
    click.echo(f"{_MARKS[finding.state]}  {finding.name}: {finding.found}")
    if finding.remedy:
        click.echo(f"         -> {finding.remedy}")
