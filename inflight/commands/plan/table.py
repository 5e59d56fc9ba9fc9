"""A memory plan as text: a table and a recommendation."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from build_engines.cpu_precision import find_processor
from build_engines.encoders.memory import EncoderPlan
from build_engines.plan.fit import NOT_BUILT, Fit
from build_engines.plan.memory_plan import MemoryPlan
from build_engines.plan.report import table_lengths
from build_engines.plan.size import format_size
from build_engines.plan.speed import SpeedPlan

_PIPE_WIDTH = 120


def show_plan(plan: MemoryPlan, speed: SpeedPlan | None = None) -> None:
    """Print the plan to standard output; in a pipe without colours and as wide as the table."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    for line in _head(plan):
        console.print(line, markup=False, soft_wrap=True)
    console.print(_table(plan, speed))
    if speed:
        console.print(_assumptions(speed), markup=False, soft_wrap=True)
    for line in _end(plan):
        console.print(line, markup=False, soft_wrap=True)


def show_encoder_plan(plan: EncoderPlan) -> None:
    """Print the plan of a model that is served in micro-batches to standard output."""
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("precision")
    for name in ("weights", "micro-batch", "other", "total"):
        table.add_column(name, justify="right")
    table.add_column("", no_wrap=True)
    for fit in plan.fits:
        sizes = (fit.weights, fit.activations, fit.overhead, fit.needed)
        table.add_row(fit.precision, *map(format_size, sizes), "" if fit.fits else "does not fit")
    speech = plan.task == "transcribe"
    most = "blocks of up to 30 s" if speech else f"texts of up to {plan.max_seq_len:,} tokens"
    batches = f"{plan.batch_tokens // plan.max_seq_len} blocks" if speech else f"{plan.batch_tokens:,} padded tokens"
    head = (
        f"{plan.where}: {plan.architecture}, {plan.task}, {plan.parameters:,} parameters (counted by "
        f"{plan.counted_from}), {most}.",
        f"On {plan.device} with {format_size(plan.memory)}: micro-batches of up to {batches}, no KV cache.",
    )
    for line in head:
        console.print(line, markup=False, soft_wrap=True)
    console.print(table)
    best = plan.recommended
    end = f"Recommended: {best.precision} weights." if best else "Nothing fits; use a smaller model or --max-seq-len."
    console.print(end, markup=False, soft_wrap=True)


def _head(plan: MemoryPlan) -> list[str]:
    model, needs, shape = plan.model, plan.request, plan.model.shape
    heads = f"{shape.heads} heads, {shape.kv_heads} for keys and values" if shape.kv_heads != shape.heads else ""
    experts = f", {shape.experts.count} experts" if shape.experts else ""
    parameters = f"{model.parameters.total:,} parameters (counted by {model.counted_from})"
    layers = f"{shape.layers} layers, {heads or f'{shape.heads} heads'} of size {shape.head_dim}{experts}"
    count = f"{needs.devices} x " if needs.devices > 1 else ""
    capability = f", compute capability {needs.sm / 10:.1f}" if needs.sm else ""
    return [
        f"{model.where}: {shape.architecture}, {parameters}, {layers}.",
        *(f"Note: {note}" for note in plan.notes),
        f"On {count}{needs.device} with {format_size(needs.memory)}{capability}: sequences of {plan.length:,} tokens"
        + (f", {needs.max_num_sequences:,} concurrent." if needs.max_num_sequences else "."),
    ]


def _assumptions(speed: SpeedPlan) -> str:
    first = speed.workloads[0]
    return (
        f"Predicted for {find_processor()}; measured: {speed.machine}. tokens/s are output tokens with so many "
        f"requests in flight, prompts of {first.prompt} tokens and answers of {first.answer}."
    )


def _table(plan: MemoryPlan, speed: SpeedPlan | None) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("precision")
    table.add_column("KV precision")
    if not plan.request.is_openvino:
        table.add_column("TP x PP", justify="right")
    for name in ("weights", "KV per token", "other", "KV cache", "KV tokens", "concurrent"):
        table.add_column(name, justify="right")
    for workload in speed.workloads if speed else ():
        table.add_column(f"tokens/s at {workload.sequences}", justify="right")
    table.add_column("", no_wrap=True)
    for fit in plan.fits:
        table.add_row(*_row(plan, fit, speed))
    return table


def _row(plan: MemoryPlan, fit: Fit, speed: SpeedPlan | None) -> list[str]:
    split = [] if plan.request.is_openvino else [f"{fit.split.tensor} x {fit.split.pipeline}"]
    names = [fit.weights.name, fit.kv.name, *split]
    workloads = speed.workloads if speed else ()
    if fit.refusal:
        return [*names, *[""] * (6 + len(workloads)), fit.refusal.label]
    rates = (speed.of(fit) if speed else None) or ()
    footprint = fit.footprint
    return [
        *names,
        format_size(footprint.weights),
        format_size(footprint.kv_token),
        format_size(footprint.fixed - footprint.weights),
        format_size(fit.kv_bytes) if fit.kv_bytes else "none",
        f"{fit.kv_tokens:,}",
        f"{fit.sequences:,}",
        *([f"{rate:,.1f}" for rate in rates] or [""] * len(workloads)),
        "" if fit.fits else f"needs {format_size(fit.needed)}",
    ]


def _end(plan: MemoryPlan) -> list[str]:
    best = plan.recommended
    refusals = dict.fromkeys(fit.refusal for fit in plan.fits if fit.refusal and fit.refusal.label == NOT_BUILT)
    reasons = [f"Not built: {refusal.reason}." for refusal in refusals if refusal.reason not in (plan.advice or "")]
    if best is None:
        return [*reasons, plan.advice or ""]
    at_once = ", ".join(
        f"{best.footprint.sequences(best.memory, length):,} of {length:,} tokens" for length in table_lengths(plan)
    )
    what = f"{best.weights.name} weights and {best.kv.name} KV cache"
    lines = [*reasons, f"Recommended: {what}; {_settings(plan, best)}.", *best.notes]
    if plan.max_attention_window:
        windows = ",".join(str(window) for window in plan.max_attention_window)
        lines.append(f"The model uses sliding-window attention: set max_attention_window_size to {windows}.")
    return [*lines, f"Maximum concurrent sequences: {at_once}."]


def _settings(plan: MemoryPlan, best: Fit) -> str:
    if plan.request.is_openvino:
        tokens = min(best.kv_tokens, best.max_batch_size * -(-best.length // 32) * 32)
        return (
            f"serve with --kv-cache-tokens {tokens} --max-num-sequences {best.max_batch_size}, "
            f"built with --max-seq-len {best.length}"
        )
    gpus = "1 GPU" if best.split.gpus == 1 else f"{best.split.gpus} GPUs"
    return (
        f"{gpus} (TP {best.split.tensor}, PP {best.split.pipeline}), max_batch_size {best.max_batch_size}, "
        f"max_num_tokens {best.max_num_tokens}, max_seq_len {best.length}"
    )
