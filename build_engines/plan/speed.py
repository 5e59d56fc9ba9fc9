"""Predicts the speed of the embedded engine on this machine: a roofline of measured matrix multiplications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from build_engines.kv_cache import token_bytes
from build_engines.manifest import Manifest
from build_engines.plan.fit import Fit
from build_engines.plan.formats import KvFormat, WeightFormat, kv_format, weight_format
from build_engines.plan.machine_speed import MachineSpeed, measure_machine
from build_engines.plan.memory_plan import MemoryPlan
from build_engines.plan.model import read_model
from build_engines.plan.openvino_memory import MAX_NUM_SEQUENCES, MAX_NUM_TOKENS
from build_engines.plan.parameters import ParameterCounts
from build_engines.plan.shape import ModelShape

PROMPT_TOKENS, ANSWER_TOKENS = 64, 64

# Costs that the matrices don't explain, in operations that compute almost nothing (MachineSpeed.operation). Fitted to
# a small trained Llama on two cores of an AMD EPYC 9004; docs/plan.md explains them.
_STEP_OPERATIONS = 20
_LAYER_OPERATIONS = 12
_TOKEN_OPERATIONS = 15
# The sampler reads the logits of a sequence so many times.
_LOGIT_READS = 3


@dataclass(frozen=True)
class Workload:
    """Requests that are always in flight, as many as `sequences`; each ends after `answer` tokens."""

    sequences: int
    prompt: int = PROMPT_TOKENS
    answer: int = ANSWER_TOKENS


@dataclass(frozen=True)
class Step:
    """One step of the engine: all its tokens, and those that are sampled."""

    tokens: int
    sampled: int


@dataclass(frozen=True)
class SpeedModel:
    """The engine of a model in one pair of formats, on a measured machine."""

    shape: ModelShape
    parameters: ParameterCounts
    weights: WeightFormat
    kv: KvFormat
    machine: MachineSpeed

    def tokens_per_second(self, workload: Workload) -> float:
        """Return the output tokens per second, with the prompts of following requests computed in between."""
        steps = _step_counts(workload)
        context = workload.prompt + workload.answer / 2
        seconds = sum(count * self.step_seconds(step, context) for step, count in steps.items())
        return sum(count * step.sampled for step, count in steps.items()) / seconds

    def step_seconds(self, step: Step, context: float) -> float:
        """Return the seconds of a step whose sequences have `context` tokens on average."""
        shape, machine = self.shape, self.machine
        matrices = machine.matrices[self.weights.name]
        bandwidth = machine.bandwidth(self.weights.name)
        output = self.parameters.output or self.parameters.embedding
        cached = self.weights.layers_bytes(self.parameters) + self.weights.table_bytes(output) <= machine.cache_bytes
        seconds = matrices.seconds(self._shared_weights(), step.tokens, cached=cached)
        if experts := shape.experts:
            # Tokens choose experts evenly: with few tokens, some experts aren't read.
            used = min(experts.count, step.tokens * experts.per_token)
            rows = step.tokens * experts.per_token / used
            weights_of_expert = 3 * shape.hidden * experts.inner * experts.layers
            seconds += matrices.seconds(used * weights_of_expert, rows, cached=cached)
        seconds += matrices.seconds(output, step.sampled, cached=cached)
        numbers = step.tokens * shape.layers * (4 * shape.hidden + shape.qkv + shape.feed_forward)
        # Each number between two operations is written and read.
        traffic = 2 * self.weights.rest * numbers
        traffic += step.sampled * (context * token_bytes(shape, self.kv.name) + _LOGIT_READS * 4 * shape.vocab)
        operations = _STEP_OPERATIONS + _LAYER_OPERATIONS * shape.layers + _TOKEN_OPERATIONS * step.sampled
        return seconds + traffic / bandwidth + operations * machine.operation

    def _shared_weights(self) -> int:
        """Return the number of weights in the layers' matrices that every token uses."""
        experts = self.shape.experts
        routed = 3 * self.shape.hidden * experts.inner * experts.count * experts.layers if experts else 0
        return self.parameters.linear - routed


