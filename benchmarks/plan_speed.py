"""The speed that `inflight plan` predicts, beside that of the engine alone.

For each model and weight precision, this machine is measured as `inflight plan` does; then the engine generates with 1
request in flight and with 64. Each figure is the median of all rounds.
"""

from __future__ import annotations

import json
import random
import statistics
from collections import defaultdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.fixtures import BENCH_DIRECTORY, bench_engine, demo_checkpoint
from build_engines.build import BuildOptions, build_engine
from build_engines.manifest import Manifest, Precision
from build_engines.plan.formats import OPENVINO_KV, OPENVINO_WEIGHTS
from build_engines.plan.machine_speed import measure_machine
from build_engines.plan.model import PlannedModel, read_model
from build_engines.plan.speed import ANSWER_TOKENS, PROMPT_TOKENS, SpeedModel, Workload
from inflight.tune.engine_alone import EngineAlone, load_engine
from inflight.tune.settings import EngineBuild, Settings

PRECISIONS: tuple[Precision, ...] = ("int8", "bf16", "fp32")
IN_FLIGHT = (1, 64)
GOAL = (0.75, 1.25)
_DEMO = "demo"
# Different prompts, more than the KV cache keeps for reuse.
_PROMPTS = 512
_KV_CACHE_TOKENS = IN_FLIGHT[-1] * 2 * (PROMPT_TOKENS + ANSWER_TOKENS)


@click.command(help=__doc__)
@click.option("--model", "models", multiple=True, default=("qwen2.5-0.5b", _DEMO), show_default=True)
@click.option("--precision", "precisions", multiple=True, default=PRECISIONS, show_default=True)
@click.option(
    "--input-tokens", default=16, show_default=True, help="Tokens per prompt; longer ones need longer warm-ups."
)
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=6.0, show_default=True, help="Seconds of each measurement, after its warm-up.")
@click.option("--out", type=click.Path(path_type=Path), default=BENCH_DIRECTORY / "plan_speed.json", show_default=True)
def main(
    models: tuple[str, ...],
    precisions: tuple[Precision, ...],
    input_tokens: int,
    rounds: int,
    seconds: float,
    out: Path,
) -> None:
    found: defaultdict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    engines = {(model, precision): _engine(model, precision) for model in models for precision in precisions}
    # In rounds over all engines, since the machine may be busy for a while.
    for _ in range(rounds):
        for (model, precision), engine in engines.items():
            planned = read_model(BENCH_DIRECTORY / model)
            for count, pair in _compare(planned, engine, input_tokens, seconds).items():
                found[model, precision, count].append(pair)
    figures = [
        _figure(f"{model} {precision}, {count} in flight: predicted / measured tokens/s", pairs)
        for (model, precision, count), pairs in found.items()
    ]
    _show(found, input_tokens)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"figures": figures}, indent=2))


def _engine(model: str, precision: Precision) -> Path:
    if model != _DEMO:
        return bench_engine(model, precision)
    engine = BENCH_DIRECTORY / f"{model}-{precision}"
    build_engine(str(demo_checkpoint()), engine, BuildOptions(precision=precision))
    return engine


def _compare(planned: PlannedModel, engine: Path, prompt: int, seconds: float) -> dict[int, tuple[float, float]]:
    """Return the predicted and the measured tokens per second, by the number of requests in flight."""
    manifest = Manifest.read(engine)
    weights, kv = OPENVINO_WEIGHTS[manifest.precision], OPENVINO_KV[manifest.kv_cache_precision]
    speed = SpeedModel(planned.shape, planned.parameters, weights, kv, measure_machine([weights.name]))
    settings = Settings(EngineBuild(manifest.precision), max_num_sequences=IN_FLIGHT[-1])
    with load_engine(engine, settings, _KV_CACHE_TOKENS) as alone:
        return {
            count: (predicted, _measure(alone, manifest.vocab_size, Workload(count, prompt), predicted, seconds))
            for count in IN_FLIGHT
            for predicted in (speed.tokens_per_second(Workload(count, prompt)),)
        }


def _measure(alone: EngineAlone, vocabulary: int, workload: Workload, predicted: float, seconds: float) -> float:
    source, count = random.Random(0), workload.sequences
    requests = [
        ([source.randrange(vocabulary) for _ in range(workload.prompt)], workload.answer) for _ in range(_PROMPTS)
    ]
    # The prompts of all are computed before it counts.
    warmup = max(1.0, 2 * count * workload.prompt / predicted)
    speed, _ = alone.speed(requests, count, seconds, warmup)
    return speed


def _figure(name: str, pairs: list[tuple[float, float]]) -> dict[str, object]:
    values = [predicted / measured for predicted, measured in pairs]
    return {
        "name": name,
        "values": values,
        "goal": f"{GOAL[0]} to {GOAL[1]}",
        "met": GOAL[0] <= statistics.median(values) <= GOAL[1],
        "predicted": [predicted for predicted, _ in pairs],
        "measured": [measured for _, measured in pairs],
    }


def _show(found: dict[tuple[str, str, int], list[tuple[float, float]]], prompt: int) -> None:
    table = Table(title=f"tokens/s, {prompt} tokens of prompt and {ANSWER_TOKENS} of answer")
    for column in ("model", "precision", "in flight", "predicted", "measured", "error", "rounds"):
        table.add_column(column, justify="left" if column in ("model", "precision") else "right")
    for (model, precision, count), pairs in found.items():
        ratios = [predicted / measured for predicted, measured in pairs]
        error = statistics.median(ratios) - 1
        table.add_row(
            model,
            precision,
            str(count),
            *(f"{statistics.median(one):,.1f}" for one in zip(*pairs, strict=True)),
            f"{error:+.0%}" + ("" if GOAL[0] <= error + 1 <= GOAL[1] else " MISSED"),
            " ".join(f"{ratio - 1:+.0%}" for ratio in ratios),
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
