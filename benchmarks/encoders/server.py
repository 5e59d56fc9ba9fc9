"""A server with an encoder, as the encoder benchmarks use it, and its metrics page."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

from inflight_client.metrics import Metrics

from inflight.deploy.repository.options import DeploymentOptions, EncoderOptions
from inflight.deploy.server.server import Server

MODEL = "embedding"


def embedding_server(engine: Path, encoders: EncoderOptions | None = None) -> Server:
    """Return a server, to be entered, of an engine with the task embed."""
    return Server(engine, DeploymentOptions(encoders=encoders or EncoderOptions()))


_PUBLISHED_SECONDS = 0.5
"""After an answer, its counters may be missing on the page for a moment."""


class EncoderMetrics:
    """The counters of the encoder's model; `since` returns their increase."""

    def __init__(self, server: Server) -> None:
        time.sleep(_PUBLISHED_SECONDS)
        with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=10) as response:
            page = Metrics.parse(response.read().decode())
        self._values = {
            (name, *sorted(labels.items())): value
            for name, labels, value in page.series()
            if labels.get("model") == MODEL
        }

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the series with this name and these labels."""
        name, pairs = name.removesuffix("_total"), set(labels.items())
        return sum(value for (key, *own), value in self._values.items() if key == name and pairs <= set(own))

    def since(self, before: EncoderMetrics, name: str, **labels: str) -> float:
        return self.total(name, **labels) - before.total(name, **labels)

    def padding_since(self, before: EncoderMetrics) -> float:
        """Return the padded tokens for each real one."""
        padded, real = (self.since(before, "inflight_encoder_tokens_total", kind=kind) for kind in ("padded", "real"))
        return padded / real

    def mean_since(self, before: EncoderMetrics, histogram: str) -> float:
        return self.since(before, f"{histogram}_sum") / max(1.0, self.since(before, f"{histogram}_count"))
