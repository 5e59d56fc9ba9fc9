"""LoRA adapters of the LLM API: PEFT directories, selected by number, mixed in a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from inflight.common.request_error import RequestError
from inflight.runtime.backends.llmapi.settings import LlmApiSettings
from inflight.runtime.messages import GenerationRequest

CONFIG_FILE = "adapter_config.json"


class LlmApiAdapters:
    """The LoRA adapters of a deployment. Raises ValueError if one is unusable or the engine was built without LoRA."""

    def __init__(self, paths: tuple[str, ...], settings: LlmApiSettings) -> None:
        self._enabled = bool(settings.arguments.get("enable_lora"))
        if paths and not self._enabled:
            raise ValueError(
                "the engine takes no LoRA adapters; build it with enable_lora and lora_config, or leave them out"
            )
        self._directories = [_directory(Path(path)) for path in paths]

    def prepare(self, path: str) -> Callable[[], None]:
        """The library reads an adapter with the first request that names it."""
        if not self._enabled:
            raise ValueError("the engine takes no LoRA adapters; build it with enable_lora and lora_config")
        return partial(self._directories.append, _directory(Path(path)))

    def check(self, request: GenerationRequest) -> None:
        """Raise RequestError (`invalid_parameter`) if the deployment doesn't have the request's adapter."""
        if request.adapter > len(self._directories):
            raise RequestError(
                f"lora_task_id is {request.adapter}, and the deployment has {len(self._directories)} adapters; choose"
                " one of them, or leave it out",
                "invalid_parameter",
            )

    def lora_request_arguments(self, number: int) -> dict[str, Any]:
        """Return the arguments of the library's LoRARequest."""
        directory = self._directories[number - 1]
        return {"lora_name": f"{number}-{directory.name}", "lora_int_id": number, "lora_path": str(directory)}


def _directory(path: Path) -> Path:
    directory = path if path.is_dir() else path.parent
    if not (directory / CONFIG_FILE).is_file():
        raise ValueError(
            f"{path} has no {CONFIG_FILE} beside it, and the LLM API reads whole PEFT directories; give one"
        )
    return directory
