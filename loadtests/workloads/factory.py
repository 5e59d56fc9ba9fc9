"""Creates a workload from its spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtests.errors import LoadError
from loadtests.workloads.distributions import Distribution, file_and_column, parse_distribution, read_numbers
from loadtests.workloads.interface import Workload
from loadtests.workloads.prompt_file import PromptFile
from loadtests.workloads.scripted_conversation import ClientCancellation
from loadtests.workloads.spec import WorkloadSpec
from loadtests.workloads.synthetic import SyntheticWorkload
from loadtests.workloads.text_generator import EstimatedTextGenerator, TextGenerator
from loadtests.workloads.texts import SyntheticTexts, TextFile, TextsWorkload
from loadtests.workloads.trace_formats import read_trace
from loadtests.workloads.trace_replay import TraceReplay

_ALL = {"output_tokens", "max_output_tokens", "prompt_format", "cancel_fraction", "cancel_after"}
_SYNTHETIC = {"max_input_tokens", "tokenizer", "tokens_per_word"}
_PREFIX = {"prefix_tokens", "prefix_count", "prefix_fraction"}
_TRACE = {"trace", "trace_format", "trace_start", "input_scale", "output_scale", "block_tokens"}
# Fields that apply to each source of prompts. None is silently ignored.
_USED = {
    "made prompts": _ALL | _SYNTHETIC | _PREFIX | {"input_tokens", "turns", "turn_tokens", "think_time"},
    "a file of prompts": _ALL | {"prompts", "order", "repeat", "think_time"},
    "a trace": (_ALL | _SYNTHETIC | _TRACE | {"repeat"}) - {"output_tokens"},
}
_ENCODER = {"texts_per_request", "cancel_fraction", "cancel_after"}
_ENCODER_USED = {
    "made texts": _ENCODER | {"text_tokens", "query_tokens", "tokenizer", "tokens_per_word"},
    "a file of texts": _ENCODER | {"prompts", "repeat"},
}


def make_workload(spec: WorkloadSpec, files: Mapping[str, bytes], seed: int) -> Workload:
    """Create the sessions of `spec` from `files`, as `load_files` returned them; validate everything.

    A session's number and the seed determine everything about it, in any process and order. The `Session.due` of a
    trace is in the trace's own seconds: divide it by the arrivals' speed to replay it faster. Raises LoadError.
    """
    _check_fields(spec)

    def numbers(field: str) -> Distribution:
        def observed(reference: str) -> Sequence[float]:
            return read_numbers(files[file_and_column(reference)[0]], reference, field)

        return parse_distribution(getattr(spec, field), field, observed)

    cancellation = ClientCancellation(spec.cancel_fraction, numbers("cancel_after"))
    if spec.task != "generate":
        rerank = spec.task == "rerank"
        source = (
            TextFile(files[spec.prompts], spec.prompts, rerank, spec.repeat is not False)
            if spec.prompts is not None
            else SyntheticTexts(_text_generator(spec, files), numbers("text_tokens"), numbers("query_tokens"))
        )
        return TextsWorkload(source, numbers("texts_per_request"), rerank, cancellation, seed)
    if spec.prompts is not None:
        output_tokens, think_time = numbers("output_tokens"), numbers("think_time")
        return PromptFile(files[spec.prompts], spec, output_tokens, think_time, cancellation, seed)
    texts = _text_generator(spec, files)
    if spec.trace is not None:
        trace = read_trace(files[spec.trace], spec.trace, spec.trace_format)
        return TraceReplay(trace, spec, texts, cancellation, seed)
    return SyntheticWorkload(spec, numbers, texts, cancellation, seed)


def _text_generator(spec: WorkloadSpec, files: Mapping[str, bytes]) -> TextGenerator:
    if spec.tokenizer is None:
        return EstimatedTextGenerator(spec.tokens_per_word)
    from loadtests.workloads.exact_text import ExactTextGenerator  # slow to import

    return ExactTextGenerator(files[spec.tokenizer], spec.tokenizer)


def _check_fields(spec: WorkloadSpec) -> None:
    """Refuse options that have no effect or are impossible."""
    if spec.prompts is not None and spec.trace is not None:
        raise _invalid_workload("both prompts and trace are given; leave one of them out")
    source, used = _source(spec), used_fields(spec)
    for name, field in WorkloadSpec.model_fields.items():
        if name not in used and getattr(spec, name) != field.default:
            raise _invalid_workload(f"{name} has no effect on {source}; leave it out")
    if spec.max_input_tokens is not None and spec.prefix_tokens >= spec.max_input_tokens:
        raise _invalid_workload(
            f"prefix_tokens {spec.prefix_tokens} leaves nothing of max_input_tokens {spec.max_input_tokens}"
        )
    if spec.tokenizer is not None and spec.tokens_per_word != WorkloadSpec.model_fields["tokens_per_word"].default:
        raise _invalid_workload("tokens_per_word has no effect with a tokenizer; leave one of them out")


def used_fields(spec: WorkloadSpec) -> set[str]:
    """Return the fields that have an effect on the spec's task and source."""
    source = _source(spec)
    used = {"task", *(_USED[source] if spec.task == "generate" else _ENCODER_USED[source])}
    if spec.task != "rerank":
        used.discard("query_tokens")
    elif spec.prompts is not None:
        used.discard("texts_per_request")  # a line of the file has all documents of a request
    return used


def _source(spec: WorkloadSpec) -> str:
    if spec.task != "generate":
        return "a file of texts" if spec.prompts is not None else "made texts"
    return "a file of prompts" if spec.prompts is not None else "a trace" if spec.trace is not None else "made prompts"


def _invalid_workload(why: str) -> LoadError:
    return LoadError(f"the workload can't be made: {why}", "workload_invalid")
