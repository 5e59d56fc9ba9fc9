"""A snapshot of a server's metrics page (Prometheus' text format)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from inflight_client.address import Address, Tls
from inflight_client.errors import InflightError

if TYPE_CHECKING:
    from inflight_client.settings import ClientSettings

_Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Metrics:
    """A metrics page; `families` are prometheus_client's, by name (a counter's without its `_total`).

    >>> page = Metrics.parse('# TYPE requests counter\\nrequests{model="ensemble"} 7\\n')
    >>> page.value("requests", model="ensemble")
    7.0
    """

    families: Mapping[str, Metric]

    @classmethod
    def parse(cls, text: str) -> Metrics:
        """Parse a page. Raises InflightError `answer_damaged` for text in another format."""
        families: dict[str, Metric] = {}
        try:
            for family in text_string_to_metric_families(text):
                families[family.name] = family
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise InflightError(f"the metrics page can't be read: {error}", "answer_damaged") from None
        return cls(MappingProxyType(families))

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sample with this name, as on the page, and exactly these labels, or None."""
        label_set = frozenset(labels.items())
        # The parser names a counter's sample NAME_total even if the page, as Triton's, does not.
        return self._samples.get((name, label_set), self._samples.get((f"{name}_total", label_set)))

    def series(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Yield name, labels and value of each sample with a finite value; a counter's name without `_total`."""
        for family in self.families.values():
            for sample in family.samples:
                if math.isfinite(sample.value):
                    yield sample.name.removesuffix("_total"), sample.labels, float(sample.value)

    @cached_property
    def _samples(self) -> dict[tuple[str, _Labels], float]:
        return {
            (sample.name, frozenset(sample.labels.items())): float(sample.value)
            for family in self.families.values()
            for sample in family.samples
        }


def page_address(url: str) -> Address:
    address = Address.parse(url)
    if not address.http:
        raise InflightError(f"the metrics URL {url!r} must begin with http:// or https://", "invalid_parameter")
    if urlsplit(url).port is None:  # not an inference endpoint, whose default port differs
        return replace(address, port=443 if address.secure else 80)
    return address


def page_credentials(page: Address, server: ClientSettings | None) -> tuple[Mapping[str, str], Tls | None]:
    if server is None or page.host != server.address.host or (server.address.secure and not page.secure):
        return {}, None
    return server.headers, server.tls


def page_text(page: bytes) -> str:
    try:
        return page.decode()
    except UnicodeDecodeError:
        raise InflightError("the metrics page is not UTF-8", "answer_damaged") from None
