"""One request to any of the models that answer, by the ensemble's names, and its responses as arrays with shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import InferResult

from inflight.deploy.server.server import Server
from inflight.text.tokenizer import encode, load_tokenizer
from tests.serving.raw_requests import GrpcConnection, request

ENSEMBLE, BLS, DIRECT = "ensemble", "tensorrt_llm_bls", "tensorrt_llm"
TEXT_MODELS = (ENSEMBLE, BLS)
MODELS = (ENSEMBLE, DIRECT)
"""Those with paths of their own: `tensorrt_llm_bls` is the ensemble under another name (test_bls.py)."""

DIRECT_NAMES = {
    "max_tokens": "request_output_len",
    "stream": "streaming",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
}
"""How `tensorrt_llm` calls an input that the others call otherwise."""


@dataclass(frozen=True)
class Reply:
    """One response: its tensors by name, or an error; `final` as Triton marks the last response of a request."""

    tensors: Mapping[str, Any] = field(default_factory=dict)
    final: bool = False
    error: str | None = None

    @property
    def text(self) -> str:
        """The text of the only sequence."""
        (text,) = self.texts
        return text

    @property
    def texts(self) -> list[str]:
        """The texts of all beams; they come in one dimension."""
        return [text.decode() for text in self.tensors["text_output"].tolist()]

    @property
    def token_ids(self) -> list[int]:
        """The ids of the only sequence."""
        ((token_ids,),) = self.tensors["output_ids"].tolist()
        assert self.tensors["sequence_length"].tolist() == [[len(token_ids)]]
        return list(token_ids)

    @property
    def finish_reason(self) -> str | None:
        found = self.tensors.get("finish_reason")
        return None if found is None else found.item().decode()

    def number(self, name: str) -> float:
        """The value of a tensor [1, 1]."""
        assert self.tensors[name].shape == (1, 1), name
        number: float = self.tensors[name].item()
        return number


def rows(*values: Any, dtype: Any = np.int32) -> Any:
    """A value for each prompt of a batch, as [prompts, 1]."""
    if isinstance(values[0], str):
        values, dtype = tuple(value.encode() for value in values), np.object_
    return np.array([[value] for value in values], dtype)


def words(*texts: str) -> Any:
    """Words for one prompt, as [1, words]."""
    return np.array([[text.encode() for text in texts]], np.object_)


def message(model: str, prompt: Any, max_tokens: Any, request_id: str = "", **values: Any) -> Any:
    """A request by the ensemble's names; `prompt` is a text, or token ids (direct only), or an array for a batch."""
    values = {"max_tokens": max_tokens, **values}
    if model != DIRECT:
        return request(model, {"text_input": prompt, **values}, request_id)
    if not isinstance(prompt, np.ndarray):
        prompt = np.array([prompt], np.int32)
    values = {"input_ids": prompt, "input_lengths": prompt.shape[1], **values}
    return request(DIRECT, {DIRECT_NAMES.get(name, name): value for name, value in values.items()}, request_id)


def stream_of(server: Server, sent: Any) -> list[Reply]:
    """All responses to a request sent on a stream, which then is closed, with Triton's mark of the last one."""
    sent.parameters["triton_enable_empty_final_response"].bool_param = True
    found: list[Reply] = []
    with GrpcConnection(server.grpc_address) as connection:
        for answer in connection.stub.ModelStreamInfer(iter([sent]), timeout=120):
            if answer.error_message:
                found.append(Reply(error=answer.error_message))
            else:
                final = answer.infer_response.parameters["triton_final_response"].bool_param
                found.append(Reply(_tensors(answer.infer_response), final))
    return found


def ask(server: Server, model: str, prompt: Any, max_tokens: Any, request_id: str = "", **values: Any) -> list[Reply]:
    """All responses to a request, none of which is an error."""
    found = stream_of(server, message(model, prompt, max_tokens, request_id, **values))
    assert [reply.error for reply in found] == [None] * len(found)
    return found


def together(server: Server, *sent: Any) -> list[list[Reply]]:
    """All responses to each of several requests that run at the same time, none of which is an error."""
    with ThreadPoolExecutor(len(sent)) as threads:
        found = list(threads.map(partial(stream_of, server), sent))
    assert [reply.error for replies in found for reply in replies if reply.error] == []
    return found


def refusal(server: Server, model: str, prompt: Any, max_tokens: Any, **values: Any) -> str:
    """The sentence by which a request is refused: its only response."""
    (reply,) = stream_of(server, message(model, prompt, max_tokens, **values))
    assert reply.error is not None, reply.tensors
    return reply.error


def once(server: Server, sent: Any) -> Reply:
    """The response to a request without a stream; grpc.RpcError where it is refused."""
    with GrpcConnection(server.grpc_address) as connection:
        return Reply(_tensors(connection.stub.ModelInfer(sent, timeout=120)), final=True)


def prompt_for(server: Server, model: str, text: str) -> Any:
    """The text itself, or its token ids for the engine's model."""
    return text if model != DIRECT else ids_of(server.engine, text)


def generate_body(server: Server, model: str, text: str, **values: Any) -> dict[str, Any]:
    """JSON for Triton's generate endpoints, by the ensemble's names."""
    prompt = prompt_for(server, model, text)
    if model != DIRECT:
        return {"text_input": prompt, **values}
    values = {DIRECT_NAMES.get(name, name): value for name, value in values.items()}
    return {"input_ids": prompt, "input_lengths": len(prompt), **values}


def whole(found: Sequence[Reply], model: str) -> Any:
    """What streamed responses hold together: the text, or the token ids."""
    if model != DIRECT:
        return "".join(reply.text for reply in found)
    return [token_id for reply in found for token_id in reply.token_ids]


@cache
def ids_of(engine: Path, text: str) -> list[int]:
    """The token ids of a prompt."""
    return encode(load_tokenizer(str(engine)), [text], add_special_tokens=True)[0]


@cache
def text_of(engine: Path, token_ids: tuple[int, ...]) -> str:
    """The text of token ids, without special tokens."""
    text: str = load_tokenizer(str(engine)).decode(list(token_ids), skip_special_tokens=True)
    return text


def _tensors(response: Any) -> dict[str, Any]:
    result = InferResult(response)
    return {output.name: result.as_numpy(output.name) for output in response.outputs}
