"""The parts of a manifest that the runtime needs, of an encoder or of a model with encoder and decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

TASKS = ("embed", "rerank", "classify")
SEQ2SEQ_TASKS = ("transcribe", "text2text")
_NO_LIMIT = 1 << 30
"""Batches of clips are limited by their number alone."""


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
    def max_input_len(self) -> int:
        return self.max_seq_len

    @property
    def default_prefix(self) -> str:
        """The default prompt, or nothing: what goes before a text for which no prompt is named."""
        return self.prompts.get(self.default_prompt or "", "")

    @classmethod
    def from_directory(cls, engine_dir: str) -> EncoderDescription:
        """Read engine.json. Raises ValueError for an engine that is not an encoder's."""
        content = _read(engine_dir)
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


@dataclass(frozen=True)
class TextDescription:
    """How an engine from text to text reads and writes; `Seq2SeqText` in build_engines/manifest.py describes it."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    prefix: tuple[str, ...]
    language_token: str
    source_language: str | None
    target_language_in: str
    prompts: Mapping[str, str]
    defaults: Mapping[str, int | float]
    prompt_defaults: Mapping[str, Mapping[str, int | float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Seq2SeqDescription:
    """The fields of the engine.json of a model with an encoder and a decoder; `text` is None for speech."""

    target: str
    task: str
    max_seq_len: int
    max_source_len: int
    vocabulary_size: int
    mels: int
    languages: tuple[str, ...]
    properties: Mapping[str, Any]
    text: TextDescription | None
    limits: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()

    @property
    def max_input_len(self) -> int:
        """The longest text, without the tokens around it and one for the target language, if that is before a text."""
        if self.text is None:
            return self.max_source_len
        named = bool(self.languages) and self.text.target_language_in == "before"
        return self.max_source_len - len(self.text.before) - len(self.text.after) - named


def describe(engine_dir: str) -> EncoderDescription | Seq2SeqDescription:
    """Read engine.json. Raises ValueError for an engine that generates text from a prompt."""
    content = _read(engine_dir)
    if content.get("task") not in SEQ2SEQ_TASKS:
        return EncoderDescription.from_directory(engine_dir)
    text = content.get("text")
    return Seq2SeqDescription(
        target=content["target"],
        task=content["task"],
        max_seq_len=content["max_seq_len"],
        max_source_len=content["max_source_len"],
        vocabulary_size=content["vocab_size"],
        mels=content["mels"] or 0,
        languages=tuple(content["languages"]),
        properties=content["properties"],
        text=None if text is None else _text(text),
        limits={} if text else {"max_batch_tokens": _NO_LIMIT},
    )


def _text(content: Mapping[str, Any]) -> TextDescription:
    values: Any = {each.name: content.get(each.name, {}) for each in fields(TextDescription)}
    return TextDescription(
        **{**values, **{name: tuple(values[name]) for name in ("before", "after", "prefix")}},
    )


def _read(engine_dir: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(engine_dir) / "engine.json").read_text(encoding="utf-8"))
    return content
