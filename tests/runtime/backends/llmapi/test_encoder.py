"""An encoder on the LLM API's `encode`: the same results as with OpenVINO, on the stand-in for tensorrt_llm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from build_engines.build import BuildOptions, build_engine
from build_engines.manifest import EncoderTask
from inflight.runtime.backends.llmapi.encoder import LlmApiEncoder, load_encoders
from inflight.runtime.encoders.batch_planner import PlannerLimits
from inflight.runtime.encoders.encoder import Encoder, EncoderInput, find_loader
from inflight.runtime.encoders.manifest import EncoderDescription
from tests.fixtures.encoders import TinyEncoder, tiny_encoder_checkpoint
from tests.fixtures.errors import raises
from tests.runtime.backends.llmapi.standin import imported

LATER = "1.4.0rc1"
LIMITS = PlannerLimits(1024, 32, 5.0)
FAMILIES: dict[EncoderTask, str] = {"embed": "qwen3", "rerank": "bert", "classify": "bert"}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[EncoderTask, Path]:
    """Engine directories of the target, by task."""
    place = tmp_path_factory.mktemp("encoders")
    for task, family in FAMILIES.items():
        build_engine(str(tiny_encoder_checkpoint(task, family)), place / task, BuildOptions("llmapi", task=task))
    return {task: place / task for task in FAMILIES}


@pytest.fixture
def later() -> Iterator[Any]:
    with imported(LATER) as package:
        yield package


def loaded(directory: Path) -> Encoder:
    manifest = EncoderDescription.from_directory(str(directory))
    return find_loader(manifest.target)(str(directory), manifest, 0, 1, LIMITS)[0]


def texts_of(directory: Path, lengths: Sequence[int]) -> list[EncoderInput]:
    """Texts with random tokens; with segments for engines that read them."""
    manifest = EncoderDescription.from_directory(str(directory))
    random = np.random.default_rng(1)
    pairs = "token_type_ids" in manifest.inputs
    return [
        EncoderInput(
            random.integers(0, manifest.vocabulary_size, length).astype(np.int32),
            (np.arange(length) > length // 3).astype(np.int32) if pairs else None,
        )
        for length in lengths
    ]


@pytest.mark.parametrize("task", FAMILIES)
def test_rows_are_those_of_the_openvino_engine(
    engines: dict[EncoderTask, Path], tiny_encoder: TinyEncoder, later: Any, task: EncoderTask
) -> None:
    exact, ours = tiny_encoder(task, FAMILIES[task]), engines[task]
    texts = texts_of(ours, [5, 1, 40, 17, 2, 63])
    expected, found = loaded(exact).run(texts), loaded(ours).run(texts)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    if task == "embed":
        assert ((found * expected).sum(axis=1) > 0.9999).all()
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    else:
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_segments_count(engines: dict[EncoderTask, Path], later: Any) -> None:
    encoder = loaded(engines["rerank"])
    [text] = texts_of(engines["rerank"], [20])
    assert abs(encoder.run([text])[0, 0] - encoder.run([EncoderInput(text.token_ids)])[0, 0]) > 1e-6


def test_a_version_without_raw_logits_gives_the_same_rows(engines: dict[EncoderTask, Path], later: Any) -> None:
    directory = str(engines["embed"])
    manifest = EncoderDescription.from_directory(directory)
    llm = later.LLM(f"{directory}/checkpoint", encode_only=True, dtype="bfloat16")
    first = SimpleNamespace(encode=lambda inputs, add_special_tokens=True, **more: llm.encode(inputs, **more))
    texts = texts_of(engines["embed"], [3, 9])
    np.testing.assert_array_equal(LlmApiEncoder(first, manifest).run(texts), LlmApiEncoder(llm, manifest).run(texts))


def test_of_rows_for_each_token_the_last_ones_count(engines: dict[EncoderTask, Path]) -> None:
    manifest = EncoderDescription.from_directory(str(engines["embed"]))
    rows = torch.randn(12, manifest.dimensions)
    llm = SimpleNamespace(encode=lambda inputs, return_raw_logits: rows)
    found = LlmApiEncoder(llm, manifest).run(texts_of(engines["embed"], [3, 9]))
    np.testing.assert_allclose(found, torch.nn.functional.normalize(rows[[2, 11]]).numpy(), atol=1e-6)
    with raises(RuntimeError, naming=f"(12, {manifest.dimensions})"):
        LlmApiEncoder(llm, manifest).run(texts_of(engines["embed"], [3, 8]))


def test_nothing_is_padded(engines: dict[EncoderTask, Path]) -> None:
    encoder = LlmApiEncoder(SimpleNamespace(encode=lambda inputs: inputs), _description(engines["embed"]))
    assert encoder.packed
    assert [encoder.padded_length(tokens) for tokens in (1, 5, 61)] == [1, 5, 61]


def test_the_library_gets_the_sizes_of_a_micro_batch(engines: dict[EncoderTask, Path], later: Any) -> None:
    manifest = _description(engines["embed"])
    [encoder] = load_encoders(str(engines["embed"]), manifest, 0, 1, LIMITS)
    args = encoder._llm.args
    assert (args.max_batch_size, args.max_num_tokens) == (32, 1024)
    [small] = load_encoders(str(engines["embed"]), manifest, 0, 1, PlannerLimits(16, 4, 5.0))
    small.run(texts_of(engines["embed"], [manifest.max_seq_len]))
    with raises(ValueError, naming="max_batch_size"):
        small.run(texts_of(engines["embed"], [1] * 5))


def test_several_calls_at_a_time_are_refused(engines: dict[EncoderTask, Path]) -> None:
    with raises(ValueError, naming="num_requests"):
        load_encoders(str(engines["embed"]), _description(engines["embed"]), 0, 2, LIMITS)


def test_a_version_that_encodes_nothing_is_named(engines: dict[EncoderTask, Path]) -> None:
    with imported("1.2.1"), raises(RuntimeError, naming=("1.2.1", "LLM.encode")):
        loaded(engines["embed"])


def test_a_missing_library_is_named_with_the_version_that_encodes(engines: dict[EncoderTask, Path]) -> None:
    with raises(RuntimeError, naming=("tensorrt_llm", "1.3")):
        loaded(engines["embed"])


def _description(directory: Path) -> EncoderDescription:
    return EncoderDescription.from_directory(str(directory))
