"""`inflight evaluate gate`: whether an engine may replace the one of a baseline."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from inflight.commands.batch.execute import result_options
from inflight.commands.evaluate.compare import margin_option
from inflight.commands.option_sections import SectionedCommand
from inflight.evaluate.evaluation import EvaluationDirectory


@click.command(cls=SectionedCommand, short_help="Evaluate an engine as a baseline was, and fail on a regression.")
@click.option("--golden", required=True, metavar="INPUT", help="The golden set of the baseline.")
@click.option(
    "--baseline", required=True, type=click.Path(path_type=Path), help="Evaluation of the model that is in use."
)
@click.option(
    "--candidate", required=True, type=click.Path(path_type=Path), help="Directory of the engine to put in its place."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the candidate's evaluations.  [default: CANDIDATE.evaluations]",
)
@margin_option
@result_options
def command(
    golden: str, baseline: Path, candidate: Path, out: Path | None, margin: float, as_json: bool, **options: Any
) -> None:
    """Serve the engine CANDIDATE, evaluate it as BASELINE was evaluated, and compare the two.

    Template, sampling and metrics are the baseline's. The verdict is verdict.json and verdict.md beside the engine's
    manifest. The command may be killed at any moment: run it again to continue.

    Exit codes: 0 better or equivalent; 1 worse, or an error; 75 cannot tell, or stopped early: run it again.

    \b
      inflight evaluate run golden.jsonl --reference answer --metric bleu,exact --out baseline/ --ephemeral my-engine
      inflight evaluate gate --golden golden.jsonl --baseline baseline/ --candidate my-int8-engine
    """  # fmt: skip
    from build_engines.manifest import verify_engine
    from inflight.commands.evaluate.run import finished_evaluation
    from inflight.evaluate.gate import Gate
    from inflight.evaluate.report import as_markdown

    verify_engine(candidate)
    engine = candidate.resolve()
    gate = Gate(EvaluationDirectory(baseline), golden, engine, out or engine.with_name(f"{engine.name}.evaluations"))
    scoring = gate.scoring()
    finished_evaluation(scoring, options)
    found = gate.judge(scoring.directory, margin)
    click.echo(json.dumps(found.as_json()) if as_json else as_markdown(found))
    sys.exit(found.exit_code)
