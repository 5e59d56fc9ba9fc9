"""All that is read of a run before its figures are reckoned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from loadtests.analysis.columns import Columns, Flags, read_columns
from loadtests.analysis.generator_samples import GeneratorSample, generator_samples
from loadtests.analysis.goodput import good_requests
from loadtests.analysis.grade import grade
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.measured import Measured, measured_part
from loadtests.analysis.promise import Promise
from loadtests.analysis.summary import Grade
from loadtests.plan import Plan
from loadtests.run_directory import RunDirectory


@dataclass(frozen=True)
class RunData:
    """A run's plan, all of its requests, how its generator stood, and which part of it counts."""

    name: str
    plan: Plan
    run: Columns
    generator: tuple[GeneratorSample, ...]
    measured: Measured
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: RunDirectory) -> RunData:
        """Raises LoadError `run_not_found` for no run, `run_damaged` for a damaged file."""
        plan = directory.plan()
        run = read_columns(directory.requests)
        generator = tuple(generator_samples(directory.generator_samples()))
        facts = directory.facts()
        measured = measured_part(plan, run, generator, bool(facts.get("interrupted")))
        return cls(str(directory.path), plan, run, generator, measured, facts)

    @cached_property
    def place(self) -> slice:
        """Where in `run` those stand that were due in the measured part."""
        return self.run.due_between(self.plan.warmup, self.plan.end)

    @cached_property
    def part(self) -> Columns:
        """The requests that were due in the measured part."""
        return self.run.part(self.place)

    @cached_property
    def latencies(self) -> Latencies:
        """Of `part`."""
        return Latencies.of(self.part)

    @cached_property
    def run_latencies(self) -> Latencies:
        return Latencies.of(self.run)

    @cached_property
    def promises(self) -> tuple[Promise, ...]:
        return tuple(Promise.parse(text) for text in self.plan.promise)

    @cached_property
    def good(self) -> Flags | None:
        """Which requests of `run` were good on their own; None where nothing says what that is."""
        return good_requests(self.promises, self.run, self.run_latencies)

    @cached_property
    def grade(self) -> Grade:
        return grade(self.plan, self.run, self.part, self.measured, self.generator)
