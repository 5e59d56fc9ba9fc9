"""Reads audit logs: whether their chain is whole, and how often each value is in their lines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from inflight_client import InflightError

from inflight.gateway.audit.chain import MAX_LINE_BYTES, ROOT, Link, ParsedLine, full_files, is_cut_line
from inflight.gateway.audit.line import COUNTED, TOKENS

_REMOVED = re.compile(rb'"event":"removed","through":(\d{1,15})')


@dataclass
class Verdict:
    """What a check found: the first line that is wrong, in `file` at `row` (from 1) with its `problem`, if any."""

    lines: int = 0
    first: int = 0
    last: int = 0
    sha256: str = ROOT.sha256
    """Of the last line."""
    problem: str = ""
    file: str = ""
    row: int = 0
    unfinished_bytes: int = 0
    """Of a line at the end, whose writer was killed."""
    recovered: list[int] = field(default_factory=list)
    """Lines that say that such a line was cut off."""
    removed_through: int = 0
    """The last line of the full files that were removed, as --audit-keep says."""

    def as_record(self) -> dict[str, Any]:
        return {"valid": not self.problem, **asdict(self)}

    def sentences(self) -> Iterator[str]:
        if self.problem:
            yield f"{self.file}:{self.row}: {self.problem}." if self.row else f"{self.problem}."
        if self.lines:
            yield f"The lines {self.first} to {self.last} are whole; the last SHA-256 is {self.sha256}."
        elif not self.problem:
            yield "The log has no lines."
        if self.removed_through:
            yield f"Lines up to {self.removed_through} were removed by --audit-keep."
        if self.recovered:
            where = ", ".join(map(str, self.recovered))
            yield f"A process was killed while it wrote the line before {where}; the unfinished line was cut off."
        if self.unfinished_bytes:
            yield f"The last line is unfinished ({self.unfinished_bytes} bytes): its process was killed, or writes it."


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files of logs in the order in which they are given, each after the full ones before it.

    Raises InflightError `input_not_found`.
    """
    if missing := [path for path in paths if not path.is_file() and not full_files(path)]:
        raise InflightError(f"there is no audit log {missing[0]}; check the path", "input_not_found")
    found = dict.fromkeys(each for path in paths for each in (*(full for _, full in full_files(path)), path))
    return [each for each in found if each.is_file() and each.stat().st_size]


def verify(paths: Sequence[Path], contains: str = "") -> Verdict:
    """Check the chain up to the first line that is wrong; `contains` is the SHA-256 that a line must have.

    Raises InflightError.
    """
    while True:
        files = files_of(paths)
        verdict = _verdict(files, contains)
        if not verdict.problem or files == files_of(paths):  # else a gateway has renamed the file meanwhile
            return verdict


def _verdict(files: Sequence[Path], contains: str) -> Verdict:
    verdict, last, seen = Verdict(), None, not contains
    for path in files:
        for row, line in enumerate(_read(path), 1):
            verdict.file, verdict.row = str(path), row
            if not line.endswith(b"\n"):
                if path == files[-1] and is_cut_line(line):
                    verdict.unfinished_bytes = len(line)
                    break  # its writer may append the rest now
                verdict.problem = "the line is cut off"
                return verdict
            parsed = ParsedLine.of(line[:-1])
            if parsed is None or not parsed.is_whole:
                verdict.problem = "the line was edited"
                return verdict
            if last is None:
                verdict.first = parsed.link.number
            elif problem := _break(last, parsed):
                verdict.problem = problem
                return verdict
            last = parsed.link
            verdict.lines, verdict.last, verdict.sha256 = verdict.lines + 1, last.number, last.sha256
            seen = seen or last.sha256 == contains
            if b'"event":"recovered"' in line:
                verdict.recovered.append(last.number)
            elif removed := _REMOVED.search(line):
                verdict.removed_through = int(removed[1])
    if verdict.first > 1 and verdict.removed_through < verdict.first - 1:
        verdict.row, verdict.file = 1, str(files[0])
        verdict.problem = f"the lines before {verdict.first} are missing, and no line says that they were removed"
    elif not seen:
        verdict.row, verdict.file = 0, ""
        verdict.problem = f"no line has the SHA-256 {contains}: lines were removed from the end, or all were replaced"
    return verdict


def _break(last: Link, parsed: ParsedLine) -> str:
    """Return why a line can't follow the last one; "" if it does."""
    number = parsed.link.number
    if number <= last.number:
        return f"line {number} comes after line {last.number}: lines were reordered or repeated"
    if number > last.number + 1:
        return f"{number - last.number - 1} lines before it are missing, from line {last.number + 1}"
    return "" if parsed.previous == last.sha256 else "the line before it was replaced"


def summarize(paths: Sequence[Path]) -> dict[str, Any]:
    """Return how many lines have each value of each counted field, with the sums of their tokens.

    Lines that are no objects of JSON are left to `verify`. Raises InflightError.
    """
    counts: dict[str, defaultdict[str, list[int]]] = {
        name: defaultdict(lambda: [0] * (1 + len(TOKENS))) for name in COUNTED
    }
    begin = end = ""
    for path in files_of(paths):
        for line in _read(path):
            values = _values(line)
            if time := str(values.get("time", "")):
                begin, end = min(begin or time, time), max(end, time)
            tokens = [count if isinstance(count := values.get(name), int) else 0 for name in TOKENS]
            for name, by_value in counts.items():
                value = values.get(name)
                for each in value if isinstance(value, list) else () if value is None else (value,):
                    numbers = by_value[str(each)]
                    numbers[0] += 1
                    for place, count in enumerate(tokens, 1):
                        numbers[place] += count
    named = {
        name: {value: dict(zip(("lines", *TOKENS), numbers, strict=True)) for value, numbers in by_value.items()}
        for name, by_value in counts.items()
    }
    return {"from": begin, "to": end, **named}


def _values(line: bytes) -> Mapping[str, Any]:
    try:
        values = orjson.loads(line)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _read(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                yield line
    except FileNotFoundError:  # a gateway has renamed it meanwhile, or removed it for --audit-keep
        return
    except OSError as error:
        raise InflightError(
            f"the audit log {path} can't be read: {error.strerror}; check its permissions", "storage_denied"
        ) from None
