"""`inflight doctor`: check whether this machine can serve."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from build_engines.build import is_engine
from build_engines.errors import BuildError
from build_engines.manifest import read_manifest
from inflight.deploy.checks.doctor import Finding, run_checks

_PRECISIONS = ("int8", "bf16", "fp32")
_MARKS = {"ok": "ok     ", "warning": "warning", "missing": "MISSING"}


@click.command(short_help="Check this machine and show how to fix problems.")
@click.argument("engine_dir", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def command(engine_dir: str | None, as_json: bool) -> None:
    """Check what serving needs; show what is present, what is missing and how to fix it.

    Also measure how fast the processor multiplies matrices, in a few seconds.

    With ENGINE_DIR, also check that the engine is complete and runs here: versions, GPUs, driver. ENGINE_DIR may be a
    repository that `inflight assemble` wrote: its directory, or its address on S3; or the directory of an OpenVINO
    model, which `inflight serve` takes as it is. For an engine directory of target
    openvino, also predict tokens per second. An encoder is started, and encodes a text.

    Exit code 1 if this machine cannot serve.

    \b
      inflight doctor
      inflight doctor my-gpu-engine
      inflight doctor s3://models/my-model/v1 --json
    """  # fmt: skip
    findings: list[Finding] = []
    ready = _ready_model(Path(engine_dir)) if engine_dir else []
    for finding in itertools.chain(run_checks(None if ready else engine_dir), ready, _speed(engine_dir)):
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


def _ready_model(directory: Path) -> list[Finding]:
    """Return whether an OpenVINO model that is no engine yet can be served; [] for anything else."""
    from build_engines.checkpoints.checkpoint import read_checkpoint
    from build_engines.checkpoints.openvino_ir import is_openvino_model
    from build_engines.openvino.ready_model import target
    from build_engines.target import BuildOptions

    if is_engine(directory) or not is_openvino_model(directory):
        return []
    try:
        taken = target(BuildOptions(), directory)
        checkpoint = read_checkpoint(directory, check=taken.check_supported)
    except BuildError as error:
        sentence, _, remedy = str(error).rpartition("; ")
        return [Finding("model", "missing", sentence, remedy.rstrip("."))]
    size = f"{checkpoint.weight_bytes / 1e6:,.0f} MB"
    found = f"{directory}: {checkpoint.architecture} for OpenVINO, {taken.precision} weights, {size}; served as it is"
    return [Finding("model", "ok", found)]


def _speed(engine_dir: str | None) -> Iterator[Finding]:
    """Yield the speed of matrix multiplications, and the predicted speed of an engine for the processor."""
    from build_engines.plan.machine_speed import measure_machine
    from build_engines.plan.speed import predict_engine

    try:
        manifest = read_manifest(Path(engine_dir)) if engine_dir else None
    except BuildError:
        return  # run_checks has reported it
    if manifest and manifest.target != "openvino":
        return
    try:
        machine = measure_machine((manifest.precision,) if manifest else _PRECISIONS)
        yield Finding("speed", "ok", str(machine))
        if engine_dir and manifest and manifest.task == "generate":
            yield Finding("prediction", "ok", predict_engine(Path(engine_dir), manifest, machine))
    except BuildError as error:
        sentence, _, remedy = str(error).rpartition("; ")
        yield Finding("speed", "warning", sentence, remedy.rstrip("."))


def _print_finding(finding: Finding) -> None:
    click.echo(f"{_MARKS[finding.state]}  {finding.name}: {finding.found}")
    if finding.remedy:
        click.echo(f"         -> {finding.remedy}")
