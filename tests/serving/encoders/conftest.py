"""A real Triton with three encoders whose results numpy knows exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from build_engines.manifest import EncoderTask
from inflight.deploy.repository.options import DeploymentOptions, EncoderOptions
from inflight.deploy.server.server import Server
from tests.fixtures.bag_encoders import BagEncoder, write_bag_encoder
from tests.fixtures.crashes import shared_server

LABELS = ("good", "bad", "odd")
PROMPTS = {"query": "w1 w2 ", "passage": "w3 "}


@dataclass(frozen=True)
class BagServer:
    """The server, its encoders by task, and a gRPC client."""

    server: Server
    encoders: Mapping[EncoderTask, BagEncoder]
    client: Any

    def infer(self, model: str, outputs: tuple[str, ...] = (), **inputs: Any) -> dict[str, Any]:
        """Send inputs as they are given, strings as text; return the outputs by name: all, or those named."""
        tensors = []
        for name, value in inputs.items():
            texts = name in ("text_input", "input_type", "query", "documents")
            array = np.array(value, dtype=np.object_ if texts else np.bool_ if name == "truncate" else np.int32)
            if texts:
                array = np.vectorize(lambda text: text if isinstance(text, bytes) else text.encode(), "O")(array)
            tensor = triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        asked = [triton.InferRequestedOutput(name) for name in outputs] or None
        found = self.client.infer(model, tensors, outputs=asked, client_timeout=60)
        return {output.name: found.as_numpy(output.name) for output in found.get_response().outputs}

    def refused(self, model: str, outputs: tuple[str, ...] = (), **inputs: Any) -> str:
        """Return the message of the error with which a request fails."""
        with pytest.raises(InferenceServerException) as caught:
            self.infer(model, outputs, **inputs)
        return str(caught.value.message())

    def embed(self, texts: list[Any], outputs: tuple[str, ...] = (), **inputs: Any) -> dict[str, Any]:
        return self.infer("embedding", outputs, text_input=[[text] for text in texts], **inputs)


@pytest.fixture(scope="package")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BagServer]:
    """Shared, so no test may harm it."""
    directory = tmp_path_factory.mktemp("bags")
    fields: dict[EncoderTask, dict[str, Any]] = {
        "embed": {"prompts": PROMPTS, "matryoshka": (2, 4)},
        "rerank": {"activation": "sigmoid", "padding_side": "left"},
        "classify": {"activation": "softmax", "labels": LABELS},
    }
    sizes: dict[EncoderTask, int] = {"embed": 8, "rerank": 1, "classify": 3}
    encoders = {task: write_bag_encoder(directory / task, task, sizes[task], **fields[task]) for task in sizes}
    beside = EncoderOptions(rerank=encoders["rerank"].directory, classify=encoders["classify"].directory)
    with (
        shared_server(encoders["embed"].directory, DeploymentOptions(encoders=beside)) as server,
        triton.InferenceServerClient(server.grpc_address) as client,
    ):
        yield BagServer(server, encoders, client)
