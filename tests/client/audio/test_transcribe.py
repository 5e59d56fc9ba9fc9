"""Transcriptions by all four ways to a real Triton, whose scripted model says what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inflight_client import AsyncClient, Client, InflightError, TranscribedBlock, Transcription
from inflight_client.audio.clip_call import ClipOptions, ClipRequest
from inflight_client.audio.cut import Block, cut
from inflight_client.audio.transcription import join_texts, parse_segments

from tests.client.encoders.test_calls import address
from tests.client.support.client_variants import ClientVariant, both_protocols
from tests.client.support.encoder_server import EncoderServer
from tests.client.support.scripted_whisper import expected_texts
from tests.fixtures.errors import raises
from tests.fixtures.voice import encoded, silence, voice

VOICE = voice(6)
LONG = np.concatenate([silence(40), *(part for _ in range(6) for part in (VOICE, silence(2)))])


@pytest.fixture
def client(way: ClientVariant, scripted_encoders: EncoderServer) -> Iterator[Client]:
    with way.client_at(way.url(address(way, scripted_encoders))) as found:
        yield found  # type: ignore[misc]


@both_protocols
def test_a_clip_is_sent_as_it_is(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "voice.wav"
    path.write_bytes(encoded(VOICE, subtype="FLOAT"))
    for audio in (path, VOICE):
        found = client.transcribe(audio, language="en")
        texts = expected_texts("<|en|><|transcribe|>", VOICE)
        assert [segment.text for segment in found] == list(texts)
        assert found.text == "".join(texts).strip()
        assert (found.language, found.duration, found.task, found.model) == ("en", 6.0, "transcribe", "whisper")
        assert [(segment.start, segment.end) for segment in found.segments] == [(0, 3), (3, 6)]
        assert found[0].avg_logprob == -0.25
        assert found[1].tokens == (1,)
        assert not found[0].words


@both_protocols
def test_options_reach_the_model(client: Client) -> None:
    found = client.transcribe(
        VOICE,
        task="translate",
        prompt=" Peng, Lea ",
        temperature=0.5,
        beam_width=5,
        word_timestamps=True,
        priority=7,
        timeout=60,
    )
    options = ", beam_width 5, priority 7, temperature 0.5, word_timestamps 1"
    assert [segment.text for segment in found] == list(expected_texts("<|translate|>", VOICE, options))
    assert (found.task, found.language) == ("translate", "de")
    assert [(word.start, word.end, word.probability) for word in found[1].words] == [(3, 6, 0.5)]


@both_protocols
def test_a_long_audio_is_sent_in_blocks(client: Client) -> None:
    """Its times are those of the audio, and the language that is heard first holds for all."""
    blocks = [block for block in cut([LONG]) if len(block.samples)]
    found = client.transcribe(LONG)
    texts: list[str] = []
    for place, block in enumerate(blocks):
        prefix = "<|de|><|transcribe|>" if place else "<|transcribe|>"
        texts += expected_texts(prefix, block.samples, ", priority -1")
    assert len(blocks) > 1
    assert [segment.text for segment in found] == texts
    assert [segment.start for segment in found][::2] == [block.start for block in blocks]
    assert found.duration == len(LONG) / 16_000
    assert found.language == "de"


@both_protocols
def test_silence_is_not_sent(client: Client) -> None:
    for seconds in (1, 70):
        found = client.transcribe(silence(seconds), prompt="fail model_failed")
        assert (found.text, len(found), found.language, found.duration) == ("", 0, "", seconds)


@both_protocols
def test_a_model_without_segments_has_one_for_each_clip(client: Client) -> None:
    (segment,) = client.transcribe(VOICE, prompt="plain").segments
    assert (segment.start, segment.end) == (0, 6)
    assert segment.text == "".join(expected_texts("<|transcribe|>", VOICE))


@pytest.mark.parametrize(("language", "text"), [("en", "so it goes"), ("zh", "so itgoes"), (None, "so it goes")])
def test_texts_without_segments_are_joined_as_the_language_does(language: str | None, text: str) -> None:
    joined = [parse_segments(None, part, 1.0, 0.0, language)[1][0].text for part in ("so it", " goes ")]
    assert join_texts(joined) == text


def test_times_are_of_milliseconds() -> None:
    word = {"word": " a", "start": 0.1, "end": 4.12}
    text = json.dumps({"segments": [{"start": 0.1, "end": 4.12, "text": " a", "words": [word]}]})
    (segment,) = parse_segments(text, "a", 5.0, 29.65)[1]
    (moved,) = segment.words
    assert (segment.start, segment.end) == (moved.start, moved.end) == (29.75, 33.77)


def test_known_blocks_are_not_sent_again(scripted_encoders: EncoderServer) -> None:
    with Client(scripted_encoders.grpc_address) as client:
        whole = list(client.transcribe_blocks(LONG))
        spoken = [block.index for block in whole if block.segments]
        stored = json.dumps([block.as_dict() for block in whole[: spoken[1]]])
        known = {each["index"]: TranscribedBlock.from_dict(each) for each in json.loads(stored)}
        again = list(client.transcribe_blocks(LONG, known=known))
        assert again == whole
        assert again[spoken[0]] is known[spoken[0]]
        everything = {block.index: block for block in whole}
        rest = client.transcribe_blocks(LONG, known=everything, prompt="fail model_failed")
        assert Transcription.join(rest) == Transcription.join(whole)


def test_of_a_long_prompt_the_end_is_sent() -> None:
    prefix = ClipOptions("whisper", prompt="tea " * 9000 + "Earl Grey").prefix()
    assert prefix.endswith("Earl Grey<|startoftranscript|><|transcribe|>")
    assert len(prefix) < 2_100


@both_protocols
@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        ({"language": "english"}, "invalid_parameter", "language"),
        ({"language": "<|"}, "invalid_parameter", "language"),
        ({"task": "sing"}, "invalid_parameter", "task"),
        ({"prompt": "<|en|>"}, "invalid_parameter", "prompt"),
        ({"prompt": "x" * 100_001}, "invalid_parameter", "prompt"),
        ({"temperature": 1.1}, "invalid_parameter", "temperature"),
        ({"beam_width": 0}, "invalid_parameter", "beam_width"),
        ({"word_timestamps": 1}, "invalid_parameter", "word_timestamps"),
        ({"priority": -(2**31)}, "invalid_parameter", "priority"),
        ({"timeout": 0}, "invalid_parameter", "timeout"),
        ({"max_seconds": 3}, "audio_too_long", "3"),
        ({"prompt": "fail audio_damaged"}, "audio_damaged", ()),
        ({"prompt": "wait 1", "timeout": 0.5}, "deadline_exceeded", ()),
    ],
)
def test_wrong_calls_are_refused(client: Client, options: dict[str, Any], code: str, named: str) -> None:
    with raises(InflightError, code, naming=named):
        client.transcribe(VOICE, **options)


@both_protocols
def test_a_clip_is_sent_again_after_a_passing_error(client: Client) -> None:
    command = f"once overloaded {time.monotonic()}"
    assert client.transcribe(VOICE, prompt=command).text


def test_a_model_that_is_not_there_is_named(scripted_encoders: EncoderServer) -> None:
    for name, code in (("nothing", "model_not_found"), ("embedding", "unsupported_deployment")):
        with Client(scripted_encoders.grpc_address, name) as client, raises(InflightError, code, naming=name):
            client.transcribe(VOICE)


def test_damaged_audio_in_the_middle_comes_after_its_beginning(scripted_encoders: EncoderServer) -> None:
    samples = np.concatenate([LONG, np.full(16_000 * 30, np.nan, np.float32)])
    with Client(scripted_encoders.grpc_address) as client:
        blocks = client.transcribe_blocks(samples)
        first = next(blocks)
        assert first.end < 41
        with raises(InflightError, "audio_damaged"):
            list(blocks)


def test_leaving_early_cancels_the_rest(scripted_encoders: EncoderServer) -> None:
    async def leave() -> float:
        async with AsyncClient(scripted_encoders.grpc_address) as client:
            await client.transcribe(VOICE, language="en")  # it knows the server, however busy the machine is
            began = time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.transcribe(LONG, language="en", prompt="wait 1")
            return time.monotonic() - began

    assert asyncio.run(leave()) < 2


def test_decoding_waits_for_no_other_thread_of_the_loop(scripted_encoders: EncoderServer) -> None:
    """And so none of them for a long audio."""

    async def transcribe_beside_others() -> str:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        free = threading.Event()
        other = asyncio.create_task(asyncio.to_thread(free.wait))
        async with AsyncClient(scripted_encoders.grpc_address) as client:
            try:
                async with asyncio.timeout(30):
                    return (await client.transcribe(VOICE, language="en")).text
            finally:
                free.set()
                await other

    assert asyncio.run(transcribe_beside_others())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"segments": 7}',
        '{"segments": [{}]}',
        '{"segments": [{"start": "a", "end": 1, "text": 7}]}',
    ],
)
def test_segments_that_are_none_are_damaged(text: str) -> None:
    with raises(InflightError, "answer_damaged"):
        parse_segments(text, "", 1.0, 0.0)


def test_an_error_of_a_later_block_has_its_place_and_the_wait_that_the_server_asks_for() -> None:
    error = InflightError("busy", "overloaded")
    error.retry_after = 7
    with raises(InflightError, "overloaded", naming="30.0 s") as caught:
        ClipRequest(ClipOptions("whisper"), Block(1, 30.0, 60.0)).fail(error)
    assert caught.value.retry_after == 7
