"""Plans the memory of a model in each precision, and recommends what to build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from build_engines.checkpoints.openvino_ir import other_precision
from build_engines.cpu_precision import choose_precision, find_processor
from build_engines.errors import invalid
from build_engines.plan import gpu_memory, openvino_memory
from build_engines.plan.fit import NOT_BUILT, Choices, Demand, Fit, Refusal, choose_fit
from build_engines.plan.footprint import Footprint
from build_engines.plan.formats import (
    GPU_KV,
    GPU_WEIGHTS,
    OPENVINO_KV,
    OPENVINO_WEIGHTS,
    KvFormat,
    WeightFormat,
)
from build_engines.plan.gpu_memory import Split
from build_engines.plan.model import PlannedModel
from build_engines.plan.size import format_size
from build_engines.plan.support_matrix import TargetSupport, target_support

DEFAULT_LENGTH = 8192
"""Default tokens of a sequence: models are seldom served with their longest."""

_MAX_GPUS = 64


@dataclass(frozen=True)
class PlanRequest:
    """The device, target and formats of a plan.

    `memory` is the bytes of each of `devices`; with `sm` None, every format is supported. `length` is the tokens of
    prompt and answer, None for the default; `max_num_sequences` is the concurrent sequences, None for as many as fit.
    """

    memory: int
    device: str
    devices: int = 1
    sm: int | None = None
    target: str = "tensorrt-llm"
    weights: tuple[WeightFormat, ...] = ()
    kv: tuple[KvFormat, ...] = ()
    length: int | None = None
    max_num_sequences: int | None = None

    @property
    def is_openvino(self) -> bool:
        return self.target == "openvino"


@dataclass(frozen=True)
class MemoryPlan:
    """All fits in order of preference, the first that fits, or `advice` if none does. `notes` are about the model."""

    model: PlannedModel
    request: PlanRequest
    length: int
    fits: tuple[Fit, ...]
    recommended: Fit | None
    advice: str | None
    notes: tuple[str, ...] = ()

    @property
    def max_attention_window(self) -> tuple[int, ...]:
        """TensorRT-LLM's `max_attention_window_size`, a pattern that repeats over the layers; () without windows."""
        windows = self.model.shape.windows
        if self.request.is_openvino or all(window is None or window >= self.length for window in windows):
            return ()
        sizes = tuple(self.length if window is None else min(window, self.length) for window in windows)
        for period in range(1, len(sizes) + 1):
            if all(size == sizes[at % period] for at, size in enumerate(sizes)):
                break
        return sizes[:period]


def make_plan(model: PlannedModel, request: PlanRequest) -> MemoryPlan:
    """Return the plan of `model` for `request`, whose formats default to those of the target.

    Raises BuildError: `invalid_parameter` for a length above the model's and a precision that its weights, which are
    taken as they are, don't have, `unsupported_architecture` if the target
    doesn't support the model.
    """
    longest = model.shape.positions
    if request.length is not None and request.length > longest:
        raise invalid(
            f"{model.where} supports {longest:,} tokens at most, so --max-seq-len {request.length} is too high; "
            "lower it."
        )
    length = request.length or min(longest, DEFAULT_LENGTH)
    builder = target_support(request.target, model, request.device, request.sm)
    if model.ready and (others := {fmt.name for fmt in request.weights} - {model.ready.name}):
        raise other_precision(model.where, model.ready.name, min(others))
    if model.ready:
        request = replace(request, weights=(model.ready,))
    request = replace(
        request, weights=request.weights or _default_weights(request, builder), kv=request.kv or _default_kv(request)
    )
    choose = partial(_choose_fit, model, length, builder)
    fits = tuple(choose(request, weights, kv) for weights in request.weights for kv in request.kv)
    # On a processor, the precision that a build chooses there, if it was not left out.
    suited = choose_precision(find_processor()).precision if request.is_openvino else None
    recommended = next((fit for fit in sorted(fits, key=lambda fit: fit.weights.name != suited) if fit.fits), None)
    advice = None if recommended else _advice(choose, length, request, fits, model.ready)
    return MemoryPlan(model, request, length, fits, recommended, advice, (*model.notes, *builder.notes))


def _default_weights(wish: PlanRequest, builder: TargetSupport) -> tuple[WeightFormat, ...]:
    if wish.is_openvino:
        return tuple(OPENVINO_WEIGHTS[name] for name in ("bf16", "int8", "int4"))
    if builder.kept is not None:
        return (builder.kept,)
    names = ["bf16", "fp8", "int8_wo", "int4_awq"]
    if wish.target == "llmapi":
        names.remove("int8_wo")
    if wish.sm is not None and wish.sm >= GPU_WEIGHTS["nvfp4"].min_sm:
        names.append("nvfp4")
    return tuple(GPU_WEIGHTS[name] for name in names)


def _default_kv(wish: PlanRequest) -> tuple[KvFormat, ...]:
    if wish.is_openvino:
        return tuple(OPENVINO_KV[name] for name in ("u8", "bf16"))
    return tuple(GPU_KV[name] for name in (("bf16", "fp8") if wish.target == "llmapi" else ("bf16", "fp8", "int8")))


