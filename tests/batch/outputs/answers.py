"""Lines of answers, as a job writes them, and jobs that write them somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import InputSpec, Job, OutputSpec


def plain(id_: Any, text: str | None = None, **kept: Any) -> bytes:
    """The line of an answer to a plain row."""
    values = {
        "id": id_,
        **kept,
        "text": f"Answer {id_}, “quoted”" if text is None else text,
        "finish_reason": "stop",
        "input_tokens": 7,
        "output_tokens": 3,
    }
    return orjson.dumps(values)


def openai(id_: str, text: str) -> bytes:
    """The line of an answer to a chat request of OpenAI's Batch format."""
    body = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }
    return orjson.dumps({"id": f"batch_req_{id_}", "custom_id": id_, "response": {"status_code": 200, "body": body},
                         "error": None})  # fmt: skip


def job(address: str, keep: tuple[str, ...] = (), **output: Any) -> Job:
    return Job(input=InputSpec(address="rows.jsonl", keep=keep), output=OutputSpec(address=address, **output))


def files(
    folder: Path, answers: Sequence[bytes], errors: Sequence[bytes] = (), dead: Sequence[bytes] = ()
) -> dict[RowStatus, Path]:
    """A job's files of lines: those that there is anything in."""
    made = {}
    for kind, lines in ((RowStatus.OK, answers), (RowStatus.ERROR, errors), (RowStatus.DEAD, dead)):
        made[kind] = folder / f"{kind}.jsonl"
        if lines:
            made[kind].write_bytes(b"".join(line + b"\n" for line in lines))
    return made
