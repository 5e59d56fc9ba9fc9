"""Evaluates an audit: MLPerf's compliance tests against caching and cut answers, as far as a client can see them.

https://github.com/mlcommons/inference/tree/master/compliance: TEST04 sends the same sample again, TEST06 looks at first
tokens, ends and lengths, TEST09 at the mean length of answers. MLPerf has a server's own log of token ids; a client has
its responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtests.analysis.columns import UNKNOWN, Columns, mean_value
from loadtests.analysis.comparison.side import MIN_SAMPLES
from loadtests.analysis.run_data import RunData
from loadtests.analysis.summary import AuditCheck
from loadtests.errors import LoadError
from loadtests.json_files import read_objects
from loadtests.record import RequestOutcome
from loadtests.run_directory import RunDirectory

AUDIT = "audit"
"""The directory of an audit, in that of its run."""
_MARGIN = 0.1
"""How much faster a repeated sample may be, and how far lengths may be from the reference, relative."""
_MAX_SILENT = 1
"""Tokens without text at the end of an answer: its end-of-sequence token."""


@dataclass(frozen=True)
class AnswerFacts:
    """What was seen of one answer; None if the server does not show it.

    `counted_tokens` is the number of token ids, or log-probabilities, in its responses; `silent_tokens` those of the
    last responses, without text.
    """

    first_token_repeated: bool
    reported_tokens: int | None
    counted_tokens: int | None
    silent_tokens: int | None


def answers_file(run: RunDirectory) -> Path:
    return run.path / AUDIT / "answers.jsonl"


def evaluate_audit(run: RunDirectory, data: RunData) -> tuple[AuditCheck, ...]:
    """Return the checks of the run's audit; none without one. Raises LoadError `run_damaged` for a damaged file."""
    if not answers_file(run).exists():
        return ()
    directory = RunDirectory(run.path / AUDIT)
    try:
        facts = [AnswerFacts(**values) for _, values in read_objects(answers_file(run))]
    except TypeError as error:
        raise LoadError(f"{answers_file(run)} is not the file of an audit: {error}", "run_damaged") from None
    reference = directory.metadata().get("reference_tokens")
    return (
        _same_sample(data, RunData.read(directory)),
        *_answers(facts, data.measured_columns),
        _mean_length(data, float(reference) if isinstance(reference, int | float) else None),
    )


def _same_sample(data: RunData, repeated: RunData) -> AuditCheck:
    """TEST04: the same sample again may be at most 10% faster."""
    test, name = "TEST04", "the same sample again"
    sides = [_Service.of(run) for run in (data, repeated)]
    if any(side is None for side in sides):
        note = f"fewer than {MIN_SAMPLES} requests were completed; make a longer run"
        return AuditCheck(test, name, None, note=note)
    varied, same = (side for side in sides if side is not None)
    for what, own, other in (
        ("prompts", varied.input_tokens, same.input_tokens),
        ("answers", varied.output_tokens, same.output_tokens),
    ):
        if own and other and abs(other / own - 1) > _MARGIN:
            note = f"{what} have {own:.0f} tokens on average, and {other:.0f} in the sample; use constant lengths"
            return AuditCheck(test, name, None, note=note)
    if data.measured_columns.turn.any():
        return AuditCheck(test, name, None, note="requests of conversations differ in length; use single requests")
    faster = varied.seconds / same.seconds - 1
    cause = ""
    if faster > _MARGIN and varied.ttft and same.ttft and varied.tpot and same.tpot:
        tokens_too = varied.tpot / same.tpot - 1 > _MARGIN
        cause = "each token too: answers may be cached" if tokens_too else "the first token only: prompts are cached"
    note = f"mean end to end {same.seconds:.3f} s after {varied.seconds:.3f} s for different samples"
    return AuditCheck(test, name, faster <= _MARGIN, faster, _MARGIN, f"{note}; {cause}" if cause else note)


@dataclass(frozen=True)
class _Service:
    """Mean figures of the completed requests of a run, from sending; None if unknown, or of too few requests."""

    seconds: float
    ttft: float | None
    tpot: float | None
    input_tokens: float | None
    output_tokens: float | None

    @classmethod
    def of(cls, run: RunData) -> _Service | None:
        columns, latencies = run.measured_columns, run.latencies
        done = columns.with_outcome(RequestOutcome.COMPLETED)
        if done.sum() < MIN_SAMPLES:
            return None
        per_request = (latencies.per_request(name)[done] for name in ("e2e_sent", "ttft_sent", "tpot"))
        seconds, ttft, tpot = (mean_value(values[~np.isnan(values)]) for values in per_request)
        counts = (column[done] for column in (columns.input_tokens, columns.received_tokens))
        tokens = [mean_value(values[values != UNKNOWN]) for values in counts]
        return None if not seconds else cls(seconds, ttft, tpot, *tokens)


def _answers(facts: Sequence[AnswerFacts], run: Columns) -> Iterator[AuditCheck]:
    """TEST06: first tokens, ends and reported lengths."""
    test, unseen = "TEST06", "the server returns neither token ids nor log-probabilities"
    repeated = [each.first_token_repeated for each in facts]
    yield _share(test, "the first token is that of the answer", repeated, "answers, streamed and whole")
    silent = [each.silent_tokens <= _MAX_SILENT for each in facts if each.silent_tokens is not None]
    yield _share(test, "at most one end-of-sequence token", silent, "answers", unseen)
    equal = [
        each.counted_tokens == each.reported_tokens
        for each in facts
        if each.counted_tokens is not None and each.reported_tokens is not None
    ]
    yield _share(test, "reported lengths are those of the answers", equal, "answers", unseen)
    done = run.with_outcome(RequestOutcome.COMPLETED) & (run.output_tokens != UNKNOWN)
    whole = ~run.text_is(run.finish, "length") | (run.output_tokens == run.max_tokens)
    right = whole & (run.output_tokens <= run.max_tokens) & (run.responses <= run.output_tokens)
    words = "the server reports no usage"
    yield _share(test, "reported lengths agree with limits and responses", right[done].tolist(), "requests", words)


def _share(
    test: str, name: str, passed: Sequence[bool], what: str, unseen: str = "nothing was completed"
) -> AuditCheck:
    if not passed:
        return AuditCheck(test, name, None, note=unseen)
    share = sum(passed) / len(passed)
    return AuditCheck(test, name, all(passed), share, 1.0, f"{sum(passed)} of {len(passed)} {what}")


def mean_answer_tokens(data: RunData) -> float | None:
    """Return the mean tokens of the answers that were completed in the measured part; None without any."""
    return mean_value(
        data.measured_columns.received_tokens[data.measured_columns.with_outcome(RequestOutcome.COMPLETED)]
    )


def _mean_length(data: RunData, reference: float | None) -> AuditCheck:
    """TEST09: the mean length of answers must be within 10% of the reference, or of what was asked for."""
    test, name = "TEST09", "mean length of answers"
    columns, mean = data.measured_columns, mean_answer_tokens(data)
    if mean is None:
        return AuditCheck(test, name, None, note="nothing was completed")
    if data.plan.ignore_eos:
        reference = mean_value(columns.max_tokens[columns.with_outcome(RequestOutcome.COMPLETED)])
    if not reference:
        note = "no length is known to be right; pass --ignore-eos, or a second server as --against"
        return AuditCheck(test, name, None, note=note)
    off = mean / reference - 1
    note = f"{mean:.1f} tokens, {reference:.1f} expected"
    return AuditCheck(test, name, abs(off) <= _MARGIN, off, _MARGIN, note)