Chooser = Callable[[PlanRequest, WeightFormat, KvFormat], Fit]


def _choose_fit(
    model: PlannedModel, length: int, builder: TargetSupport, wish: PlanRequest, weights: WeightFormat, kv: KvFormat
) -> Fit:
    """Return the fit of given formats for the model and length."""
    shape, parameters = model.shape, model.parameters

    def embedded_footprint(split: Split, batch: int, tokens: int) -> Footprint:
        return openvino_memory.footprint(shape, parameters, weights, kv, max_num_sequences=batch, max_num_tokens=tokens)

    def gpu_footprint(split: Split, batch: int, tokens: int) -> Footprint:
        return gpu_memory.footprint(shape, parameters, weights, kv, split, max_batch_size=batch, max_num_tokens=tokens)

    asked = Demand(wish.memory, length, wish.max_num_sequences)
    if wish.is_openvino:
        choices = Choices([Split()], openvino_memory.BATCH_SIZES, (openvino_memory.MAX_NUM_TOKENS,))
        return choose_fit(weights, kv, choices, embedded_footprint, asked)
    choices = _choices(gpu_memory.splits(shape, wish.devices), wish, builder, weights, kv)
    return choose_fit(weights, kv, choices, gpu_footprint, asked)


def _choices(
    splits: list[Split], wish: PlanRequest, builder: TargetSupport, weights: WeightFormat, kv: KvFormat
) -> Choices:
    """Return the splits that the target builds, or all of them with a refusal if it builds none."""
    for fmt in (weights, kv):
        if wish.sm is not None and fmt.min_sm > wish.sm:
            reason = f"{wish.device} has compute capability {wish.sm / 10:.1f}, and {fmt.name} needs"
            reason += f" {fmt.min_sm / 10:.1f}"
            return Choices(splits, refusal=Refusal(f"no {fmt.name} here", reason))
    verdicts = {split: builder.check(weights, kv, split) for split in splits}
    built = [split for split, verdict in verdicts.items() if verdict.reason is None]
    if not built:
        reason = next(iter(verdicts.values())).reason or ""
        return Choices(splits, refusal=Refusal(NOT_BUILT, reason))
    return Choices(built, notes=verdicts[built[0]].notes)


def _advice(choose: Chooser, length: int, wish: PlanRequest, fits: tuple[Fit, ...], ready: WeightFormat | None) -> str:
    """Return a sentence with the missing memory and each single change that is sufficient."""
    able = [fit for fit in fits if fit.refusal is None]
    ways = []
    if other := _other_format(choose, wish, ready):
        ways.append(f"--precision {other.weights.name} --kv-cache-precision {other.kv.name}")
    if not wish.is_openvino and (more := _more_devices(choose, wish)):
        ways.append(f"--gpus {more.split.gpus} ({more.weights.name} weights)")
    if longest := max((fit.longest(length) for fit in able), default=0):
        ways.append(f"--max-seq-len {longest}")
    if fewer := max((fit.sequences for fit in able), default=0):
        ways.append(f"--max-num-sequences {fewer}")
    problem = _shortfall(wish, length, able) if able else f"Nothing fits: {fits[0].reason}"
    return f"{problem}; it would fit with {_either(ways)}." if ways else f"{problem}; use a smaller model."


def _shortfall(wish: PlanRequest, length: int, able: list[Fit]) -> str:
    least = min(able, key=lambda fit: fit.needed)
    place = "" if wish.is_openvino else " on each GPU" if wish.devices > 1 else " on the GPU"
    what = f"1 sequence of {length:,} tokens needs"
    if least.wanted > 1:
        what = f"{least.wanted:,} sequences of {length:,} tokens need"
    return (
        f"Nothing fits: {what} at least {format_size(least.needed)}{place} ({least.weights.name} weights, "
        f"{least.kv.name} KV cache), and {wish.device} has {format_size(wish.memory)}"
    )


def _either(ways: list[str]) -> str:
    return ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])} or {ways[-1]}"


def _other_format(choose: Chooser, wish: PlanRequest, ready: WeightFormat | None) -> Fit | None:
    """Return the first format that fits, most precise first; of the weights only `ready` if that is given."""
    weights, kv = (OPENVINO_WEIGHTS, OPENVINO_KV) if wish.is_openvino else (GPU_WEIGHTS, GPU_KV)
    fits = (choose(wish, weight, cache) for weight in ([ready] if ready else weights.values()) for cache in kv.values())
    return next((fit for fit in fits if fit.fits), None)


def _more_devices(choose: Chooser, wish: PlanRequest) -> Fit | None:
    """Return the fit with the fewest GPUs for one of the requested formats."""
    many = replace(wish, devices=_MAX_GPUS)
    fits = [choose(many, weights, kv) for weights in wish.weights for kv in wish.kv]
    return min((fit for fit in fits if fit.fits), key=lambda fit: fit.split.gpus, default=None)
