"""A command of ours, run in this process, with what it printed."""

from __future__ import annotations

import io
import json
from typing import Any, NamedTuple

import pytest

from inflight import cli


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[Any]:
        """The lines of standard output, each as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """`Command(monkeypatch, capsys, "generate")("tell", "--json")`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self._name = name

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Done:
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = 0
        try:
            cli.main([self._name, *arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        return Done(code, *self._capsys.readouterr())
