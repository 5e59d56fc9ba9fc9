"""An embedding model that a server of inflight serves, as a model of mteb."""

from __future__ import annotations

from typing import Any

from inflight_client import Client
from mteb import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.types import PromptType


class ServedEncoder(AbsEncoder):
    """Texts go to the server in calls of many; long ones are cut at the model's limit, as sentence-transformers does.

    The server puts the model's prompts for queries and documents before the texts.
    """

    def __init__(self, address: str, revision: str | None = None, **client: Any) -> None:
        self.model = Client(address, **client)
        found = {"name": f"inflight/{self.model.embed('name?').model}", "revision": revision or "served"}
        self.mteb_model_meta = ModelMeta.create_empty(found)

    def encode(self, inputs: Any, *, prompt_type: PromptType | None = None, **others: Any) -> Any:
        texts = [text for batch in inputs for text in batch["text"]]
        input_type = None if prompt_type is None else prompt_type.value
        return self.model.embed(texts, input_type=input_type, truncate=True).vectors
