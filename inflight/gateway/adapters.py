"""LoRA adapters that servers load while they run, as vLLM's /v1/load_lora_adapter adds them to the models."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight_client import AsyncClient, Sampling, TokenIds
from inflight_client.validation import shorten

from inflight.common.adapter_ids import adapter_id
from inflight.common.atomic_files import make_directory, open_private, write_atomic
from inflight.openai_api.errors import ApiError

_MAX_CHARACTERS = 200


@dataclass(frozen=True)
class AdapterRequest:
    """`name` is that of the model for applications, `directory` that of the adapter in the servers' `--lora-dir`."""

    name: str
    directory: str

    @classmethod
    def parse(cls, body: Any) -> AdapterRequest:
        """Read vLLM's body: `lora_name`, and `lora_path`, by default the same. Raises ApiError."""
        values: dict[str, Any] = body if isinstance(body, dict) else {}
        name: Any = values.get("lora_name")
        path: Any = name if values.get("lora_path") is None else values["lora_path"]
        for field, value in (("lora_name", name), ("lora_path", path)):
            if not isinstance(value, str) or not 0 < len(value) <= _MAX_CHARACTERS or not value.isprintable():
                raise ApiError(
                    f"{field} is {shorten(value)}; it must be a text of 1 to {_MAX_CHARACTERS} characters",
                    "invalid_parameter",
                    field,
                )
        if "/" in path or path in (".", ".."):
            raise ApiError(
                f"lora_path is {shorten(path)}; name a directory in the servers' --lora-dir, without a path",
                "invalid_parameter",
                "lora_path",
            )
        return cls(name, path)


class AdapterFile:
    """The loaded adapters in a file, which all processes of a gateway share: it outlives them and the servers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._numbers: dict[str, int] = {}

    @property
    def numbers(self) -> Mapping[str, int]:
        """The `lora_task_id` of each adapter, by its name. Read again once the file has changed."""
        try:
            status = self._path.stat()
        except OSError:
            return {}
        if (stamp := (status.st_mtime_ns, status.st_ino)) != self._stamp:
            with suppress(OSError, ValueError):
                self._numbers = {name: adapter_id(directory) for name, directory in self._read().items()}
            self._stamp = stamp
        return self._numbers

    async def load(
        self, adapter: AdapterRequest, taken: Container[str], servers: Sequence[AsyncClient], timeout: float
    ) -> None:
        """Have all these servers load an adapter; then it is a model, unless a model has its name already.

        `timeout` is in seconds. Raises ApiError, InflightError if a server can't load it, and OSError.
        """
        if adapter.name in taken:
            raise ApiError(
                f"there is a model {adapter.name[:100]!r} already; choose another lora_name, or unload it first",
                "invalid_parameter",
                "lora_name",
            )
        if not servers:
            raise ApiError(
                "no server that is ready loads adapters while it runs; start one with --lora-dir", "unsupported_input"
            )
        sampling = Sampling(adapter=adapter_id(adapter.directory))
        # A request that names it; after a restart of the server, it is loaded again by the next one.
        asked = (each.generate(TokenIds((0,)), max_tokens=1, sampling=sampling, timeout=timeout) for each in servers)
        await asyncio.gather(*asked)
        await asyncio.to_thread(self._change, adapter.name, adapter.directory)

    async def unload(self, name: str) -> None:
        """Let an adapter be no model any more; servers keep it until they end. Raises ApiError, OSError."""
        if name not in self.numbers:
            raise ApiError(
                f"no adapter {name[:100]!r} was loaded; list the models", "model_not_found", "lora_name", 404
            )
        await asyncio.to_thread(self._change, name, None)

    def _change(self, name: str, directory: str | None) -> None:
        make_directory(self._path.parent)
        with os.fdopen(open_private(f"{self._path}.lock", os.O_RDWR | os.O_CREAT), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            directories: dict[str, str] = {}
            with suppress(FileNotFoundError):
                directories = self._read()
            directories.pop(name, None)
            if directory is not None:
                directories[name] = directory
            write_atomic(self._path, json.dumps(directories), mode=0o600)

    def _read(self) -> dict[str, str]:
        directories: dict[str, str] = json.loads(self._path.read_bytes())
        return directories
