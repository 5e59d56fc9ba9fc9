"""The server's metrics over a run: increases of its counters, values of its gauges."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from loadtests.errors import LoadError
from loadtests.json_files import finite

_SERIES = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


def series_key(name: str, labels: Mapping[str, str]) -> str:
    """`name{label="value",...}`, as a metrics page has it and a run's `server.jsonl` keeps it."""
    pairs = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{pairs}}}" if pairs else name


@cache
def parse_series(key: str) -> tuple[str, Mapping[str, str]]:
    """Return the name and the labels of `name{label="value",...}`. The suffix `_total` of a counter is removed, since
    some readers add it."""
    match = _SERIES.fullmatch(key)
    if match is None:
        return key, {}
    return match["name"].removesuffix("_total"), dict(_LABEL.findall(match["labels"] or ""))


@dataclass(frozen=True)
class MetricsSample:
    """The metrics page at time `t`, in seconds since the run's start; `moment` is `before`, `during` or `after`."""

    time: float
    moment: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class ServerCounters:
    """Samples of a run in order of time, without those that failed because the server did not answer."""

    samples: Sequence[MetricsSample]

    @classmethod
    def read(cls, lines: Iterable[Mapping[str, Any]]) -> ServerCounters:
        """Read samples. Raises LoadError `run_damaged` for a line that is not a sample."""
        samples = (_sample(values) for values in lines)
        return cls(sorted((sample for sample in samples if sample.values), key=lambda sample: sample.time))

    @property
    def restarts(self) -> tuple[float, ...]:
        """Times at which counters were found to be reset because the server had been restarted."""
        return tuple(
            after.time
            for before, after in zip(self.samples, self.samples[1:], strict=False)
            if any(_decreased(before, after, key) for key in self._counters)
        )

    def between(self, start: float, end: float) -> ServerCounters:
        """Return the samples from the one nearest to `start` to the one nearest to `end`."""
        if not self.samples:
            return self
        times = np.array([sample.time for sample in self.samples])
        first, last = (int(np.abs(times - moment).argmin()) for moment in (start, end))
        return ServerCounters(self.samples[first : last + 1])

    def whole_run(self) -> ServerCounters | None:
        """Return the samples before and after the run; None if one is missing or the server was restarted between."""
        samples = self.samples
        if len(samples) < 2 or samples[0].moment != "before" or samples[-1].moment != "after" or self.restarts:
            return None
        return ServerCounters([samples[0], samples[-1]])

    def increase(self, name: str, **labels: str) -> float | None:
        """Return the total increase of the counters with this name and these labels, from the first sample to the last;
        None without any. A counter that was reset counts from 0 again, so its increase between the last sample and
        the reset is missing. A counter that was missing at first started at 0.
        """
        keys = list(self._keys(name, labels))
        if not keys or len(self.samples) < 2:
            return None
        return sum(self._increase(key) for key in keys)

    def by_label(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Return `increase` for each value of a label."""
        values = {parse_series(key)[1].get(label) for key in self._keys(name, labels)}
        increases = {value: self.increase(name, **labels, **{label: value}) for value in values if value is not None}
        return {value: growth for value, growth in sorted(increases.items()) if growth is not None}

    def gauge(self, name: str, **labels: str) -> list[tuple[float, float]]:
        """Return the times and values of a gauge: the sum of its series with these labels, in all samples that have
        one."""
        keys = list(self._keys(name, labels))
        points = []
        for sample in self.samples:
            values = [sample.values[key] for key in keys if key in sample.values]
            if values and not any(math.isnan(value) for value in values):
                points.append((sample.time, sum(values)))
        return points

    def mean_of(self, histogram: str, **labels: str) -> float | None:
        """Return the mean observation between the first and the last sample; None without observations."""
        total, count = self.increase(f"{histogram}_sum", **labels), self.increase(f"{histogram}_count", **labels)
        return total / count if total is not None and count else None

    @cached_property
    def _all_keys(self) -> tuple[str, ...]:
        return tuple({key: None for sample in self.samples for key in sample.values})

    @cached_property
    def _counters(self) -> tuple[str, ...]:
        """The counters, identified by their names: the samples do not contain the types."""
        grow = ("inflight_requests", "nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count")
        return tuple(key for key in self._all_keys if parse_series(key)[0] in grow)

    def _keys(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        name = name.removesuffix("_total")
        for key in self._all_keys:
            series, own = parse_series(key)
            if series == name and labels.items() <= own.items():
                yield key

    def _increase(self, key: str) -> float:
        values = [sample.values.get(key, math.nan) for sample in self.samples]
        numbers = [value for value in values if not math.isnan(value)]
        began = 0.0 if math.isnan(values[0]) else values[0]
        steps = zip([began, *numbers], numbers, strict=False)
        return sum(after - before if after >= before else after for before, after in steps)


def _decreased(before: MetricsSample, after: MetricsSample, key: str) -> bool:
    return key in before.values and key in after.values and after.values[key] < before.values[key]


def _sample(values: Mapping[str, Any]) -> MetricsSample:
    try:
        series = {str(key): finite(value) for key, value in values["values"].items()}
        return MetricsSample(finite(values["t"]), str(values["moment"]), series)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise LoadError(f"server.jsonl has a line that is not a sample: {error}", "run_damaged") from None
