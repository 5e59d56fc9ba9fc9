"""Measures an engine without a server, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from inflight.common.child_process import child_process, exit_reason, python_module
from inflight.deploy.errors import DeployError
from inflight.runtime.engine.interface import EngineOptions
from inflight.tune.settings import Settings

_LOG_CHARACTERS = 1000

TokenizedRequest = tuple[Sequence[int], int]
"""Token ids of a prompt, and the number of tokens to generate."""


@dataclass(frozen=True)
class GreedyAnswers:
    """The likeliest tokens after each prompt, and their log probabilities."""

    tokens: list[list[int]]
    log_probs: list[list[float]]


class EngineAlone:
    """An engine that is loaded in another process."""

    def __init__(self, process: subprocess.Popen[str], log: IO[bytes], name: str) -> None:
        self._process, self._log, self._name = process, log, name

    def speed(
        self, requests: Sequence[TokenizedRequest], users: int, seconds: float, sampling: Mapping[str, float]
    ) -> tuple[float, list[float]]:
        """Return the output tokens per second with `users` requests in flight, and the length of each step in seconds.

        `sampling` has temperature and top_p. The first answers of `users` requests are a warm-up. Raises DeployError.
        """
        answer = self.ask({"speed": {"requests": requests, "users": users, "seconds": seconds, "sampling": sampling}})
        return answer["tokens_per_second"], answer["steps"]

    def greedy(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> GreedyAnswers:
        """Return greedy answers of `max_tokens` tokens to prompts in token ids. Raises DeployError."""
        return GreedyAnswers(**self.ask({"greedy": {"prompts": prompts, "max_tokens": max_tokens}}))

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer. Raises DeployError `server_start_failed` if the engine fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line.endswith("\n") else {"error": self._death()}
        if "error" in answer:
            raise DeployError(f"The engine of {self._name} failed: {answer['error']}.", "server_start_failed")
        return answer

    def _death(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return exit_reason(code)
        self._log.seek(0)
        words = " ".join(self._log.read().decode(errors="replace")[-_LOG_CHARACTERS:].split())
        return f"{exit_reason(code)}: {words or 'it printed nothing'}"


@contextmanager
def load_engine(engine: Path, settings: Settings, kv_cache_tokens: int) -> Iterator[EngineAlone]:
    """Load an engine in a new process, which ends with the block. Raises DeployError."""
    options = EngineOptions(
        "openvino",
        str(engine),
        kv_cache_tokens,
        settings.max_num_sequences or EngineOptions.max_num_sequences,
        settings.max_num_tokens or EngineOptions.max_num_tokens,
        threads=settings.threads,
    )
    command = python_module("inflight.tune.engine_process")
    with tempfile.TemporaryFile() as log, child_process(command, log) as process:
        alone = EngineAlone(process, log, str(settings.build))
        alone.ask({"options": asdict(options), "kv_precision": settings.build.kv_precision})
        yield alone
