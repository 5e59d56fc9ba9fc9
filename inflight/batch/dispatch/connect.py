"""Chooses what speaks to a server, by its address."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inflight_client import Address, InflightError

from inflight.batch.dispatch.backend import Backend
from inflight.batch.dispatch.openai_backend import OpenAIBackend
from inflight.batch.dispatch.transcriber import BlockStore
from inflight.batch.dispatch.triton_backend import TritonBackend
from inflight.batch.errors import BatchError
from inflight.batch.job.rows import RowRequest
from inflight.batch.job.spec import RunOptions, Task
from inflight.batch.row_formats.request_bodies import is_openai_address


def connect(
    address: str,
    options: RunOptions,
    on_message: Callable[[str], None],
    task: Task,
    samples: Sequence[RowRequest] = (),
    blocks: BlockStore | None = None,
) -> Backend:
    """Return the backend of a server; see OpenAIBackend for `samples`. Raises BatchError for an invalid address.

    `blocks`: those of audio that earlier runs did not finish.
    """
    try:
        if task in ("transcribe", "text2text"):  # the client speaks both protocols
            return TritonBackend(address, options, on_message, task, blocks)
        if is_openai_address(address) or (task == "score" and Address.parse(address.partition(",")[0]).openai):
            return OpenAIBackend(address, options, on_message, task, samples)
        return TritonBackend(address, options, on_message, task)
    except InflightError as error:
        raise BatchError(str(error), error.code) from None
