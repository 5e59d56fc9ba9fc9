"""The parts of an encoder's manifest that the runtime needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TASKS = ("embed", "rerank", "classify")


@dataclass(frozen=True)
class EncoderDescription:
    """The fields of an encoder's engine.json that the runtime uses; build_engines/manifest.py describes them."""

    target: str
    task: str
    inputs: tuple[str, ...]
    max_seq_len: int
    vocabulary_size: int
    dimensions: int
    pad_id: int
    padding_side: str
    normalize: bool
    matryoshka: tuple[int, ...] | None
    prompts: Mapping[str, str]
    default_prompt: str | None
    activation: str
    labels: tuple[str, ...]
    properties: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    compute_capability: str = ""

    @property
    def default_prefix(self) -> str:
        """The default prompt, or nothing: what goes before a text for which no prompt is named."""
        return self.prompts.get(self.default_prompt or "", "")

    @classmethod
    def from_directory(cls, engine_dir: str) -> EncoderDescription:
        """Read engine.json. Raises ValueError for an engine that is not an encoder's."""
        content = json.loads((Path(engine_dir) / "engine.json").read_text(encoding="utf-8"))
        task = content.get("task", "generate")
        if task not in TASKS:
            raise ValueError(f"{engine_dir} is an engine with the task {task}; name one with {', '.join(TASKS)}")
        dimensions = content["dimensions"]
        return cls(
            target=content["target"],
            task=task,
            inputs=tuple(content["inputs"]),
            max_seq_len=content["max_seq_len"],
            vocabulary_size=content["vocab_size"],
            dimensions=dimensions,
            pad_id=content["pad_id"] or 0,
            padding_side=content.get("padding_side", "right"),
            normalize=content.get("normalize", False),
            matryoshka=None if content.get("matryoshka") is None else tuple(content["matryoshka"]),
            prompts=content.get("prompts", {}),
            default_prompt=content.get("default_prompt"),
            activation=content.get("activation", "none"),
            labels=tuple(content.get("labels", ())) or tuple(f"LABEL_{index}" for index in range(dimensions)),
            properties=content["properties"],
            versions=content["versions"],
            limits=content.get("limits") or {},
            compute_capability=(content.get("machine") or {}).get("compute_capability", ""),
        )
