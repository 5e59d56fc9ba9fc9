"""The parts of an engine directory's manifest that the runtime needs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

"""A build writes this file if the tokenizer can be converted; the library reads the vocabulary from it."""


@dataclass(frozen=True)
class EngineManifest:
    """The fields of engine.json that the engine uses; `properties` are passed to the library unchanged."""

    vocabulary_size: int
    max_seq_len: int
    end_ids: tuple[int, ...]
    properties: dict[str, Any]

    @classmethod
    def from_directory(cls, engine_dir: str) -> EngineManifest:
        directory = Path(engine_dir)
        content = json.loads((directory / "engine.json").read_text(encoding="utf-8"))
        return cls(
            vocabulary_size=content["vocab_size"],
            max_seq_len=content["max_seq_len"],
            end_ids=tuple(content["end_ids"]),
            properties=dict(content["properties"]),
        )
