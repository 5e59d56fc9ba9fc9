"""Figures: what a benchmark measured, with a goal, in one format for all benchmarks."""

from __future__ import annotations

import json
import math
import re
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from benchmarks.fixtures import BENCH_DIRECTORY

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_NUMBER = r"(-?\d+(?:\.\d+)?)"


@dataclass(frozen=True)
class Goal:
    """Bounds of a figure's median; infinite where there is none.

    >>> Goal.parse(">= 0.98").met_by(0.97)
    False
    """

    lowest: float
    highest: float

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Parse `>= NUMBER`, `<= NUMBER` or `NUMBER to NUMBER`. Raises ValueError."""
        if match := re.fullmatch(f"([<>])= {_NUMBER}", text):
            bound = float(match[2])
            return cls(bound, math.inf) if match[1] == ">" else cls(-math.inf, bound)
        if match := re.fullmatch(f"{_NUMBER} to {_NUMBER}", text):
            return cls(float(match[1]), float(match[2]))
        raise ValueError(f"the goal {text!r} can't be read; write `>= 0.98`, `<= 1.3` or `0.95 to 1.05`")

    def met_by(self, value: float) -> bool:
        return self.lowest <= value <= self.highest

    @property
    def direction(self) -> int:
        """1 if higher is better, -1 if lower is, 0 if the goal is a range."""
        return math.isinf(self.highest) - math.isinf(self.lowest)


@dataclass(frozen=True)
class Figure:
    """A figure: one value for each repeat (a pair, a round), and the goal of their median (`Goal`; "" without one)."""

    name: str
    values: Sequence[float]
    goal: str = ""
    unit: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        return Goal.parse(self.goal).met_by(self.median) if self.goal else None

    @property
    def verdict(self) -> str:
        return {None: "", True: "met", False: "MISSED"}[self.met]

    @property
    def direction(self) -> int:
        """1 if higher is better, -1 if lower is, 0 if that is not known."""
        return Goal.parse(self.goal).direction if self.goal else 0

    def cells(self) -> tuple[str, ...]:
        """Return the columns of COLUMNS."""
        unit = f" {self.unit}" if self.unit else ""
        spread = f"{show(min(self.values))} to {show(max(self.values))}" if len(self.values) > 1 else ""
        goal = f"{self.goal}{unit}" if self.goal else ""
        return self.name, f"{show(self.median)}{unit}", goal, self.verdict, str(len(self.values)), spread

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "values": list(self.values), "goal": self.goal, "met": self.met, "unit": self.unit
        }  # fmt: skip

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Figure:
        """Raises KeyError and ValueError for what `as_json` did not write."""
        figure = cls(
            content["name"], tuple(map(float, content["values"])), content.get("goal") or "", content.get("unit", "")
        )
        if not figure.values:
            raise ValueError(f"the figure {figure.name!r} has no values")
        if figure.goal:
            Goal.parse(figure.goal)
        return figure


COLUMNS = ("figure", "median", "goal", "result", "repeats", "lowest to highest")


def show(value: float) -> str:
    """Return a number with about three digits.

    >>> show(17912.3), show(23.24), show(0.9764)
    ('17,912', '23.2', '0.976')
    """
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3f}"


def wide_console() -> Console:
    """Return a console that is wide enough for figures also in a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def out_option(benchmark: str) -> Callable[[Decorated], Decorated]:
    """Add --out, whose default is the file that benchmarks.results reads."""
    return click.option(
        "--out",
        type=click.Path(path_type=Path),
        default=BENCH_DIRECTORY / f"{benchmark}.json",
        show_default=True,
        help="File of all figures.",
    )


def report(out: Path, figures: Sequence[Figure], details: Any = None) -> None:
    """Print the figures as a table, and write them to `out` as JSON, with `details` of any form."""
    console, table = wide_console(), Table(*COLUMNS)
    for figure in figures:
        table.add_row(*figure.cells(), style="red" if figure.met is False else None)
    console.print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    content = {"commit": _commit(), "figures": [figure.as_json() for figure in figures], "details": details}
    out.write_text(json.dumps(content, indent=2) + "\n")
    console.print(f"All figures: {out}", markup=False)


def _commit() -> str:
    """Return the commit of this checkout, and whether tracked files differ from it."""
    here = ("git", "-C", str(Path(__file__).parent))
    try:
        commit, changes = (
            subprocess.run([*here, *command], capture_output=True, text=True, check=True).stdout.strip()
            for command in (
                ("rev-parse", "--short", "HEAD"),
                ("status", "--porcelain", "-uno", "--", ":/", ":!RESULTS.*"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit} with changes" if changes else commit
