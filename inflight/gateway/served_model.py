"""A model as applications see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inflight_client.encoder_call import Task

ServedTask = Literal["generate"] | Task


@dataclass(frozen=True)
class ServedModel:
    """A model as applications see it; what is unknown is None."""

    name: str
    task: ServedTask | None
    max_seq_len: int | None
    dimensions: int | None = None
    sampling: Mapping[str, Any] | None = None
    chat_template: bool | None = None
    notes: Sequence[str] = ()
    parent: str | None = None
    """Of a LoRA adapter: the model that it changes."""
    state: str | None = None
    """Of a model that is loaded when a request names it: `loaded`, `loading`, `unloading`, `unloaded` or `failed`."""

    def described(self, created: int) -> dict[str, Any]:
        """Return OpenAI's `model` object."""
        extras = {
            "task": self.task,
            "max_model_len": self.max_seq_len,
            "dimensions": self.dimensions,
            "sampling": self.sampling,
            "chat_template": self.chat_template,
            "notes": list(self.notes) or None,
            "parent": self.parent,
            "state": self.state,
        }
        details = {name: value for name, value in extras.items() if value is not None}
        return {"id": self.name, "object": "model", "created": created, "owned_by": "inflight", **details}
