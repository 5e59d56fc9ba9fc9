"""Transcribes the audio of rows, and keeps its blocks until the row has its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Protocol

import orjson
from inflight_client import AsyncClient, InflightError
from inflight_client.audio.clip_call import TranscribeOptions
from inflight_client.audio.transcription import TranscribedBlock, Transcription

from inflight.batch.dispatch.identical_rows import request_key
from inflight.batch.job.rows import TranscribeRequest
from inflight.batch.storage.audio_file import open_audio


class BlockStore(Protocol):
    """The blocks of audio that has no whole transcription yet, across runs of a job."""

    def known_blocks(self, key: bytes) -> dict[int, bytes]: ...

    def add_block(self, key: bytes, number: int, value: bytes) -> None: ...


async def transcribe(
    request: TranscribeRequest,
    client: AsyncClient,
    blocks: BlockStore | None,
    priority: int,
    block_timeout: float | None,
) -> Transcription:
    """Return the transcription of a row's audio. Raises InflightError; `deadline_exceeded` once no block of it has come
    for `block_timeout` seconds."""
    options = TranscribeOptions(
        language=request.language,
        task=request.task,
        prompt=request.prompt,
        beam_width=request.beam_width,
        word_timestamps=request.word_timestamps,
        max_seconds=request.max_seconds,
        priority=priority,
    )
    found: list[TranscribedBlock] = []
    with ExitStack() as stack:
        file, version = await asyncio.to_thread(stack.enter_context, open_audio(request.audio))
        kept = _KeptBlocks(blocks, request_key(request), version)
        known = await asyncio.to_thread(kept.read)
        async with aclosing(client.transcribe_blocks(file, known=known, **options)) as source:
            while (block := await _next(source, block_timeout)) is not None:
                found.append(block)
                if block.language and block.index not in known:  # silence has none, and is not sent
                    kept.add(block)
    return Transcription.join(found, request.task, request.language)


async def _next(source: AsyncIterator[TranscribedBlock], timeout: float | None) -> TranscribedBlock | None:
    try:
        async with asyncio.timeout(timeout):
            return await anext(source, None)
    except TimeoutError:
        raise InflightError(
            f"no block of the audio has come for {timeout:g} seconds; raise the job's --row-timeout",
            "deadline_exceeded",
        ) from None


@dataclass(frozen=True)
class _KeptBlocks:
    """The blocks of a request with this version of its file; without a store or a key none are kept."""

    store: BlockStore | None
    key: bytes | None
    version: str

    def read(self) -> dict[int, TranscribedBlock]:
        if self.store is None or self.key is None:
            return {}
        stored = map(orjson.loads, self.store.known_blocks(self.key).values())
        blocks = [TranscribedBlock.from_dict(each["block"]) for each in stored if each["file"] == self.version]
        return {block.index: block for block in blocks}

    def add(self, block: TranscribedBlock) -> None:
        if self.store is not None and self.key is not None:
            value = orjson.dumps({"file": self.version, "block": block.as_dict()})
            self.store.add_block(self.key, block.index, value)
