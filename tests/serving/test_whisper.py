"""The model whisper, with the real weights of Whisper tiny.en and the speech of espeak-ng."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from inflight.common.request_error import RequestError
from inflight.deploy.server.process import ENGINE_PROCESS
from inflight.deploy.server.server import Server
from inflight.runtime.backends.ctranslate2.engine import SpeechEngine, load_engines
from inflight.runtime.encoders.batch_planner import PlannerLimits
from inflight.runtime.encoders.batch_runner import Batcher
from inflight.runtime.encoders.manifest import Seq2SeqDescription, describe
from inflight.runtime.speech.clip import MAX_SAMPLES, Clip
from tests.fixtures.speech import Say
from tests.fixtures.waiting import wait_until

SPOKEN = {
    "Please close the window before you leave the room.": "please close the window before you leave the room",
    "The mountain is higher than any other in the country.": "the mountain is higher than any other in the country",
}
TIMED = "<|startoftranscript|><|en|><|transcribe|>"


@pytest.fixture(scope="module")
def client(speech_server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(speech_server.grpc_address) as connection:
        yield connection


def infer(client: Any, samples: Any, outputs: Sequence[str] = (), **fields: Any) -> dict[str, str]:
    """Send one clip; return the outputs by name: all, or those named."""
    values = {"WAV": np.asarray(samples, np.float32)[None], **{name: np.array([[x]]) for name, x in fields.items()}}
    tensors = []
    for name, value in values.items():
        array = value.astype(np.object_) if value.dtype.kind == "U" else value
        array = array.astype(np.int32) if array.dtype == np.int64 else array
        tensors.append(triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    asked = [triton.InferRequestedOutput(name) for name in outputs] or None
    found = client.infer("whisper", tensors, outputs=asked, client_timeout=120)
    return {each.name: found.as_numpy(each.name)[0, 0].decode() for each in found.get_response().outputs}


def words_of(text: str) -> str:
    return re.sub(r"[^a-z ]", "", text.lower())


def test_speech_becomes_text_with_the_times_of_segments_and_words(client: Any, say: Say) -> None:
    clips = [say(sentence) for sentence in SPOKEN]
    with ThreadPoolExecutor(2) as pool:
        answers = pool.map(lambda clip: infer(client, clip, TEXT_PREFIX=TIMED, word_timestamps=True), clips)
    for clip, text, answer in zip(clips, SPOKEN.values(), answers, strict=True):
        assert (words_of(answer["TRANSCRIPTS"]), answer["language"], answer["error"]) == (text, "en", "")
        segments = json.loads(answer["SEGMENTS"])["segments"]
        assert "".join(segment["text"] for segment in segments).strip() == answer["TRANSCRIPTS"]
        words = [word for segment in segments for word in segment["words"]]
        assert words_of("".join(word["word"] for word in words)).split() == text.split()
        times = [time for word in words for time in (word["start"], word["end"])]
        assert times == sorted(times)
        assert 0 <= times[0] < times[-1] <= segments[-1]["end"] + 0.5 <= len(clip) / 16000 + 0.5


@pytest.mark.parametrize(
    ("samples", "fields", "code"),
    [
        (np.full(160, np.nan), {}, "audio_damaged"),
        (np.zeros(160), {"WAV_LENS": 0}, "audio_damaged"),
        (np.zeros(MAX_SAMPLES + 1), {}, "audio_too_long"),
        (np.zeros(160), {"WAV_LENS": 161}, "invalid_parameter"),
        (np.zeros(160), {"TEXT_PREFIX": "hello"}, "invalid_parameter"),
        (np.zeros(160), {"TEXT_PREFIX": "<|startoftranscript|><|de|>"}, "unsupported_input"),
        (np.zeros(160), {"temperature": np.float32("nan")}, "invalid_parameter"),
        (np.zeros(160), {"beam_width": 0}, "invalid_parameter"),
    ],
)
def test_a_clip_that_cannot_be_transcribed_is_refused(
    samples: Any, fields: dict[str, Any], code: str, client: Any
) -> None:
    assert infer(client, samples, **fields)["error"].endswith(f"[{code}]")
    with pytest.raises(InferenceServerException, match=re.escape(f"[{code}]")):
        infer(client, samples, ["TRANSCRIPTS"], **fields)


class Asked:
    """A request for one clip, that keeps its result."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def deliver(self, index: int, row: Any, error: RequestError | None) -> None:
        self.results.append(row if error is None else error)

    def end_if_cancelled(self) -> bool:
        return False


def test_new_processes_replace_those_that_died_without_a_restart(client: Any, speech_server: Server, say: Say) -> None:
    tree = speech_server.instance.process.process_tree()
    engines = [member for member in tree if member.name == f"{ENGINE_PROCESS} of whisper"]
    for member in engines:
        os.kill(member.pid, signal.SIGKILL)
    sentence, text = next(iter(SPOKEN.items()))
    assert engines
    wait_until(lambda: words_of(infer(client, say(sentence))["TRANSCRIPTS"]) == text, "a new process", 60)
    assert speech_server.instance.exit_reason() is None


def test_a_clip_of_which_the_process_dies_fails_alone(whisper_engine: Path, say: Say) -> None:
    manifest = describe(str(whisper_engine))
    assert isinstance(manifest, Seq2SeqDescription)
    (engine,) = load_engines(str(whisper_engine), manifest, 0, 1, lambda line: None)
    assert isinstance(engine, SpeechEngine)
    run = engine.run

    def run_or_die(inputs: Sequence[Clip]) -> Sequence[Any]:
        if any(clip is deadly for clip in inputs) and engine.pid is not None:
            os.kill(engine.pid, signal.SIGSTOP)
            Timer(0.2, os.kill, (engine.pid, signal.SIGKILL)).start()
        return run(inputs)

    engine.run = run_or_die  # type: ignore[assignment, method-assign]
    (sentence, text), prompt = next(iter(SPOKEN.items())), (50257,)
    good, deadly = Clip(say(sentence), prompt), Clip(np.ones(160, np.float32), prompt)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)  # while it has nothing to do, which no clip notices
    os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
    assert words_of(run([good])[0].text) == text
    batcher = Batcher([engine], PlannerLimits(1 << 30, 8, 10.0), 8, lambda batch: None, lambda line: None)
    requests = [Asked() for _ in range(3)]
    try:
        batcher.reserve(3)
        for request, clip in zip(requests, (good, deadly, good), strict=True):
            batcher.add(request, [(0, clip)], [0])
        wait_until(lambda: all(request.results for request in requests), "the results", 60)
    finally:
        batcher.close()
        engine.close()
    first, error, last = (request.results[0] for request in requests)
    assert words_of(first.text) == words_of(last.text) == text
    assert error.code == "clip_not_computed"
