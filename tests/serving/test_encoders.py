"""The models of encoders on a real Triton: what is sent, in any company, gets its own result.

The three encoders are such that numpy knows their results exactly.
"""

from __future__ import annotations

import random
import threading
import time
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
from tests.fixtures.bag_encoders import MAX_TOKENS, BagEncoder, write_bag_encoder
from tests.fixtures.crashes import shared_server
from tests.fixtures.waiting import wait_until
from tests.runtime.encoders.word_tokenizer import POISON
from tests.serving.metrics_page import MetricsPage, page_of

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


@pytest.fixture(scope="module")
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


def words(count: int, seed: int = 0) -> str:
    drawn = random.Random(seed)
    return " ".join(f"w{drawn.randrange(200)}" for _ in range(count))


def check(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_texts_become_vectors_with_their_tokens_counted(bag: BagServer) -> None:
    texts = ["", "w1", words(30), words(MAX_TOKENS - 2)]
    found = bag.embed(texts)
    check(found["embedding"], bag.encoders["embed"].rows(texts))
    assert found["num_input_tokens"].ravel().tolist() == [2, 3, 32, MAX_TOKENS]
    assert not found["truncated"].any()
    assert found["error"].ravel().tolist() == [b""] * 4


def test_a_prompt_goes_before_the_text(bag: BagServer) -> None:
    types = ["query", "passage", "document", ""]
    found = bag.embed(["w9"] * 4, input_type=[[kind] for kind in types])
    expected = [PROMPTS["query"] + "w9", PROMPTS["passage"] + "w9", PROMPTS["passage"] + "w9", "w9"]
    check(found["embedding"], bag.encoders["embed"].rows(expected))


def test_fewer_dimensions_are_normalized_again(bag: BagServer) -> None:
    found = bag.embed(["w1 w2", "w3"], dimensions=[[4], [4]])["embedding"]
    rows = bag.encoders["embed"].rows(["w1 w2", "w3"])[:, :4]
    check(found, rows / np.linalg.norm(rows, axis=1, keepdims=True))


def test_token_ids_are_taken_as_they_are(bag: BagServer) -> None:
    texts = ["w1 w2 w3", "w5"]
    ids = [encoding.ids for encoding in bag.encoders["embed"].tokenizer.encode_batch(texts)]
    padded = [[*row, *[0] * (8 - len(row))] for row in ids]
    found = bag.infer("embedding", input_ids=padded, input_lengths=[[len(row)] for row in ids])
    check(found["embedding"], bag.encoders["embed"].rows(texts))


def test_documents_are_scored_in_their_order(bag: BagServer) -> None:
    documents = [words(count, count) for count in (5, 0, 40, 1)]
    found = bag.infer("rerank", query=["w7 w8"], documents=documents)
    logits = bag.encoders["rerank"].rows([("w7 w8", document) for document in documents])[:, 0]
    check(found["scores"], 1 / (1 + np.exp(-logits)))
    assert found["num_input_tokens"].tolist() == [10, 5, 45, 6]


def test_labels_have_scores(bag: BagServer) -> None:
    texts = [words(count) for count in (3, 20)]
    found = bag.infer("classify", text_input=[[text] for text in texts])
    exponents = np.exp(bag.encoders["classify"].rows(texts))
    check(found["scores"], exponents / exponents.sum(axis=1, keepdims=True))
    assert found["labels"].tolist() == [[label.encode() for label in LABELS]] * 2


BAD_TEXTS = [(POISON, "text_not_computed"), (words(MAX_TOKENS - 1), "prompt_too_long"), (b"\xff", "invalid_text")]


@pytest.mark.parametrize(("bad", "code"), BAD_TEXTS, ids=[code for _, code in BAD_TEXTS])
def test_a_bad_text_fails_alone_if_errors_are_asked_for(bag: BagServer, bad: str | bytes, code: str) -> None:
    texts = ["w1", bad, "w2 w3"]
    found = bag.embed(texts)
    check(found["embedding"][[0, 2]], bag.encoders["embed"].rows(["w1", "w2 w3"]))
    assert np.isnan(found["embedding"][1]).all()
    errors = [one.decode() for one in found["error"].ravel()]
    assert errors[0] == errors[2] == ""
    assert errors[1].endswith(f"[{code}]")
    whole = bag.refused("embedding", ("embedding",), text_input=[[text] for text in texts])
    assert whole.endswith(f"[{code}]")
    assert whole.startswith("text 1: ")


def test_a_long_text_is_cut_on_request(bag: BagServer) -> None:
    long = words(100_000)
    found = bag.embed([long, "w1"], truncate=[[True], [True]])
    cut = " ".join(long.split()[: MAX_TOKENS - 2])
    check(found["embedding"], bag.encoders["embed"].rows([cut, "w1"]))
    assert found["truncated"].ravel().tolist() == [True, False]
    began = time.monotonic()
    assert bag.refused("embedding", ("embedding",), text_input=[[words(100_000)]]).endswith("[prompt_too_long]")
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("model", "inputs", "code"),
    [
        ("embedding", {"truncate": [[True]]}, "invalid_request"),
        ("embedding", {"text_input": [["w1"]], "input_ids": [[1]]}, "invalid_request"),
        ("embedding", {"text_input": [["w1"]], "dimensions": [[3]]}, "invalid_parameter"),
        ("embedding", {"text_input": [["w1"]] * 2, "dimensions": [[1], [2]]}, "invalid_request"),
        ("embedding", {"input_ids": [[1, 2]], "input_lengths": [[3]]}, "invalid_parameter"),
        ("embedding", {"input_ids": [[1, -2]]}, "invalid_token_ids"),
        ("embedding", {"input_ids": [[1, 2]], "input_lengths": [[0]]}, "empty_prompt"),
        ("rerank", {"query": [b"\xff"], "documents": ["w1"]}, "invalid_text"),
        ("rerank", {"query": [" " * 5000], "documents": ["w1"], "truncate": [True]}, "prompt_too_long"),
        ("embedding", {"text_input": [["w1"]], "deadline_ms": [[0]]}, "invalid_parameter"),
        ("classify", {"text_input": [["a\0b"]]}, "invalid_text"),
    ],
)
def test_wrong_requests_are_refused_with_their_code(
    bag: BagServer, model: str, inputs: dict[str, Any], code: str
) -> None:
    outputs = ("embedding",) if model == "embedding" else ("scores",)
    assert bag.refused(model, outputs, **inputs).endswith(f"[{code}]")


