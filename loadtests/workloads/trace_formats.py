"""Public traces of LLM services as columns: the times of requests, and the lengths of inputs and outputs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

from loadtests.errors import LoadError
from loadtests.workloads.json_lines import JsonLines, csv_rows, shorten

_MAX_TOKENS = 10_000_001
# A bound for times: nanoseconds since 1970 are below 2e18.
_MAX_TIME = 1e19
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Trace:
    """Equally long columns, ordered by time: seconds since the first request, input tokens and output tokens.

    `blocks[first[i]:first[i + 1]]` are the hash ids of request i; empty if the trace has none.
    """

    due: npt.NDArray[np.float64]
    input_tokens: Whole
    output_tokens: Whole
    first: Whole
    blocks: Whole

    def __len__(self) -> int:
        return len(self.due)

    def hash_ids(self, row: int) -> list[int]:
        return self.blocks[self.first[row] : self.first[row + 1]].tolist() if len(self.blocks) else []


def read_trace(data: bytes, name: str, trace_format: str) -> Trace:
    """Read a trace in one of the formats `mooncake`, `azure` and `burstgpt`; `auto` detects it from the first line.

    Requests are sorted by time. Those without output failed when they were recorded (as BurstGPT documents for its
    trace), and are dropped. Raises LoadError, with the line, for invalid data.
    """
    trace_format = _detect_format(data, name) if trace_format == "auto" else trace_format
    if trace_format == "mooncake":
        return _mooncake(JsonLines(data, name), name)
    return _csv(data, name, _AZURE if trace_format == "azure" else _BURSTGPT)


@dataclass(frozen=True)
class _Columns:
    """The column names of a CSV format, and its format of times."""

    time: str
    input: str
    output: str
    seconds: Callable[[str], float]


def _clock(text: str) -> float:
    moment = datetime.fromisoformat(text)
    origin = datetime(2020, 1, 1, tzinfo=moment.tzinfo)
    return (moment - origin).total_seconds()


# Azure LLM inference traces 2023 and 2024: TIMESTAMP is when the service was called, with seven decimals in 2023 and a
# time zone in 2024 (github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md, ...2024.md,
# data/AzureLLMInferenceTrace_code.csv).
_AZURE = _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", _clock)
# BurstGPT: Timestamp is in seconds from 0:00:00 of the first day; later files (BurstGPT_3.csv) have Session ID and
# Elapsed time too (github.com/HPMLL/BurstGPT, README.md).
_BURSTGPT = _Columns("Timestamp", "Request tokens", "Response tokens", float)


def _detect_format(data: bytes, name: str) -> str:
    start = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] in (b"{", b"["):
        return "mooncake"
    header = [field.strip() for field in start.split(b"\n")[0].decode("utf-8", "replace").split(",")]
    for form, columns in (("azure", _AZURE), ("burstgpt", _BURSTGPT)):
        if columns.input in header or columns.output in header:
            return form
    raise LoadError(
        f"{name} is not a known trace format: it begins neither with a JSON object (mooncake) nor with a line that has "
        f"{_AZURE.input} (azure) or {_BURSTGPT.input} (burstgpt)",
        "workload_invalid",
    )


def _csv(data: bytes, name: str, columns: _Columns) -> Trace:
    rows = csv_rows(data, name)
    _, first = next(rows, (1, []))
    header = [field.strip() for field in first]
    at = _positions(header, columns, name)
    due, lengths_in, lengths_out = array("d"), array("q"), array("q")
    for line, row in rows:
        try:
            seconds, tokens_in, tokens_out = columns.seconds(row[at[0]]), int(row[at[1]]), int(row[at[2]])
            if not (abs(seconds) <= _MAX_TIME and 0 <= tokens_in < _MAX_TOKENS and 0 <= tokens_out < _MAX_TOKENS):
                raise ValueError
        except (IndexError, ValueError, OverflowError, TypeError):
            raise _line_error(name, line, _csv_error(row, header, at, columns)) from None
        due.append(seconds)
        lengths_in.append(tokens_in)
        lengths_out.append(tokens_out)
    none = np.zeros(len(due) + 1, dtype=np.int64)
    return _sorted_trace(name, np.array(due), np.array(lengths_in), np.array(lengths_out), none, none[:0])


def _positions(header: Sequence[str], columns: _Columns, name: str) -> tuple[int, int, int]:
    names = (columns.time, columns.input, columns.output)
    missing = [column for column in names if column not in header]
    if missing:
        raise _line_error(name, 1, f"has no column {', '.join(missing)}; it has {', '.join(header) or 'none'}")
    return header.index(names[0]), header.index(names[1]), header.index(names[2])


def _csv_error(row: Sequence[str], header: Sequence[str], at: Sequence[int], columns: _Columns) -> str:
    if len(row) <= max(at):
        return f"is truncated: it has {len(row)} of {len(header)} columns"
    for column, position in zip((columns.input, columns.output), at[1:], strict=True):
        text = row[position]
        if not _is_length(text):
            return f"has {column} {shorten(text)}; it must be a whole number from 0 to ten million"
    return f"has {columns.time} {shorten(row[at[0]])}, which is not in the time format of {columns.time}"


def _is_length(text: str) -> bool:
    try:
        return 0 <= int(text) < _MAX_TOKENS
    except ValueError:
        return False


def _mooncake(lines: JsonLines, name: str) -> Trace:
    """Read Mooncake's format: `timestamp` in ms, `input_length` and `output_length` in tokens, and `hash_ids`.

    Each hash id stands for a block of 512 tokens and all before it; the last block may not be full
    (github.com/kvcache-ai/Mooncake, FAST25-release/README.md; arxiv.org/abs/2407.00079, section 4).
    """
    due, lengths_in, lengths_out, first, blocks = array("d"), array("q"), array("q"), array("q", [0]), array("q")
    for row in range(len(lines)):
        values = lines.read(row)
        for key, column in (("input_length", lengths_in), ("output_length", lengths_out)):
            value = values.get(key)
            if type(value) is not int or not 0 <= value < _MAX_TOKENS:
                raise lines.error(row, f"has {key} {shorten(value)}; it must be a whole number from 0 to ten million")
            column.append(value)
        moment = values.get("timestamp")
        if not isinstance(moment, (int, float)) or isinstance(moment, bool) or not abs(moment) <= _MAX_TIME:
            raise lines.error(row, f"has timestamp {shorten(moment)}; it must be a number of milliseconds, up to 1e19")
        due.append(moment / 1000.0)
        try:
            blocks.extend(values.get("hash_ids") or ())
        except (TypeError, OverflowError):
            raise lines.error(row, "has hash_ids that are not a list of whole numbers") from None
        first.append(len(blocks))
    columns = (np.array(column) for column in (due, lengths_in, lengths_out, first, blocks))
    return _sorted_trace(name, *columns)


def _sorted_trace(
    name: str, due: npt.NDArray[np.float64], into: Whole, out: Whole, first: Whole, blocks: Whole
) -> Trace:
    """Sort by time, stably, and drop requests without output."""
    order = np.argsort(due, kind="stable")
    order = order[out[order] > 0]
    if not len(order):
        raise LoadError(f"{name} has no request with an output", "workload_invalid")
    counts = np.diff(first)[order]
    new_first = np.concatenate([[0], np.cumsum(counts)])
    if len(blocks):
        starts = np.repeat(first[order] - new_first[:-1], counts)
        blocks = blocks[starts + np.arange(new_first[-1])]
    moments = due[order]
    return Trace(moments - moments[0], into[order], out[order], new_first, blocks)


def _line_error(name: str, line: int, what: str) -> LoadError:
    return LoadError(f"{name}, line {line}, {what}", "workload_invalid")
