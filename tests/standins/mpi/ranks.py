"""A stand-in for what TensorRT-LLM's backend does with MPI: its ranks wait for each other, or workers are spawned."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

SECONDS = 120.0


def join(engine: str, worker: str) -> None:
    """Come together with the other ranks of the engine, as leader, follower or orchestrator.

    A follower never comes back, as upstream's backend keeps it in TRITONBACKEND_ModelInstanceInitialize. Raises
    RuntimeError where there are not as many ranks as the engine was made for.
    """
    needed = len(list(Path(engine).glob("rank*.engine")))
    if os.environ.get("TRTLLM_ORCHESTRATOR") == "1":
        orchestrate(worker, needed)
        return
    size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    if size != needed:
        raise RuntimeError(f"Assertion failed: MPI size ({size}) is not the engine's world size ({needed})")
    if size > 1:
        rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        place = Path(os.environ["STANDIN_MPI"])
        (place / f"rank{rank}").touch()
        while rank:
            time.sleep(1)
        wait_for(place, "rank*", size)


def orchestrate(worker: str, count: int) -> None:
    place = Path(os.environ["STANDIN_MPI"])
    wish = place / f"{uuid.uuid4().hex}.wish"
    wish.write_text(json.dumps({"command": [worker], "count": count}))
    wish.rename(place / f"spawn-{wish.stem}.json")
    wait_for(place, "worker*", count)


def wait_for(place: Path, pattern: str, count: int) -> None:
    deadline = time.monotonic() + SECONDS
    while len(list(place.glob(pattern))) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {SECONDS} s for {count} of {pattern}")
        time.sleep(0.02)
