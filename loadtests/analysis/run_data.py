"""Everything that is read of a run before its figures are computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from loadtests.analysis.columns import Columns, Flags, read_columns
from loadtests.analysis.generator_validity import assess_validity
from loadtests.analysis.latencies import Latencies
from loadtests.analysis.slo import Slo, good_requests, parse_slos
from loadtests.analysis.summary import Validity
from loadtests.analysis.window import GeneratorSample, MeasurementWindow, generator_samples, measurement_window
from loadtests.plan import LoadPlan
from loadtests.run_directory import RunDirectory


@dataclass(frozen=True)
class RunData:
    """A run's plan, requests, generator samples and measurement window."""

    name: str
    plan: LoadPlan
    columns: Columns
    generator: tuple[GeneratorSample, ...]
    window: MeasurementWindow
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: RunDirectory) -> RunData:
        """Read a run. Raises LoadError `run_not_found` for a missing run, `run_damaged` for a damaged file."""
        plan = directory.plan()
        run = read_columns(directory.requests)
        generator = tuple(generator_samples(directory.generator_samples()))
        facts = directory.metadata()
        measured = measurement_window(plan, run, generator, bool(facts.get("interrupted")))
        return cls(str(directory.path), plan, run, generator, measured, facts)

    @cached_property
    def measured_rows(self) -> slice:
        """The slice of `run` with the requests due in the measured part."""
        return self.columns.due_between(self.plan.warmup, self.plan.end)

    @cached_property
    def measured_columns(self) -> Columns:
        """The requests that were due in the measured part."""
        return self.columns.select(self.measured_rows)

    @cached_property
    def latencies(self) -> Latencies:
        """The latencies of `measured_columns`."""
        return Latencies.from_columns(self.measured_columns)

    @property
    def tokens_per_response(self) -> float:
        """The mean over the measured streams; NaN without any."""
        responses = self.measured_columns.responses
        tokens = self.measured_columns.received_tokens[responses > 0].sum()
        return float(tokens / responses.sum()) if responses.any() else math.nan

    @cached_property
    def run_latencies(self) -> Latencies:
        return Latencies.from_columns(self.columns)

    @cached_property
    def slos(self) -> tuple[Slo, ...]:
        return parse_slos(self.plan.slo)

    @cached_property
    def good(self) -> Flags | None:
        """Which requests of `run` were good; None if no SLO limits a latency."""
        return good_requests(self.slos, self.columns, self.run_latencies)

    @cached_property
    def validity(self) -> Validity:
        return assess_validity(self.plan, self.columns, self.measured_columns, self.window, self.generator)
