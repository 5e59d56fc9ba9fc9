"""A real gRPC server whose answers wait for the test, as whatever asks for many of them at once meets them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import grpc

from tests.client.support.scripted_server import response

SOON = 120.0
"""Seconds within which what is there is handed out, and a program has started, on a slow and busy machine too."""
WAIT = "wait"
PROMPTS = [f"tea {number}" for number in range(12)]


class SourceError(Exception):
    """What goes wrong where prompts come from."""


class GateLoopError(Exception):
    """What goes wrong in a caller's own loop."""


class AnswerGate:
    """Answers that wait for the test: those to WAIT are given once `go` is set, all others say what they were asked."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[str] = []
        self.waiting = 0
        self._counting = threading.Lock()

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        prompt = _prompt(request)
        self.asked.append(prompt)
        if prompt == WAIT:
            self._wait(context)
        yield response(prompt, "stop", 1, 1)

    def _wait(self, context: grpc.ServicerContext) -> None:
        with self._counting:
            self.waiting += 1
        while context.is_active() and not self.go.wait(0.02):
            pass
        with self._counting:
            self.waiting -= 1


def _prompt(request: Any) -> str:
    at = next(place for place, tensor in enumerate(request.inputs) if tensor.name == "text_input")
    return str(request.raw_input_contents[at][4:].decode())


def texts(came: Iterable[Any]) -> list[str]:
    return [(each[1] if isinstance(each, tuple) else each).text for each in came]


def failing(prompts: Iterable[str]) -> Iterator[str]:
    yield from prompts
    raise SourceError


async def waiting_later(prompts: Iterable[str]) -> AsyncIterator[str]:
    for prompt in prompts:
        yield prompt
    await asyncio.Event().wait()
