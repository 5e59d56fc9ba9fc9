"""Which LoRA adapters requests may name by `lora_task_id`."""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import suppress

from inflight.common.adapter_ids import FIRST_ID, adapter_id
from inflight.common.request_error import RequestError
from inflight.runtime.engine.supervisor import EngineProcess


class Adapters:
    """Those with which the server was started, counted from 1, and those in a directory, loaded when one is named."""

    def __init__(self, count: int, directory: str = "") -> None:
        self._count, self._directory = count, directory
        self._paths: dict[int, str] = {}

    def check(self, task_id: int) -> int:
        """Return it. Raises RequestError (`invalid_parameter`) if there is no such adapter."""
        if 0 <= task_id <= self._count or (task_id >= FIRST_ID and self._path(task_id)):
            return task_id
        available = (
            f"it has 1 to {self._count}" if self._count else "it has no adapters; start it with --lora or --lora-dir"
        )
        raise RequestError(
            f"lora_task_id is {task_id}, and the deployment has no such adapter ({available})", "invalid_parameter"
        )

    def load(self, task_id: int, engine: EngineProcess) -> Future[int]:
        """Return the engine's own number of an adapter that was checked, once it is loaded."""
        if task_id >= FIRST_ID:
            return engine.load_adapter(self._path(task_id))
        done: Future[int] = Future()
        done.set_result(task_id)
        return done

    def _path(self, task_id: int) -> str:
        if task_id not in self._paths and self._directory:
            with suppress(OSError), os.scandir(self._directory) as entries:
                self._paths = {adapter_id(each.name): each.path for each in entries if each.is_dir()}
        return self._paths.get(task_id, "")
