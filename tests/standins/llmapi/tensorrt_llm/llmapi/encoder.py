"""A stand-in for what NVIDIA's tensorrt_llm encodes with: the checkpoint's model, computed by transformers in float32.

The refusals are upstream's: of the model classes that it has for encoders, of the sizes, and of calls at the same time,
which would overwrite each other's inputs there.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .llm_args import TorchLlmArgs

DEFAULT_MAX_BATCH_SIZE = 2048


@dataclass
class EncoderOutput:
    """`logits` are of one text: what the model's last layer returns for it."""

    logits: Any
    prompt_token_ids: list[int]
    prompt: str | None = None


class EncoderExecutor:
    def __init__(self, args: TorchLlmArgs) -> None:
        import transformers

        self._args = args
        architecture = json.loads((Path(args.model) / "config.json").read_text())["architectures"][0]
        self._embeds = architecture == "Qwen3ForTextEmbedding"
        if not self._embeds and architecture != "BertForSequenceClassification":
            raise ValueError(f"Unknown architecture for AutoModelForCausalLM: {architecture}")
        kind = transformers.AutoModel if self._embeds else transformers.AutoModelForSequenceClassification
        self._model = kind.from_pretrained(args.model, dtype="float32", local_files_only=True).eval()
        self._computing = threading.Lock()

    def batch_forward(self, prompts: Sequence[list[int]], **model_kwargs: Any) -> Any:
        """Return a tensor with a row for each prompt. What is passed to the model is packed as the prompts are."""
        import torch

        lengths = [len(prompt) for prompt in prompts]
        batch, tokens = self._args.max_batch_size or DEFAULT_MAX_BATCH_SIZE, self._args.max_num_tokens or 0
        if len(prompts) > batch:
            raise ValueError(f"Batch size {len(prompts)} exceeds max_batch_size {batch}")
        if sum(lengths) > tokens or max(lengths) > (self._args.max_seq_len or tokens):
            raise ValueError(f"{sum(lengths)} tokens exceed max_num_tokens {tokens} or max_seq_len")
        if not self._computing.acquire(blocking=False):
            raise RuntimeError("the stand-in was called while it computed")
        try:
            split = {name: value.split(lengths) for name, value in model_kwargs.items()}
            with torch.inference_mode():
                rows = [
                    self._row(torch.tensor([prompt]), {name: parts[index][None] for name, parts in split.items()})
                    for index, prompt in enumerate(prompts)
                ]
                return torch.stack(rows).to(getattr(torch, self._args.dtype) if self._embeds else torch.float32)
        finally:
            self._computing.release()

    def _row(self, ids: Any, more: dict[str, Any]) -> Any:
        found = self._model(input_ids=ids, **more)
        return found.last_hidden_state[0, -1] if self._embeds else found.logits[0]
