"""Publishes metrics on Triton's metrics endpoint, through its python backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from inflight.runtime.metrics.definitions import ENGINE_FAMILIES, MetricFamily, MetricKind, MetricsSink, NullSink


def create_metrics_sink(args: dict[str, str], families: Sequence[MetricFamily] = ENGINE_FAMILIES) -> MetricsSink:
    """Return a sink for a model's metrics; one that discards them, and a log line, if Triton's are disabled."""
    try:
        return TritonMetricsSink(args["model_name"], args["model_version"], families)
    except Exception as error:
        pb_utils.Logger.log_warn(f"{args['model_name']} publishes no metrics: {error}")
        return NullSink()


class TritonMetricsSink:
    """Creates all metric families with the labels of one model; counters and histograms start at zero."""

    def __init__(self, model: str, version: str, families: Sequence[MetricFamily]) -> None:
        self._series: dict[tuple[str, str], Any] = {}
        self._labels = {"model": model, "version": version}
        self._families: dict[str, Any] = {}
        """Keeps references: Triton removes the series of a family that is garbage-collected."""
        for family in families:
            shown = pb_utils.MetricFamily(
                name=family.name, description=family.description, kind=getattr(pb_utils.MetricFamily, family.kind.value)
            )
            self._families[family.name] = shown
            for member in family.label_values:
                labels = dict(self._labels)
                if family.label:
                    labels[family.label] = member
                buckets = {"buckets": list(family.buckets)} if family.kind is MetricKind.HISTOGRAM else {}
                self._series[family.name, member] = shown.Metric(labels=labels, **buckets)

    def set(self, family: MetricFamily, label_value: str, value: float) -> None:
        self._series[family.name, label_value].set(value)

    def add(self, family: MetricFamily, label_value: str, count: int) -> None:
        self._series[family.name, label_value].increment(count)

    def add_to(self, family: MetricFamily, labels: Mapping[str, str], count: int) -> None:
        key = family.name, "/".join(labels.values())
        if key not in self._series:
            self._series[key] = self._families[family.name].Metric(labels={**self._labels, **labels})
        self._series[key].increment(count)

    def observe(self, family: MetricFamily, value: float, label_value: str = "") -> None:
        self._series[family.name, label_value or family.label_values[0]].observe(value)

    def close(self) -> None:
        """Release the series while Triton can be reached: releasing them at interpreter exit crashes."""
        self._series.clear()
        self._families.clear()
