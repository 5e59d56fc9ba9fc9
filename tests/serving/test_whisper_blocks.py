"""60 audios of 1 to 300 s: the tokens of CTranslate2 alone and of transformers, in batches of any size."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inflight_client import Client
from inflight_client.audio.cut import cut

from inflight.deploy.server.server import Server
from inflight.runtime.backends.ctranslate2.whisper import Whisper
from inflight.runtime.speech.clip import Clip, WhisperSettings
from inflight.runtime.speech.log_mel import LogMel
from inflight.runtime.speech.prefix import special_tokens
from inflight.text.tokenizer import load_tokenizer
from tests.fixtures.engines import ROOT
from tests.fixtures.speech import Say
from tests.fixtures.whisper_checkpoint import write_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
START, PLAIN = 50257, 50362
WORDS = re.findall(r"[a-z]+[.,;]?", (ROOT / "LICENSE").read_text().partition("Definitions.")[2])
"""A text that does not repeat itself."""


@pytest.fixture(scope="module")
def audios(say: Say) -> list[Any]:
    numbers, noise = random.Random(3), np.random.default_rng(3)
    found = []
    for seconds in np.geomspace(1, 300, 60):
        speed, begun = numbers.choice((130, 150, 170)), numbers.randrange(len(WORDS))
        text = " ".join((WORDS[begun:] + WORDS)[: max(2, round(seconds * speed / 60))])
        samples = say(text, speed)
        found.append((samples + noise.normal(0, 5e-4, len(samples))).astype(np.float32))
    return found


@pytest.fixture(scope="module")
def clips(audios: list[Any]) -> list[Any]:
    return [block.samples for audio in audios for block in cut([audio])]


@pytest.mark.parametrize("prompt", [(START,), (START, PLAIN)], ids=["timestamps", "plain"])
def test_clips_have_the_tokens_of_ctranslate2_alone_in_any_batch(
    prompt: tuple[int, ...], clips: list[Any], whisper_engine: Path
) -> None:
    import ctranslate2

    alone = ctranslate2.models.Whisper(str(whisper_engine), compute_type="float32", intra_threads=2)
    expected = []
    for samples in clips:
        features = ctranslate2.StorageView.from_array(LogMel(80)([samples]))
        (result,) = alone.generate(features, [list(prompt)], beam_size=1)
        expected.append(tuple(result.sequences_ids[0]))
    tokens = special_tokens(load_tokenizer(str(whisper_engine)), ())
    model = Whisper(WhisperSettings(str(whisper_engine), "float32", 80, tokens, 2))
    for sizes in ([4], [8], [3, 1, 7, 2, 8, 5]):
        decoded = [
            each.tokens for batch in batches(clips, sizes) for each in model.run([Clip(x, prompt) for x in batch])
        ]
        assert decoded == expected


def batches(clips: list[Any], sizes: list[int]) -> Iterator[list[Any]]:
    begun, turn = 0, 0
    while begun < len(clips):
        size = sizes[turn % len(sizes)]
        yield clips[begun : begun + size]
        begun, turn = begun + size, turn + 1


def test_a_server_gives_the_tokens_of_transformers(
    clips: list[Any], audios: list[Any], whisper_directory: Path, speech_server: Server, tmp_path: Path
) -> None:
    import torch
    from transformers import WhisperForConditionalGeneration

    with Client(speech_server.grpc_address) as client, ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda audio: list(client.transcribe_blocks(audio, timestamps=False)), audios)
        blocks = [block for answer in answers for block in answer]
    write_checkpoint(whisper_directory, tmp_path)
    model = WhisperForConditionalGeneration.from_pretrained(tmp_path).eval()
    again = 0
    for samples, block in zip(clips, blocks, strict=True):
        if not block.segments or block.segments[0].temperature:
            again += 1  # the server found no speech, or sampled another transcript for a poor one
            continue
        (segment,) = block.segments
        features = torch.from_numpy(np.asarray(LogMel(80)([samples])))
        prompt = torch.tensor([[START, PLAIN]])
        found = model.generate(input_features=features, decoder_input_ids=prompt, do_sample=False, num_beams=1)
        assert list(segment.tokens) == [token for token in found[0].tolist() if token < PLAIN and token != 50256]
    assert again <= len(clips) / 10
