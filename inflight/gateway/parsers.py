"""Chooses how the text of a choice becomes reasoning, tool calls and content."""

from __future__ import annotations

from typing import Protocol

from inflight_client.sampling import Sampling

from inflight.gateway.model_text import ModelText
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.events import Event
from inflight.openai_api.request import GenerationRequest


class ChoiceParser(Protocol):
    """Parses the text of one choice; `done` once nothing more is wanted."""

    done: bool

    def feed(self, text: str) -> list[Event]: ...
    def finish(self) -> list[Event]: ...


class ParserChoice:
    def __init__(self, wanted: GenerationRequest, text: ModelText, settings: GatewaySettings) -> None:
        self._wanted = wanted

    def guided(self, sampling: Sampling) -> Sampling:
        return sampling

    def parser(self) -> ChoiceParser | None:
        return None
