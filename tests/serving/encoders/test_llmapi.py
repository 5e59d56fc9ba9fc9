"""A real Triton with encoders on the stand-in for the LLM API's `encode`: the tensors are those of every target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from build_engines.build import BuildOptions, build_engine
from build_engines.manifest import EncoderTask
from inflight.deploy.repository.options import DeploymentOptions, EncoderOptions
from inflight.runtime.encoders.encoder import EncoderInput, find_loader
from inflight.runtime.encoders.manifest import EncoderDescription
from inflight.runtime.encoders.planner import PlannerLimits
from inflight.text.tokenizer import load_tokenizer
from tests.fixtures.crashes import shared_server
from tests.fixtures.encoders import TinyEncoder, tiny_encoder_checkpoint
from tests.fixtures.waiting import wait_until
from tests.runtime.backends.llmapi.standin import STANDIN, VERSION
from tests.serving.encoders.conftest import BagServer
from tests.serving.metrics_page import page_of

TEXTS = ["A text.", "tea", "Another text, which is longer than the first one by far.", "the cat sat on the mat"]
QUERY = "what is tea?"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BagServer]:
    """`embedding` and `rerank` on engines of the target llmapi; shared, so no test may harm it."""
    place = tmp_path_factory.mktemp("llmapi")
    families: dict[EncoderTask, str] = {"embed": "qwen3", "rerank": "bert"}
    for task, family in families.items():
        build_engine(str(tiny_encoder_checkpoint(task, family)), place / task, BuildOptions("llmapi", task=task))
    options = DeploymentOptions(encoders=EncoderOptions(rerank=place / "rerank"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STANDIN))
        patch.setenv(VERSION, "1.4.0rc1")
        with (
            shared_server(place / "embed", options) as server,
            triton.InferenceServerClient(server.grpc_address) as client,
        ):
            yield BagServer(server, {}, client)


def openvino_rows(directory: Path, texts: list[tuple[str, ...]]) -> Any:
    """Return what the OpenVINO engine computes for texts or pairs."""
    manifest = EncoderDescription.from_directory(str(directory))
    [encoder] = find_loader("openvino")(str(directory), manifest, 0, 1, PlannerLimits(2048, 256, 5.0))
    tokenizer = load_tokenizer(str(directory))
    encodings = [tokenizer.encode(*text) for text in texts]
    return encoder.run([EncoderInput(np.array(one.ids), np.array(one.type_ids)) for one in encodings])


def test_vectors_and_scores_are_those_of_the_openvino_engine(served: BagServer, tiny_encoder: TinyEncoder) -> None:
    found = served.embed(TEXTS)["embedding"]
    rows = openvino_rows(tiny_encoder("embed", "qwen3"), [(text,) for text in TEXTS])
    assert ((found * rows).sum(axis=1) > 0.9999).all()
    scores = served.infer("rerank", query=[QUERY], documents=TEXTS)["scores"]
    logits = openvino_rows(tiny_encoder("rerank", "bert"), [(QUERY, text) for text in TEXTS])[:, 0]
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)), atol=1e-4)


def test_no_padding_is_counted(served: BagServer) -> None:
    sent = int(served.embed(TEXTS)["num_input_tokens"].sum())

    def tokens(kind: str) -> float:
        return page_of(served.server).value("inflight_encoder_tokens_total", "embedding", kind=kind)

    wait_until(lambda: tokens("real") >= sent)
    assert tokens("padded") == tokens("real")
