"""Plans of the stand-in for TensorRT, which compute the same graph as OpenVINO's engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.runtime.backends.openvino import encoder as openvino_encoder
from inflight.runtime.encoders.batch_planner import PlannerLimits
from inflight.runtime.encoders.encoder import Encoder, EncoderInput, find_loader
from inflight.runtime.encoders.manifest import EncoderDescription
from tests.fixtures.encoders import TinyEncoder
from tests.fixtures.nvidia import A100, NvidiaPrograms
from tests.fixtures.tensorrt import LIMITS, TensorRtEncoder

FITTING = PlannerLimits(LIMITS.max_batch_tokens, LIMITS.max_batch_texts, max_wait_s=1)


def load(directory: Path, limits: PlannerLimits = FITTING, requests: int = 1) -> list[Encoder]:
    manifest = EncoderDescription.from_directory(str(directory))
    return list(find_loader("tensorrt")(str(directory), manifest, 0, requests, limits))


def texts(*lengths: int) -> list[EncoderInput]:
    generator = np.random.default_rng(7)
    return [EncoderInput(generator.integers(10, 200, length).astype(np.int32)) for length in lengths]


@pytest.mark.parametrize(
    ("task", "family"),
    [
        ("embed", "bert"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("rerank", "bert"), ("classify", "qwen3"))),
    ],
)
def test_vectors_are_those_of_openvino(
    tensorrt_programs: NvidiaPrograms,
    tensorrt_encoder: TensorRtEncoder,
    tiny_encoder: TinyEncoder,
    task: Any,
    family: str,
) -> None:
    directory = tiny_encoder(task, family)
    manifest = EncoderDescription.from_directory(str(directory))
    (wanted,) = openvino_encoder.load_encoders(str(directory), manifest, 1, 1, FITTING)
    # Both contexts go through all profiles, to longer texts and back.
    for encoder in load(tensorrt_encoder(task, family), requests=2):
        for lengths in ((1,), (5, 40, 128), (130, 200), (512, 400), (512,), (3,) * 32):
            batch = texts(*lengths)
            found = encoder.run(batch)
            assert found.dtype == np.float32
            assert np.abs(found - wanted.run(batch)).max() < 1e-4


def test_a_micro_batch_that_the_plan_is_not_for_is_refused_when_it_is_loaded(
    tensorrt_programs: NvidiaPrograms, tensorrt_encoder: TensorRtEncoder
) -> None:
    directory = tensorrt_encoder("embed")
    for larger in (
        replace(FITTING, max_batch_tokens=LIMITS.max_batch_tokens + 1),
        replace(FITTING, max_batch_texts=LIMITS.max_batch_texts + 1),
    ):
        with pytest.raises(ValueError, match=r"was built for (1024|32) at most"):
            load(directory, larger)


@pytest.mark.parametrize(
    "change",
    [lambda machine: machine.having(gpus=[A100]), lambda machine: machine.having(versions={"tensorrt": "11.1.0"})],
)
def test_a_plan_of_another_gpu_or_version_is_refused_when_it_is_loaded(
    tensorrt_programs: NvidiaPrograms,
    tensorrt_encoder: TensorRtEncoder,
    change: Callable[[NvidiaPrograms], NvidiaPrograms],
) -> None:
    directory = tensorrt_encoder("embed")
    change(tensorrt_programs)
    with pytest.raises(ValueError, match=r"TensorRT 10\.14\.1\.48 built for GPUs of compute capability 9\.0"):
        load(directory)


def test_a_shape_beyond_all_profiles_is_an_error(
    tensorrt_programs: NvidiaPrograms, tensorrt_encoder: TensorRtEncoder
) -> None:
    (encoder,) = load(tensorrt_encoder("embed"))
    with pytest.raises(RuntimeError, match="TensorRT accepts no input input_ids of the shape"):
        encoder.run(texts(*[128] * 33))
