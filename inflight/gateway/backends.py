"""A server of OpenAI's protocol behind the gateway: which models it has, and whether it takes requests."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Literal

from inflight_client import AsyncOpenAIServer, InflightError, OpenAIServerFacts
from inflight_client.dialects import DIALECTS, FIELDS
from inflight_client.encoder_call import Task
from inflight_client.errors import ERROR_CODES

_POLL_SECONDS = 5.0
_PROBLEM_POLL_SECONDS = 0.5
_PAUSE_SECONDS = 1.0
"""For how long others are asked first after a failure, unless the server says when it may be asked again."""
_MAX_PAUSE_SECONDS = 60.0
logger = logging.getLogger("inflight.gateway")


class BackendServer:
    """Takes requests for the model that its address names, or else for each model that it lists."""

    max_seq_len: int | None = None
    build: str | None = None
    precision: str | None = None
    sequences = 0
    places = 256
    """How many answers the gateway has in flight there: how many it computes at once is unknown."""

    def __init__(self, address: str, number: int) -> None:
        """Raises InflightError for a wrong address, or a key that is not in the environment."""
        self.given_address, self.number = address, number
        self.client = AsyncOpenAIServer(address)
        self.in_flight = 0
        self.ready = False
        self.facts: OpenAIServerFacts | None = None
        self.polled = asyncio.Event()
        self._doubted = asyncio.Event()
        self._asked_last_until = 0.0
        self._problem = ""

    @property
    def models(self) -> tuple[str, ...]:
        if self.facts is None:
            return ()
        return (self.facts.model,) if self.facts.model else self.facts.models

    @property
    def model(self) -> str:
        return self.models[0] if self.models else ""

    @property
    def suspect(self) -> bool:
        return time.monotonic() < self._asked_last_until

    @property
    def facts_known(self) -> bool:
        """Whether it is known what it serves."""
        return bool(self.models)

    def has_field(self, name: str) -> bool:
        """Return whether servers of its kind have a field of requests."""
        return self.facts is not None and FIELDS[name][list(DIALECTS).index(self.facts.dialect)] != "no"

    def target(self, task: Literal["generate"] | Task, model: str | None) -> BackendServer | None:
        """Return itself if it has the model; what it can do with it is known once it is asked."""
        return self if model in (None, *self.models) and self.models else None

    def note_failure(self, error: InflightError) -> None:
        """Let others be asked first for a while, or as long as the server asks for."""
        if error.retry_after is not None or ERROR_CODES[error.code].retry:
            pause = min(error.retry_after or _PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
            self._asked_last_until = time.monotonic() + pause
            self._doubted.set()

    async def close(self) -> None:
        await self.client.close()

    async def watch(self) -> None:
        """Keep `ready` true as long as it is."""
        while True:
            self._doubted.clear()
            try:
                problem = await self._poll()
            except InflightError as error:
                problem = str(error)
            except Exception as error:
                logger.exception("watching %s failed", self.client.address.url)
                problem = str(error) or type(error).__name__
            if problem and problem != self._problem:
                logger.warning("%s is not ready: %s", self.client.address.url, problem)
            self._problem, self.ready = problem, not problem
            self.polled.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROBLEM_POLL_SECONDS if problem else _POLL_SECONDS):
                    await self._doubted.wait()

    async def _poll(self) -> str:
        """Return why it takes no requests; "" if it does."""
        if not await self.client.ready():
            return "it does not answer, or says that it is not ready"
        if not self.ready:
            self.facts = await self.client.facts(refresh=True)
        return "" if self.models else "it lists no models; name one in its address, as ?model=NAME"