@dataclass(frozen=True)
class SpeedPlan:
    """The predicted speed of each fit of a plan, on this machine: tokens per second in the order of `workloads`."""

    machine: MachineSpeed
    workloads: tuple[Workload, ...]
    of_formats: dict[tuple[str, str], tuple[float, ...]]

    def of(self, fit: Fit) -> tuple[float, ...] | None:
        """Return the fit's tokens per second for each workload, None if it doesn't fit."""
        return self.of_formats.get((fit.weights.name, fit.kv.name))


def predict_engine(directory: Path, manifest: Manifest, machine: MachineSpeed) -> str:
    """Return the predicted speed of an engine of target openvino, as a phrase. Raises BuildError as `read_model`."""
    model = read_model(directory)
    weights = weight_format(manifest.precision, openvino=True)
    kv = kv_format(manifest.kv_cache_precision, openvino=True)
    speed = SpeedModel(model.shape, model.parameters, weights, kv, machine)
    rates = (f"{speed.tokens_per_second(Workload(count)):,.1f} at {count}" for count in (1, MAX_NUM_SEQUENCES))
    return (
        f"tokens/s by requests in flight: {' and '.join(rates)} (prompts of {PROMPT_TOKENS} tokens, answers of "
        f"{ANSWER_TOKENS})"
    )


def plan_speed(plan: MemoryPlan, prompt: int, answer: int) -> SpeedPlan:
    """Measure this machine, and predict the speed of what fits, with 1 request in flight and with many.

    Raises BuildError as `measure_machine` does.
    """
    fits = [fit for fit in plan.fits if fit.fits]
    machine = measure_machine(fit.weights.name for fit in fits)
    many = plan.request.max_num_sequences or MAX_NUM_SEQUENCES
    workloads = tuple(Workload(count, prompt, answer) for count in dict.fromkeys((1, many)))
    speeds = {}
    for fit in fits:
        model = SpeedModel(plan.model.shape, plan.model.parameters, fit.weights, fit.kv, machine)
        speeds[fit.weights.name, fit.kv.name] = tuple(model.tokens_per_second(workload) for workload in workloads)
    return SpeedPlan(machine, workloads, speeds)


@cache
def _step_counts(workload: Workload) -> Counter[Step]:
    return Counter(scheduled_steps(workload))


def scheduled_steps(workload: Workload, max_tokens: int = MAX_NUM_TOKENS) -> Iterator[Step]:
    """Yield the steps of the engine's scheduler in its steady state, for as long as about two answers take.

    A step takes one token of each sequence that generates, then as many tokens of prompts as still fit.

    >>> [(step.tokens, step.sampled) for step in scheduled_steps(Workload(1, 100, 3))][:4]
    [(96, 0), (4, 1), (1, 1), (1, 1)]
    """
    # More sequences than tokens of a step don't change the steps.
    sequences = min(workload.sequences, 2 * max_tokens)
    prompts = [workload.prompt] * sequences
    # Requests are at different places of their answers from the start.
    answers = [workload.answer * (place + 1) // sequences or 1 for place in range(sequences)]
    total = sequences * (workload.prompt + workload.answer)
    skipped = total if sequences > 1 else 0
    done, end = 0, skipped + 2 * total
    while done < end:
        generating = [place for place, left in enumerate(prompts) if not left][:max_tokens]
        room = max_tokens - len(generating)
        sampled = list(generating)
        for place in sorted((place for place, left in enumerate(prompts) if left), key=lambda index: prompts[index]):
            part = min(room, prompts[place])
            prompts[place] -= part
            room -= part
            if part and not prompts[place]:
                sampled.append(place)
        step = Step(max_tokens - room, len(sampled))
        if done >= skipped:
            yield step
        done += step.tokens
        for place in sampled:
            answers[place] -= 1
            if not answers[place]:
                prompts[place], answers[place] = workload.prompt, workload.answer
