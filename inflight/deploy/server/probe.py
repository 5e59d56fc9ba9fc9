"""HTTP requests to a running server, with the standard library only."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight.deploy.repository.model_names import ENCODER_MODELS, MODELS_WITH_ENGINE, BatchedTask, Task

_ENCODED_TEXTS = "inflight_encoder_texts_total"


def _text(name: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": shape, "data": ["a"]}


_SILENCE = {"name": "WAV", "datatype": "FP32", "shape": [1, 1600], "data": [0.0] * 1600}
_ENCODER_CALLS: Mapping[BatchedTask, tuple[str, list[dict[str, Any]]]] = {
    "embed": ("num_input_tokens", [_text("text_input", [1, 1])]),
    "rerank": ("num_input_tokens", [_text("query", [1]), _text("documents", [1])]),
    "classify": ("num_input_tokens", [_text("text_input", [1, 1])]),
    "transcribe": ("language", [_SILENCE]),
    "text2text": ("num_input_tokens", [_text("text_input", [1, 1])]),
}
"""An output of each model, and inputs of the smallest request."""


class ProbeError(Exception):
    """The server did not answer, or answered with this error."""


@dataclass(frozen=True)
class Probe:
    """Sends requests to one server with models for `tasks`, whose metrics are at `metrics` (host and port).

    Every call opens a separate connection, so any thread may call.
    """

    host: str
    port: int
    admin_key: str
    tasks: tuple[Task, ...] = ("generate",)
    metrics: tuple[str, int] | None = None

    def ready(self) -> bool:
        """Return the state of /v2/health/ready: all models are loaded and the server is not shutting down."""
        try:
            self._request("GET", "/v2/health/ready", seconds=5)
        except ProbeError:
            return False
        return True

    def find_tasks(self) -> tuple[Task, ...]:
        """Return the tasks for which the server has models now."""
        return tuple(task for task, model in MODELS_WITH_ENGINE.items() if self._inference_count(model) is not None)

    def ask(self, task: Task, seconds: float) -> None:
        """Generate one token, or encode one text, through all models of the task. Raises ProbeError."""
        if task == "generate":
            self.generate(seconds)
            return
        # Without the output `error`, a text that fails is an error of the request.
        output, inputs = _ENCODER_CALLS[task]
        body = {"inputs": inputs, "outputs": [{"name": output}]}
        self._request("POST", f"/v2/models/{ENCODER_MODELS[task]}/infer", json.dumps(body), seconds=seconds)

    def generate(self, seconds: float, model: str = "ensemble") -> None:
        """Generate one token through all models. Raises ProbeError."""
        body = json.dumps({"text_input": "a", "max_tokens": 1})
        self._request("POST", f"/v2/models/{model}/generate", body, seconds=seconds)

    def answer_count(self, task: Task) -> int | None:
        """Return how many pieces of text were generated, or texts encoded, since the start; None if it is unknown."""
        if task != "generate":
            return self._encoded_count(ENCODER_MODELS[task])
        return self._inference_count("postprocessing")

    def total_count(self) -> int | None:
        """Return the sum of `answer_count` of all tasks; None if one is unknown."""
        counts = [self.answer_count(task) for task in self.tasks]
        return None if None in counts else sum(filter(None, counts))

    def metadata(self) -> dict[str, Any]:
        """Return the server's name, version and extensions. Raises ProbeError."""
        return dict(self._request("GET", "/v2", seconds=5))

    def unload(self, model: str) -> None:
        """Make a model refuse new requests; running ones continue. Raises ProbeError."""
        self._request("POST", f"/v2/repository/models/{model}/unload", "{}", seconds=10)

    def unloaded(self, model: str) -> bool:
        """Return whether the last request of an unloaded model has ended. Raises ProbeError."""
        index = self._request("POST", "/v2/repository/index", "{}", seconds=10)
        return all(entry.get("state") == "UNAVAILABLE" for entry in index if entry["name"] == model)

    def _encoded_count(self, model: str) -> int | None:
        """Return the encoder's own count: Triton counts a request already when the model has taken it."""
        if self.metrics is None:
            return None
        try:
            lines = self._send(*self.metrics, "GET", "/metrics", None, seconds=10).decode().splitlines()
            counters = [line for line in lines if line.startswith(f"{_ENCODED_TEXTS}{{") and f'model="{model}"' in line]
            return int(sum(float(line.rpartition(" ")[2]) for line in counters if 'status="ok"' in line))
        except (ProbeError, ValueError):
            return None

    def _inference_count(self, model: str) -> int | None:
        try:
            answer = self._request("GET", f"/v2/models/{model}/stats", seconds=10)
            return int(answer["model_stats"][0]["inference_count"])
        except (ProbeError, KeyError, IndexError, TypeError, ValueError):
            return None

    def _request(self, method: str, path: str, body: str | None = None, *, seconds: float) -> Any:
        content = self._send(self.host, self.port, method, path, body, seconds=seconds)
        return json.loads(content) if content.strip() else None

    def _send(self, host: str, port: int, method: str, path: str, body: str | None, *, seconds: float) -> bytes:
        connection = http.client.HTTPConnection(host, port, timeout=seconds)
        try:
            connection.request(method, path, body, {"inflight-admin-key": self.admin_key})
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ProbeError(f"no answer from {host}:{port} ({error or type(error).__name__})") from error
        finally:
            connection.close()
        if response.status != 200:
            raise ProbeError(_reason(content) or f"status {response.status}")
        return content


def _reason(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:500]
