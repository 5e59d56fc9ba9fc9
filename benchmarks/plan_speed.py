"""The speed that `inflight plan` predicts, beside that of the engine alone.

For each model and weight precision, this machine is measured as `inflight plan` does; then the engine generates with 1
request in flight and with 64. Each figure is the median of all rounds.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import click

from benchmarks.completion_client import GREEDY
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import BENCH_DIRECTORY, SMOLLM2, bench_engine
from build_engines.manifest import Manifest, Precision
from build_engines.plan.formats import OPENVINO_KV, OPENVINO_WEIGHTS
from build_engines.plan.machine_speed import measure_machine
from build_engines.plan.model import PlannedModel, read_model
from build_engines.plan.speed import ANSWER_TOKENS, PROMPT_TOKENS, SpeedModel, Workload
from inflight.tune.engine_alone import EngineAlone, load_engine
from inflight.tune.settings import EngineBuild, Settings

PRECISIONS: tuple[Precision, ...] = ("int8", "bf16", "fp32")
IN_FLIGHT = (1, 64)
GOAL = "0.75 to 1.25"
# Different prompts, more than the KV cache keeps for reuse.
_PROMPTS = 512
_KV_CACHE_TOKENS = IN_FLIGHT[-1] * 2 * (PROMPT_TOKENS + ANSWER_TOKENS)


@click.command(help=__doc__)
@click.option("--model", "models", multiple=True, default=("qwen2.5-0.5b", SMOLLM2), show_default=True)
@click.option("--precision", "precisions", multiple=True, default=PRECISIONS, show_default=True)
@click.option(
    "--input-tokens", default=16, show_default=True, help="Tokens per prompt; longer ones need longer warm-ups."
)
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=6.0, show_default=True, help="Seconds of each measurement, after its warm-up.")
@out_option("plan_speed")
def main(
    models: tuple[str, ...],
    precisions: tuple[Precision, ...],
    input_tokens: int,
    rounds: int,
    seconds: float,
    out: Path,
) -> None:
    speeds: defaultdict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    engines = {(model, precision): bench_engine(model, precision) for model in models for precision in precisions}
    # In rounds over all engines, since the machine may be busy for a while.
    for _ in range(rounds):
        for (model, precision), engine in engines.items():
            planned = read_model(BENCH_DIRECTORY / model)
            for count, pair in _compare(planned, engine, input_tokens, seconds).items():
                speeds[model, precision, count].append(pair)
    report(
        out,
        [
            Figure(
                f"{model} {precision}, {count} in flight: predicted / measured tokens/s",
                [predicted / measured for predicted, measured in pairs],
                GOAL,
            )
            for (model, precision, count), pairs in speeds.items()
        ],
        {
            f"{model} {precision} {count}: predicted, measured": pairs
            for (model, precision, count), pairs in speeds.items()
        },
    )


def _compare(planned: PlannedModel, engine: Path, prompt: int, seconds: float) -> dict[int, tuple[float, float]]:
    """Return the predicted and the measured tokens per second, by the number of requests in flight."""
    manifest = Manifest.read(engine)
    weights, kv = OPENVINO_WEIGHTS[manifest.precision], OPENVINO_KV[manifest.kv_cache_precision]
    speed = SpeedModel(planned.shape, planned.parameters, weights, kv, measure_machine([weights.name]))
    settings = Settings(EngineBuild(manifest.precision), max_num_sequences=IN_FLIGHT[-1])
    with load_engine(engine, settings, _KV_CACHE_TOKENS) as alone:
        return {
            count: (
                speed.tokens_per_second(Workload(count, prompt)),
                _measure(alone, manifest.vocab_size, Workload(count, prompt), seconds),
            )
            for count in IN_FLIGHT
        }


def _measure(alone: EngineAlone, vocabulary: int, workload: Workload, seconds: float) -> float:
    source = random.Random(0)
    requests = [
        ([source.randrange(vocabulary) for _ in range(workload.prompt)], workload.answer) for _ in range(_PROMPTS)
    ]
    speed, _ = alone.speed(requests, workload.sequences, seconds, GREEDY)
    return speed


if __name__ == "__main__":
    main()
