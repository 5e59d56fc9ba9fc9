"""Creates a workload from its spec, or synthetic prompts and conversations, each different, with random lengths."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from loadtests.errors import LoadError
from loadtests.workloads.distributions import Distribution, file_and_column, parse_distribution, read_numbers
from loadtests.workloads.interface import Workload
from loadtests.workloads.prompt_file import PromptFile
from loadtests.workloads.scripted_conversation import ClientCancellation, ScriptedConversation, Turn, user
from loadtests.workloads.spec import WorkloadSpec
from loadtests.workloads.text_generator import EstimatedTextGenerator, TextGenerator, prompt_text
from loadtests.workloads.texts import SyntheticTexts, TextFile, TextsWorkload
from loadtests.workloads.trace_formats import read_trace
from loadtests.workloads.trace_replay import TraceReplay

_PREFIXES_KEPT = 256
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
        source = (
            TextFile(files[spec.prompts], spec.prompts, spec.task, spec.repeat is not False)
            if spec.prompts is not None
            else SyntheticTexts(_text_generator(spec, files), numbers("text_tokens"), numbers("query_tokens"))
        )
        has_queries = spec.task in ("rerank", "transcribe")
        return TextsWorkload(source, numbers("texts_per_request"), has_queries, cancellation, seed)
    if spec.prompts is not None:
        output_tokens, think_time = numbers("output_tokens"), numbers("think_time")
        return PromptFile(files[spec.prompts], spec, output_tokens, think_time, cancellation, seed)
    texts = _text_generator(spec, files)
    if spec.trace is not None:
        trace = read_trace(files[spec.trace], spec.trace, spec.trace_format)
        return TraceReplay(trace, spec, texts, cancellation, seed)
    return SyntheticWorkload(spec, numbers, texts, cancellation, seed)


class SyntheticWorkload:
    """Sessions of synthetic prompts, without end; `numbers` returns the distribution of a field of `spec`.

    `max_input_tokens` limits a session's tokens as requested: answers count as their maximum.
    """

    def __init__(
        self, spec: WorkloadSpec, numbers: Callable[[str], Distribution], texts: TextGenerator,
        cancellation: ClientCancellation, seed: int,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._input_tokens = numbers("input_tokens")
        self._output_tokens = numbers("output_tokens").at_most(spec.max_output_tokens)
        self._turn_tokens = self._input_tokens if spec.turn_tokens is None else numbers("turn_tokens")
        self._turns, self._think_time = numbers("turns"), numbers("think_time")
        self._texts = texts
        self._cancellation = cancellation
        self._seed = seed
        self._prefix = lru_cache(_PREFIXES_KEPT)(self._make_prefix)

    def session(self, number: int) -> ScriptedConversation:
        spec, source = self._spec, random.Random(f"{self._seed}/{number}")
        has_prefix = spec.prefix_tokens and source.random() < spec.prefix_fraction
        prefix = self._prefix(source.randrange(spec.prefix_count)) if has_prefix else ""
        held = spec.prefix_tokens if has_prefix else 0
        turns: list[Turn] = []
        for turn in range(self._turns.draw_integer(source)):
            tokens = (self._turn_tokens if turn else self._input_tokens).draw_integer(source)
            if spec.max_input_tokens is not None:
                if turn and held + tokens > spec.max_input_tokens:
                    break
                tokens = min(tokens, spec.max_input_tokens - held)
            if turn:
                text = self._texts.piece(tokens, source, first=True)
            else:
                text = prompt_text(self._texts, tokens, source, prefix, held)
            max_tokens = self._output_tokens.draw_integer(source)
            think = self._think_time.draw_number(source) if turn else 0.0
            turns.append(Turn(user(text), max_tokens, think, self._cancellation.draw(source)))
            held += tokens + max_tokens
        return ScriptedConversation(number, turns, chat=spec.prompt_format == "messages")

    def _make_prefix(self, number: int) -> str:
        source = random.Random(f"{self._seed}/prefix/{number}")
        return self._texts.piece(self._spec.prefix_tokens, source, first=True)


def _text_generator(spec: WorkloadSpec, files: Mapping[str, bytes]) -> TextGenerator:
    if spec.tokenizer is None:
        return EstimatedTextGenerator(spec.tokens_per_word)
    from loadtests.workloads.exact_text import ExactTextGenerator  # slow to import

    return ExactTextGenerator(files[spec.tokenizer], spec.tokenizer)


def _check_fields(spec: WorkloadSpec) -> None:
    """Refuse options that have no effect or are impossible."""
    if spec.prompts is not None and spec.trace is not None:
        raise _invalid_workload("both prompts and trace are given; leave one of them out")
    if spec.task == "transcribe" and spec.prompts is None:
        raise _invalid_workload("audio is not made; name a file of JSON Lines with paths, as `audio`: --prompts FILE")
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
    if spec.task in ("rerank", "transcribe") and spec.prompts is not None:
        used.discard("texts_per_request")  # a line of the file is a request
    return used


def _source(spec: WorkloadSpec) -> str:
    if spec.task != "generate":
        return "a file of texts" if spec.prompts is not None else "made texts"
    return "a file of prompts" if spec.prompts is not None else "a trace" if spec.trace is not None else "made prompts"


def _invalid_workload(why: str) -> LoadError:
    return LoadError(f"the workload can't be made: {why}", "workload_invalid")
