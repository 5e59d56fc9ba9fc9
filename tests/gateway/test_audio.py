"""Transcriptions and translations of audio, as OpenAI's client sends and reads them."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import openai
import pytest
from inflight_client import Client, InflightError
from inflight_client.audio.cut import cut

from inflight.gateway.http import BodyMemory, Request
from inflight.gateway.key_editing import add_key
from inflight.gateway.key_file import ApiKey, Quotas
from inflight.gateway.processes import GatewayProcesses
from inflight.gateway.settings import GatewaySettings
from inflight.gateway.transcribing import AudioUploads
from inflight.openai_api.errors import ApiError
from tests.client.support.encoder_server import encoder_server
from tests.client.support.scripted_whisper import expected_texts
from tests.fixtures.errors import raises
from tests.fixtures.gateway import openai_client, running_gateway
from tests.fixtures.gateway_requests import Answer, gauge, get, post
from tests.fixtures.voice import encoded, silence, voice
from tests.fixtures.waiting import wait_until

WHISPER = "tea-whisper"
PATH = "/v1/audio/transcriptions"
MAX_BYTES, MAX_SECONDS = 2_000_000, 100
VOICE = voice(6)
CLIP = encoded(VOICE, subtype="FLOAT")
TEXTS = expected_texts("<|en|><|transcribe|>", VOICE)
TEXT = "".join(expected_texts("<|en|><|transcribe|><|notimestamps|>", VOICE)).strip()
"""What a form without times has."""


@pytest.fixture(scope="module")
def speech() -> Iterator[str]:
    with encoder_server({"transcribe": WHISPER}) as server:
        yield server.grpc_address


@pytest.fixture(scope="module")
def front(speech: str) -> Iterator[GatewayProcesses]:
    limits = {"max_audio_bytes": MAX_BYTES, "max_audio_seconds": MAX_SECONDS}
    with running_gateway(speech, **limits) as running:
        yield running


@pytest.fixture(scope="module")
def client(front: GatewayProcesses) -> Iterator[openai.OpenAI]:
    with openai_client(front) as found:
        yield found


def form(*parts: tuple[str, bytes], file: bytes | None = CLIP, end: bytes = b"--B--\r\n") -> bytes:
    """A body of fields and a file."""
    head = b'--B\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    body = b"".join(head % (name.encode(), b"", value) for name, value in parts)
    return body + (b"" if file is None else head % (b"file", b'; filename="a.wav"', file)) + end


def send(front: GatewayProcesses, body: bytes, path: str = PATH, **headers: str) -> Answer:
    return post(front, path, body, {"content-type": "multipart/form-data; boundary=B", **headers})


def test_openai_s_client_gets_the_text(client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "voice.wav"
    path.write_bytes(CLIP)
    files: list[Any] = [path, ("voice", CLIP), io.BytesIO(CLIP)]
    for file in files:
        found = client.audio.transcriptions.create(model=WHISPER, file=file, language="en")
        assert found.text == TEXT
        assert found.usage is not None
        assert found.usage.type == "duration"
        assert found.usage.seconds == 6


def test_every_format_has_what_openai_s_has(client: openai.OpenAI) -> None:
    create: Any = client.audio.transcriptions.create
    asked = {"model": WHISPER, "file": ("a.wav", CLIP), "language": "en"}
    verbose = create(**asked, response_format="verbose_json", timestamp_granularities=["word", "segment"])
    words = expected_texts("<|en|><|transcribe|>", VOICE, ", word_timestamps 1")
    assert (verbose.duration, verbose.language, verbose.text) == (6, "english", "".join(words).strip())
    assert [(each.id, each.start, each.end, each.text) for each in verbose.segments] == [
        (0, 0, 3, words[0]),
        (1, 3, 6, words[1]),
    ]
    assert verbose.segments[0].avg_logprob == -0.25
    assert [(each.start, each.end, each.word) for each in verbose.words] == [(0, 3, words[0]), (3, 6, words[1])]
    only = create(**asked, response_format="verbose_json", timestamp_granularities=["word"])
    assert only.words
    assert only.segments is None
    assert create(**asked, response_format="text") == TEXT + "\n"
    first, second = (text.strip() for text in TEXTS)
    assert create(**asked, response_format="srt") == (
        f"1\n00:00:00,000 --> 00:00:03,000\n{first}\n\n2\n00:00:03,000 --> 00:00:06,000\n{second}\n\n"
    )
    assert create(**asked, response_format="vtt") == (
        f"WEBVTT\n\n00:00:00.000 --> 00:00:03.000\n{first}\n\n00:00:03.000 --> 00:00:06.000\n{second}\n\n"
    )


def test_a_long_file_is_streamed_by_segment(client: openai.OpenAI) -> None:
    samples = np.concatenate([silence(15), VOICE, silence(10), VOICE, silence(20)])
    file = ("a.flac", encoded(samples, kind="FLAC"))
    events = list(client.audio.transcriptions.create(model=WHISPER, file=file, stream=True))
    spoken = [block for block in cut([samples]) if len(block.samples)]
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert len(deltas) == 2 * len(spoken) == 4
    done = events[-1]
    assert done.type == "transcript.text.done"
    assert done.text == "".join(deltas)
    assert "<|de|><|transcribe|>" in deltas[2]


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # by OpenAI's client
def test_translations_are_into_english(client: openai.OpenAI) -> None:
    found = client.audio.translations.create(model=WHISPER, file=("a.wav", CLIP), prompt="tea", temperature=0.5)
    assert found.text == "".join(expected_texts("<|translate|><|notimestamps|>", VOICE, ", temperature 0.5")).strip()
    verbose = client.audio.translations.create(model=WHISPER, file=("a.wav", CLIP), response_format="verbose_json")
    assert verbose.duration == 6


def test_our_client_transcribes_in_blocks_by_the_gateway(front: GatewayProcesses, speech: str) -> None:
    """As it does by Triton, however long the audio is."""
    samples = np.concatenate([VOICE, silence(80), VOICE, silence(120)])
    with Client(front.url) as gateway, Client(speech) as triton:
        options: dict[str, Any] = {"word_timestamps": True, "prompt": "tea", "beam_width": 2}
        found, expected = (each.transcribe(samples, **options) for each in (gateway, triton))
        assert found.segments == expected.segments
        assert (found.language, found.duration) == (expected.language, expected.duration)
        for plain in ({"task": "translate"}, {"language": "en", "timestamps": False}):
            texts = [each.transcribe(VOICE, **plain).text for each in (gateway, triton)]
            assert texts[0] == texts[1]
        with raises(InflightError, "audio_damaged"):
            gateway.transcribe(VOICE, prompt="fail audio_damaged")


def test_silence_has_no_text(client: openai.OpenAI) -> None:
    for seconds in (1, 90):
        file = ("a.flac", encoded(silence(seconds), kind="FLAC"))
        create: Any = client.audio.transcriptions.create
        found = create(model=WHISPER, file=file, response_format="verbose_json", prompt="fail model_failed")
        assert (found.text, found.segments, found.duration) == ("", [], seconds)
        assert create(model=WHISPER, file=file, response_format="vtt") == "WEBVTT\n\n"


def test_the_only_model_needs_no_name_and_is_listed(front: GatewayProcesses) -> None:
    assert send(front, form(("language", b"en"))).json["text"] == TEXT
    (model,) = get(front, "/v1/models").json["data"]
    assert (model["id"], model["task"]) == (WHISPER, "transcribe")
    paths = get(front, "/openapi.json").json["paths"]
    assert "multipart/form-data" in paths[PATH]["post"]["requestBody"]["content"]


REFUSED: list[tuple[str, tuple[tuple[str, bytes], ...], bytes | None, int, str, str | None]] = [
    ("no file", (), None, 400, "invalid_request", "file"),
    ("empty file", (), b"", 400, "audio_damaged", "file"),
    ("no audio", (), b"tea" * 99, 400, "audio_unsupported", "file"),
    ("damaged", (), CLIP[:30], 400, "audio_damaged", "file"),
    ("not finite", (), encoded(np.full(99, np.nan), subtype="FLOAT"), 400, "audio_damaged", "file"),
    ("too long", (), encoded(silence(MAX_SECONDS + 1), kind="FLAC"), 400, "audio_too_long", "file"),
    ("too large", (), bytes(MAX_BYTES + 1), 413, "request_too_large", None),
    ("far too large", (), bytes(MAX_BYTES + 99_999), 413, "request_too_large", None),
    ("unknown field", (("tea", b"1"),), CLIP, 400, "unsupported_parameter", "tea"),
    ("twice", (("language", b"en"), ("language", b"de")), CLIP, 400, "invalid_request", "language"),
    ("language", (("language", b"english"),), CLIP, 400, "invalid_value", "language"),
    ("prompt", (("prompt", b"<|de|>"),), CLIP, 400, "invalid_value", "prompt"),
    ("prompt with NUL", (("prompt", b"a\0b"),), CLIP, 400, "invalid_value", "prompt"),
    ("temperature", (("temperature", b"hot"),), CLIP, 400, "invalid_value", "temperature"),
    ("nested temperature", (("temperature", b"[" * 50_000),), CLIP, 400, "invalid_value", "temperature"),
    ("high temperature", (("temperature", b"2"),), CLIP, 400, "invalid_value", "temperature"),
    ("beam_width", (("beam_width", b"1.5"),), CLIP, 400, "invalid_value", "beam_width"),
    ("format", (("response_format", b"diarized_json"),), CLIP, 400, "invalid_value", "response_format"),
    ("granularity", (("timestamp_granularities[]", b"word"),), CLIP, 400, "invalid_value", "timestamp_granularities"),
    ("stream", (("stream", b"maybe"),), CLIP, 400, "invalid_value", "stream"),
    ("streamed srt", (("stream", b"true"), ("response_format", b"srt")), CLIP, 400, "unsupported_parameter", "stream"),
    ("logprobs", (("include[]", b"logprobs"),), CLIP, 400, "unsupported_parameter", "include"),
    ("model", (("model", b"nothing"),), CLIP, 404, "model_not_found", "model"),
    ("by the model", (("prompt", b"fail unsupported_input"),), CLIP, 400, "unsupported_parameter", None),
    (
        *("no such language", (("prompt", b"fail unsupported_input"), ("language", b"de")), CLIP, 400),
        *("unsupported_parameter", "language"),
    ),
    ("busy", (("prompt", b"fail overloaded"),), CLIP, 429, "server_overloaded", None),
]


@pytest.mark.parametrize("case", REFUSED, ids=[case[0] for case in REFUSED])
def test_wrong_requests_are_refused(front: GatewayProcesses, case: Any) -> None:
    _, parts, file, status, code, param = case
    answer = send(front, form(*parts, file=file))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, param)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{}", "application/json"),
        (form(), "multipart/form-data"),
        (b"tea", "multipart/form-data; boundary=B"),
        (form()[:-50], "multipart/form-data; boundary=B"),
        (form(*[("include[]", b"")] * 99), "multipart/form-data; boundary=B"),
        (b"--B\r\ntea: 1\r\n\r\n1\r\n" + form(), "multipart/form-data; boundary=B"),
        (form(), f"multipart/form-data; boundary={'B' * 999}"),
    ],
)
def test_damaged_forms_are_refused(front: GatewayProcesses, body: bytes, kind: str) -> None:
    answer = post(front, PATH, body, {"content-type": kind})
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("chunked", [False, True])
def test_files_have_room_from_their_beginning_and_short_ones_too(front: GatewayProcesses, chunked: bool) -> None:
    """So many uploads at once do not all fail for what the others hold."""
    body = form(file=encoded(silence(60)))
    framing = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
    head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{framing}\r\n"
    head += "content-type: multipart/form-data; boundary=B\r\n\r\n"
    half = len(body) // 2
    parts = [b"%x\r\n%s\r\n" % (len(part), part) if chunked else part for part in (body[:half], body[half:])]
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", front.port))) for _ in range(20)]
        for client in clients:
            client.sendall(head.encode() + parts[0])
        wait_until(lambda: send(front, form(file=encoded(silence(59)))).status == 503)
        assert send(front, form(("language", b"en"))).status == 200
        for client in clients:
            client.sendall(parts[1] + (b"0\r\n\r\n" if chunked else b""))
        statuses = [client.makefile("rb").readline().split()[1] for client in clients]
    assert 16 <= statuses.count(b"200") == 20 - statuses.count(b"503") < 20


def test_auto_asks_for_nothing(client: openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(
        model=WHISPER, file=("a.wav", CLIP), language="en", chunking_strategy="auto", extra_body={"user": "me"}
    )
    assert found.text == TEXT


def test_seconds_count(speech: str) -> None:
    with running_gateway(speech) as gateway:  # another test's request may be counted long after its response
        assert send(gateway, form(("language", b"en"))).status == 200
        wait_until(lambda: gauge(gateway, "inflight_gateway_audio_seconds_total") == 6)


def test_a_full_disk_is_an_error_of_its_own_and_gives_its_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.gateway.transcribing.TemporaryFile", partial(open, "/dev/full", "wb"))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": form(file=bytes(2_000)), "more_body": False}

    async def read() -> None:
        uploads = AudioUploads(GatewaySettings(("127.0.0.1:1",), max_audio_bytes=MAX_BYTES))
        headers = [(b"content-type", b"multipart/form-data; boundary=B")]
        for _ in range(20):  # more than there is room for at a time
            request = Request({"method": "POST", "path": PATH, "headers": headers}, receive, AsyncMock(), "", 0, bodies)
            with raises(ApiError, "disk_full"):
                await uploads.read("transcribe", request)
            request.close()

    bodies = BodyMemory(0)
    asyncio.run(read())


def test_a_client_that_leaves_frees_its_places(front: GatewayProcesses) -> None:
    body = form(("prompt", b"wait 1"))
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        kind = "multipart/form-data; boundary=B"
        head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_until(lambda: gauge(front, "inflight_gateway_texts_in_flight") == 1)
    wait_until(lambda: gauge(front, "inflight_gateway_texts_in_flight") == 0)
    late = send(front, form(("prompt", b"wait 1")), **{"x-inflight-deadline-ms": "100"})
    assert (late.status, late.error["code"]) == (504, "deadline_exceeded")


def test_what_the_time_to_drain_is_too_short_for_is_to_be_sent_again(speech: str) -> None:
    with running_gateway(speech, drain_seconds=1) as gateway, ThreadPoolExecutor(2) as pool:
        samples = encoded(np.concatenate([VOICE, silence(40), VOICE]), kind="FLAC")
        bodies = [form(("prompt", b"wait 0.8"), (name, b"true"), file=samples) for name in ("stream", "user")]
        streamed, whole = (pool.submit(send, gateway, body) for body in bodies)
        wait_until(lambda: gauge(gateway, "inflight_gateway_texts_in_flight") == 4)
        gateway.stop(1)
        assert (whole.result().status, whole.result().error["code"]) == (503, "model_not_ready")
        assert b"shutting down" in streamed.result().body


def test_keys_have_quotas_of_seconds(speech: str, tmp_path: Path) -> None:
    """A second counts 50 tokens."""
    path = tmp_path / "keys.json"
    token = add_key(path, ApiKey.new("app", quotas=Quotas(tokens_per_minute=10 * 50)))
    with running_gateway(speech, key_file=str(path)) as gateway, openai_client(gateway, api_key=token) as client:
        create = client.audio.transcriptions.with_raw_response.create
        answer = create(model=WHISPER, file=("a.wav", CLIP))
        assert answer.headers["x-ratelimit-remaining-tokens"] == "200"
        with pytest.raises(openai.RateLimitError):
            create(model=WHISPER, file=("a.wav", CLIP))
        assert send(gateway, form()).status == 401
