"""`make bench`: the engine alone with the requests that people send, greedy and sampled, beside OpenVINO GenAI.

Both run the same engine directory; GenAI's pipeline has an environment of its own. They take turns, and the processes
of the one that is idle are stopped meanwhile. The weights are random, so that all tokens are about as likely: top_p
then leaves thousands of tokens, which is harder than with trained weights.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from tokenizers import Tokenizer

from benchmarks.engine_alone import AloneRun, EngineAlone
from benchmarks.environments import shared_environment
from benchmarks.figures import Figure, out_option, report
from benchmarks.fixtures import BENCH_DIRECTORY, bench_engine
from benchmarks.peer_process import PeerProcess
from benchmarks.prompts import Prompts
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import DecodingGuide, GuideType, SamplingConfig

KV_CACHE_TOKENS = 16384
_PACKAGES = ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0")
_PEER = Path(__file__).with_name("genai_process.py")
_SCHEMA = json.dumps({"type": "array", "items": {"type": "integer"}, "minItems": 1000})


@dataclass(frozen=True)
class Kind:
    """What requests ask for, in our words and in GenAI's; None if it can't."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    genai: Mapping[str, Any] | None = None
    goal: str = ""
    """Of ours to GenAI's tokens/s, with several in flight."""
    own_goal: str = ""
    """Of a step to one of greedy requests."""


GREEDY = Kind("greedy", genai={}, goal=">= 1")
KINDS = (
    GREEDY,
    Kind(
        "temperature 1",
        {"sampling": SamplingConfig(temperature=1.0, top_p=1.0)},
        {"do_sample": True, "temperature": 1.0},
        ">= 1",
    ),
    Kind(
        "temperature 0.8, top_p 0.95",
        {"sampling": SamplingConfig(temperature=0.8, top_p=0.95)},
        {"do_sample": True, "temperature": 0.8, "top_p": 0.95},
        ">= 2",
        "<= 1.11",
    ),
    Kind("5 likeliest tokens", {"log_probs": True, "top_log_probs": 5}, None, own_goal="<= 1.08"),
    Kind("a JSON schema", {"guide": DecodingGuide(GuideType.JSON_SCHEMA, _SCHEMA)}, None, own_goal="<= 1.11"),
)

Runs = dict[str, list[AloneRun]]


@click.command(help=__doc__)
@click.option("--like", default="qwen2.5-0.5b", show_default=True, help="Shape of the synthetic checkpoint.")
@click.option("--engine", type=click.Path(path_type=Path), help="Engine directory to measure instead.")
@click.option("--in-flight", default="1,64", show_default=True, help="Requests in flight, a list.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--prompt-tokens", default=64, show_default=True)
@click.option("--max-tokens", default=64, show_default=True)
@out_option("sampling")
def main(
    like: str, engine: Path | None, in_flight: str, rounds: int, prompt_tokens: int, max_tokens: int, out: Path
) -> None:
    engine = engine or bench_engine(like, "int8")
    python = shared_environment("genai-venv", ["--no-deps", *_PACKAGES])
    command = [str(python), str(_PEER), str(engine), str(KV_CACHE_TOKENS)]
    prompts = Prompts(Tokenizer.from_file(str(engine / "tokenizer.json")))
    options = EngineOptions("openvino", str(engine), KV_CACHE_TOKENS, kv_cache_reuse=False, itl_bound=0.0)
    figures: list[Figure] = []
    with (
        closing(PeerProcess(command, BENCH_DIRECTORY / "genai.log")) as peer,
        closing(EngineAlone(options)) as alone,
    ):
        for count in map(int, in_flight.split(",")):
            ours: Runs = {kind.name: [] for kind in KINDS}
            theirs: Runs = {kind.name: [] for kind in KINDS if kind.genai is not None}
            for number in range(-1, rounds):
                for kind in KINDS:
                    batch = [ids for _, ids in prompts.next_prompts(count, prompt_tokens)]
                    answers = alone.run(batch, max_tokens, kind.fields)
                    if number >= 0:  # the first round warms both up
                        ours[kind.name].append(answers)
                    if kind.genai is not None:
                        answer = AloneRun(*peer.call((batch, max_tokens, kind.genai)))
                        if number >= 0:
                            theirs[kind.name].append(answer)
                print(f"{count} in flight, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            figures += _figures(ours, theirs, count)
    report(out, figures, {"engine": engine.name})


def _figures(ours: Runs, theirs: Runs, count: int) -> list[Figure]:
    figures = []
    for kind in KINDS:
        if kind.name in theirs:
            pairs = zip(ours[kind.name], theirs[kind.name], strict=True)
            speeds = [own.tokens_per_second / other.tokens_per_second for own, other in pairs]
            goal = kind.goal if count > 1 else GREEDY.goal
            figures.append(Figure(f"tokens/s, {kind.name}, {count} in flight / OpenVINO GenAI", speeds, goal))
        if kind is not GREEDY:
            steps = zip(ours[kind.name], ours[GREEDY.name], strict=True)
            ratios = [_step(own.steps) / _step(greedy.steps) for own, greedy in steps]
            goal = kind.own_goal if count > 1 else ""
            figures.append(Figure(f"median step, {kind.name}, {count} in flight / greedy", ratios, goal))
    return figures


def _step(steps: Sequence[float]) -> float:
    return statistics.median(steps)


if __name__ == "__main__":
    main()
