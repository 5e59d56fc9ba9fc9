# Generated from _async/transcribe.py by scripts/unasync.py; do not edit.
"""Transcriptions for blocking code: the blocks of an audio, several at a time."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

from inflight_client._sync.concurrent_calls import CallRunner
from inflight_client._sync.connection import Connection
from inflight_client._sync.encode import EncoderCall
from inflight_client.audio.clip_call import BLOCKS_AT_A_TIME, ClipOptions, ClipRequest
from inflight_client.audio.cut import Block, cut
from inflight_client.audio.decode import Audio, read_audio
from inflight_client.audio.transcription import TranscribedBlock
from inflight_client.deadline import Deadline
from inflight_client.result_order import ResultOrder


def transcribe(
    connection: Connection, options: ClipOptions, audio: Audio, known: Mapping[int, TranscribedBlock]
) -> Generator[TranscribedBlock, None, None]:
    """Yield the blocks in their order. Without a language, that of the first block with speech holds for all."""
    deadline = Deadline(options.timeout)
    blocks = cut(read_audio(audio, options.max_seconds))
    source = blocks
    if options.language is None:
        for block in source:
            found = _BlockCall(block, options, known, connection, deadline).read()
            yield found
            if found.language or found.segments:
                options = replace(options, language=found.language or None)
                break
    runner = CallRunner(lambda block: _BlockCall(block, options, known, connection, deadline), BLOCKS_AT_A_TIME)
    order = ResultOrder(as_completed=False, return_errors=False)
    with closing(runner.outcomes(source, order)) as outcomes:
        for found in outcomes:
            yield found


class _BlockCall:
    """The call for a block; one that is known or silent is not sent. Closing it cancels it."""

    def __init__(
        self,
        block: Block,
        options: ClipOptions,
        known: Mapping[int, TranscribedBlock],
        connection: Connection,
        deadline: Deadline,
    ) -> None:
        self._request = ClipRequest(options, block)
        self._known = known.get(block.index)
        self._call = EncoderCall(self._request, connection, deadline)

    def read(self) -> Any:
        if self._known is not None:
            return self._known
        if len(self._request.block.samples):
            self._call.read()
        return self._request.result

    def close(self) -> None:
        self._call.close()
