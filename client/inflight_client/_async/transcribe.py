"""Transcriptions for asyncio: the blocks of an audio, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from inflight_client._async.concurrent_calls import AsyncCallRunner
from inflight_client._async.connection import AsyncConnection
from inflight_client._async.encode import AsyncEncoderCall
from inflight_client.audio.clip_call import BLOCKS_AT_A_TIME, ClipOptions, ClipRequest
from inflight_client.audio.cut import Block, cut
from inflight_client.audio.decode import Audio, read_audio
from inflight_client.audio.transcription import TranscribedBlock
from inflight_client.deadline import Deadline
from inflight_client.result_order import ResultOrder

_DECODERS = ThreadPoolExecutor(thread_name_prefix="inflight-decoder")  # async only


async def async_transcribe(
    connection: AsyncConnection, options: ClipOptions, audio: Audio, known: Mapping[int, TranscribedBlock]
) -> AsyncGenerator[TranscribedBlock, None]:
    """Yield the blocks in their order. Without a language, that of the first block with speech holds for all."""
    deadline = Deadline(options.timeout)
    blocks = cut(read_audio(audio, options.max_seconds))
    # sync: source = blocks
    source = _in_thread(blocks)
    if options.language is None:
        async for block in source:
            found = await _BlockCall(block, options, known, connection, deadline).read()
            yield found
            if found.language or found.segments:
                options = replace(options, language=found.language or None)
                break
    runner = AsyncCallRunner(lambda block: _BlockCall(block, options, known, connection, deadline), BLOCKS_AT_A_TIME)
    order = ResultOrder(as_completed=False, return_errors=False)
    async with aclosing(runner.outcomes(source, order)) as outcomes:
        async for found in outcomes:
            yield found


async def _in_thread(blocks: Iterator[Block]) -> AsyncIterator[Block]:  # async only
    """Decode in threads that do nothing else: a long audio holds up no other work of the event loop's."""
    loop = asyncio.get_running_loop()
    while (block := await loop.run_in_executor(_DECODERS, next, blocks, None)) is not None:
        yield block


class _BlockCall:
    """The call for a block; one that is known or silent is not sent. Closing it cancels it."""

    def __init__(
        self,
        block: Block,
        options: ClipOptions,
        known: Mapping[int, TranscribedBlock],
        connection: AsyncConnection,
        deadline: Deadline,
    ) -> None:
        self._request = ClipRequest(options, block)
        self._known = known.get(block.index)
        self._call = AsyncEncoderCall(self._request, connection, deadline)

    async def read(self) -> Any:
        if self._known is not None:
            return self._known
        if len(self._request.block.samples):
            await self._call.read()
        return self._request.result

    async def close(self) -> None:
        await self._call.close()
