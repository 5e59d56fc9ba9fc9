"""A stand-in for NVIDIA's tensorrt_llm.executor: adapters by name, and the error of one request."""

from __future__ import annotations

import os
from dataclasses import dataclass


class RequestError(RuntimeError):
    """A request that failed alone."""


class CppExecutorError(RuntimeError):
    """The library's processes failed."""


@dataclass(slots=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    lora_ckpt_source: str = "hf"

    def __post_init__(self) -> None:
        if not os.path.exists(self.lora_path):
            raise ValueError(f"lora_path ({self.lora_path}) does not exist.")
        if self.lora_ckpt_source not in ("hf", "nemo"):
            raise ValueError(f"lora_ckpt_source must be 'hf' or 'nemo', got '{self.lora_ckpt_source}'")
