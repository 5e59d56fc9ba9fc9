"""The wording of the client's errors; INFLIGHT_UPDATE_GOLDEN=1 writes messages.txt again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from inflight_client import AsyncOpenAIServer, Client, Guide, InflightError, Retry, Sampling, Tls
from inflight_client._grpc.messages import GrpcInferResponse, infer_request
from inflight_client.address import Address, validate_headers
from inflight_client.call import Call, validate_request_id
from inflight_client.deployments.requests import build_request, build_stop_request
from inflight_client.deployments.stop_text_buffer import StopTextBuffer
from inflight_client.dialects import CHAT, COMPLETIONS, EMBEDDINGS, adapted
from inflight_client.encoder_call import EncoderOptions
from inflight_client.error_mapping import connection_closed
from inflight_client.metrics import Metrics
from inflight_client.transport import InferRequest, ModelMetadata, Tensor
from tritonclient.grpc import service_pb2

from tests.client import test_address, test_sampling, test_settings
from tests.client.encoders.test_failures import INVALID_CALLS
from tests.client.support.deployments import find
from tests.client.test_address import INVALID_HEADERS
from tests.fixtures.errors import Cause, check_messages
from tests.standins.kserve.repository import text_models

GRPC = Address.parse("grpc://127.0.0.1:8001")
MESSAGES: Any = [{"role": "user", "content": "Tea?"}]


def tensor(value: Any) -> InferRequest:
    return InferRequest("m", "", {"number_of_cups": Tensor("INT32", (1,), (value,))})


def without_contents() -> None:
    message = service_pb2.ModelInferResponse()
    message.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    GrpcInferResponse(message).text("text_output")


def text_taken_back() -> None:
    buffer = StopTextBuffer((), whole=True)
    buffer.feed("The quick")
    buffer.feed("The slow")


def closed() -> None:
    raise connection_closed("https://127.0.0.1:8000", "TLS")


def asked(prompt: Any, **options: Any) -> None:
    build_request(find(text_models()), Call(prompt, False, **options), None, None)


def generated(**options: Any) -> None:
    with Client() as client:
        client.generate_many(**{"prompts": ["Tea?"], **options})


def encoded(method: str, values: tuple[Any, ...], options: dict[str, Any]) -> None:
    with Client("127.0.0.1:9") as client:
        getattr(client, method)(*values, **options)


def no_model() -> None:
    raise EncoderOptions("embed", "tea").no_model(InflightError("unknown", "model_not_found"))


def another_model() -> None:
    found = ModelMetadata("tea", {}, {"text_output": ("BYTES", (1,))})
    raise EncoderOptions("rerank", "tea", "?").unsuitable_model(InflightError("no input", "invalid_request"), found)


def test_sentences(tmp_path: Path) -> None:
    unknown: Any = "haiku"
    unsupported: dict[str, Any] = {"priority": 1}
    retries: list[dict[str, Any]] = [{"timeout": None}, {"budget_ratio": True}, {"attempts": 0}]
    causes: list[Cause] = [
        partial(Address.parse, ""),
        partial(Address.parse, "http://me:s3cret@x"),
        *(partial(Address.parse, f"openai+http://tea.example?{query}") for query in test_address.INVALID_QUERIES),
        *(
            partial(Client, f"openai+{address}")
            for address in ("http://tea.example?key=A", "https://tea.example?key=A")
        ),
        partial(adapted, "ollama", CHAT, {"top_k": 5}),
        partial(adapted, "ollama", COMPLETIONS, {"tools": [{}]}),
        partial(adapted, "openai", CHAT, {"response_format": {"type": "regex", "regex": "a"}}),
        partial(adapted, "tgi", EMBEDDINGS, {"input": "a"}),
        partial(AsyncOpenAIServer, "http://tea.example"),
        *(partial(validate_headers, headers, GRPC) for headers, _ in INVALID_HEADERS),
        *(partial(Client, **{name: value}) for name, value, _ in test_settings.INVALID),
        partial(Tls, ca=""),
        partial(Client, chat_template=tmp_path),
        *(partial(Sampling, **{name: value}) for name, value in test_sampling.INVALID),
        *(partial(Retry, **given) for given in retries),
        partial(Guide, unknown, "x"),
        partial(Guide, "regex", ""),
        partial(validate_request_id, ""),
        partial(generated, max_tokens=0),
        partial(generated, prompts="ab"),
        partial(generated, concurrency=0),
        partial(generated, timeout=-1),
        partial(find, text_models(), states={"ensemble": "LOADING"}),
        partial(find, text_models(), "preprocessing"),
        partial(find, text_models(), "chat"),
        partial(asked, MESSAGES),
        partial(asked, [{"role": "user", "content": object()}]),
        partial(asked, "Tea?", **unsupported),
        partial(build_stop_request, find(text_models(), "tensorrt_llm_bls"), "mine"),
        text_taken_back,
        partial(infer_request, tensor(2**31)),
        partial(infer_request, tensor("7")),
        partial(infer_request, InferRequest("m", "", {}, parameters={"count": 2**63})),
        without_contents,
        closed,
        partial(Metrics.parse, "<html>"),
        *(partial(encoded, method, values, options) for method, values, options, _, _ in INVALID_CALLS),
        no_model,
        another_model,
    ]
    check_messages(Path(__file__).with_name("messages.txt"), causes, tmp_path)
