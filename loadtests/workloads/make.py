"""A workload from what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtests.ask import Workload
from loadtests.errors import LoadError
from loadtests.workloads.dialogue import Leaving
from loadtests.workloads.lengths import Distribution, distribution
from loadtests.workloads.observed import file_and_column, observed
from loadtests.workloads.prompt_file import Manner, PromptFile
from loadtests.workloads.replay import Fit, Replay
from loadtests.workloads.spec import WorkloadSpec
from loadtests.workloads.synthetic import Prefixes, Synthetic
from loadtests.workloads.trace_rows import read_trace
from loadtests.workloads.words import EstimatedTexts, Texts

_ALL = {"output_tokens", "max_output_tokens", "form", "cancel_share", "cancel_after"}
_MADE = {"max_input_tokens", "tokenizer", "tokens_per_word"}
_PREFIX = {"prefix_tokens", "prefix_count", "prefix_share"}
_TRACE = {"trace", "trace_format", "trace_start", "input_scale", "output_scale", "block_tokens"}
# Which fields say something for each source of prompts. None is passed over in silence.
_USED = {
    "made prompts": _ALL | _MADE | _PREFIX | {"input_tokens", "turns", "turn_tokens", "think"},
    "a file of prompts": _ALL | {"prompts", "order", "repeat", "think"},
    "a trace": (_ALL | _MADE | _TRACE | {"repeat"}) - {"output_tokens"},
}


def make_workload(spec: WorkloadSpec, files: Mapping[str, bytes], seed: int) -> Workload:
    """The sessions that `spec` asks for, out of `files` as `load_files` gave them; checked as a whole.

    A session's number and the seed decide everything about it, in any process and order. A trace's `Session.due` is in
    the trace's own seconds: to replay it faster is to divide them by the arrivals' speed. Raises LoadError.
    """
    _check_fields(spec)
    numbers = _Numbers(spec, files)
    leaving = Leaving(spec.cancel_share, numbers.of("cancel_after"))
    if spec.prompts is not None:
        manner = Manner(
            numbers.of("output_tokens"), numbers.of("think"), leaving, spec.form, spec.max_output_tokens,
            spec.order == "shuffled", spec.repeat is not False,
        )  # fmt: skip
        return PromptFile(files[spec.prompts], spec.prompts, manner, seed)
    texts = _texts(spec, files)
    chat = spec.form == "messages"
    if spec.trace is not None:
        trace = read_trace(files[spec.trace], spec.trace, spec.trace_format)
        fit = Fit(spec.input_scale, spec.output_scale, spec.max_input_tokens, spec.max_output_tokens, spec.block_tokens)
        return Replay(trace, spec.trace, fit, spec.trace_start, spec.repeat is True, texts, leaving, chat, seed)
    return Synthetic(
        input_tokens=numbers.of("input_tokens"),
        output_tokens=numbers.of("output_tokens", spec.max_output_tokens),
        turn_tokens=numbers.of("turn_tokens" if spec.turn_tokens is not None else "input_tokens"),
        turns=numbers.of("turns"),
        think=numbers.of("think"),
        leaving=leaving,
        prefixes=Prefixes(spec.prefix_tokens, spec.prefix_count, spec.prefix_share, texts, seed),
        texts=texts,
        chat=chat,
        longest=spec.max_input_tokens,
        seed=seed,
    )


class _Numbers:
    """The distributions that a spec's fields name."""

    def __init__(self, spec: WorkloadSpec, files: Mapping[str, bytes]) -> None:
        self._spec = spec
        self._files = files

    def of(self, field: str, most: int | None = None) -> Distribution:
        def seen(reference: str) -> Sequence[float]:
            return observed(self._files[file_and_column(reference)[0]], reference, field)

        found = distribution(getattr(self._spec, field), field, seen)
        return found if most is None else found.at_most(most)


def _texts(spec: WorkloadSpec, files: Mapping[str, bytes]) -> Texts:
    if spec.tokenizer is None:
        return EstimatedTexts(spec.tokens_per_word)
    from loadtests.workloads.exact import ExactTexts  # the library takes a while to load

    return ExactTexts(files[spec.tokenizer], spec.tokenizer)


def _check_fields(spec: WorkloadSpec) -> None:
    """Refuse what would have no effect, or can't be."""
    if spec.prompts is not None and spec.trace is not None:
        raise _refused("both prompts and trace are given; a workload has one source")
    source = (
        "a file of prompts" if spec.prompts is not None else "a trace" if spec.trace is not None else "made prompts"
    )
    for name, field in WorkloadSpec.model_fields.items():
        if name not in _USED[source] and getattr(spec, name) != field.default:
            raise _refused(f"{name} has no effect on {source}; leave it out")
    if spec.max_input_tokens is not None and spec.prefix_tokens >= spec.max_input_tokens:
        raise _refused(f"prefix_tokens {spec.prefix_tokens} leaves nothing of max_input_tokens {spec.max_input_tokens}")
    if spec.tokenizer is not None and spec.tokens_per_word != WorkloadSpec.model_fields["tokens_per_word"].default:
        raise _refused("tokens_per_word has no effect with a tokenizer; leave one of them out")


def _refused(why: str) -> LoadError:
    return LoadError(f"the workload can't be made: {why}", "workload_invalid")