def quiet_page(bag: BagServer) -> MetricsPage:
    """Return the metrics once all of earlier requests are published, which happens every 0.1 s."""

    def settled() -> MetricsPage | None:
        names = "inflight_encoder_texts_total", "inflight_encoder_tokens_total"
        first = page_of(bag.server)
        time.sleep(0.5)
        second = page_of(bag.server)
        return second if all(first.family(name) == second.family(name) for name in names) else None

    page = wait_until(settled, "quiet metrics", 30)
    assert page is not None
    return page


def test_many_clients_with_calls_of_any_size_get_their_own_rows(bag: BagServer) -> None:
    """32 clients, a few milliseconds apart, with good and bad texts; and what the metrics say of it."""
    before = quiet_page(bag)
    failures: list[BaseException] = []
    sent = {"ok": 0, "error": 0, "real": 0}
    lock = threading.Lock()

    def client(seed: int) -> None:
        drawn = random.Random(seed)
        try:
            for _ in range(6):
                time.sleep(drawn.choice((0.001, 0.002, 0.005)))
                count = drawn.choice((1, 1, 2, 7, 30))
                texts = [words(drawn.randrange(MAX_TOKENS - 2), drawn.randrange(10**9)) for _ in range(count)]
                bad = drawn.randrange(count) if drawn.random() < 0.3 else None
                if bad is not None:
                    texts[bad] = POISON
                found = bag.embed(texts, priority=[[drawn.randrange(-1, 2)]] * count)
                good = [index for index in range(count) if index != bad]
                if good:
                    check(found["embedding"][good], bag.encoders["embed"].rows([texts[index] for index in good]))
                assert [bool(error) for error in found["error"].ravel()] == [index == bad for index in range(count)]
                with lock:
                    sent["ok"] += len(good)
                    sent["error"] += count - len(good)
                    sent["real"] += int(found["num_input_tokens"].sum())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]

    def difference(after: MetricsPage, name: str, **labels: str) -> float:
        return after.value(name, "embedding", **labels) - before.value(name, "embedding", **labels)

    def counted() -> bool:
        after = page_of(bag.server)
        return (
            difference(after, "inflight_encoder_texts_total", status="ok") == sent["ok"]
            and difference(after, "inflight_encoder_texts_total", status="error") == sent["error"]
            and difference(after, "inflight_encoder_tokens_total", kind="real") == sent["real"]
            and difference(after, "inflight_encoder_tokens_total", kind="padded") >= sent["real"]
            and difference(after, "inflight_encoder_batch_texts_sum") == sent["ok"] + sent["error"]
            and after.value("inflight_encoder_waiting_texts", "embedding") == 0
        )

    wait_until(counted, "the metrics of all texts", 30)


def test_cancelled_requests_end_and_others_are_answered(bag: BagServer) -> None:
    tensor = triton.InferInput("text_input", [256, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[words(60, seed).encode()] for seed in range(256)], dtype=np.object_))
    for _ in range(20):
        bag.client.async_infer("embedding", [tensor], callback=lambda result, error: None).cancel()
    check(bag.embed(["w1"])["embedding"], bag.encoders["embed"].rows(["w1"]))
    wait_until(lambda: page_of(bag.server).value("inflight_encoder_waiting_texts", "embedding") == 0, "the queue", 60)
