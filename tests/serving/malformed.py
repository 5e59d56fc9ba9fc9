"""Malformed requests by the thousand, each drawn from a seed and its number: what to send where, over HTTP and gRPC.

Most are valid requests with one or several things broken: so they get past the first check. Some mutations leave a
request valid; it is served then. Values are tiny or absurd, never in between, so that nothing takes long.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from tests.serving.streams import request

VALID: dict[str, dict[str, Any]] = {
    "ensemble": {"text_input": "tea", "max_tokens": 4, "stream": True},
    "tensorrt_llm_bls": {"text_input": "tea", "max_tokens": 4, "stream": True},
    "tensorrt_llm": {"input_ids": [5, 6, 7], "input_lengths": 3, "request_output_len": 4, "streaming": True},
    "preprocessing": {"QUERY": "tea", "REQUEST_OUTPUT_LEN": 4},
    "postprocessing": {"TOKENS_BATCH": [[5, 6, 7]], "SEQUENCE_LENGTH": [3]},
}
"""A small request to each model, as JSON for the generate endpoint."""

OPTIONAL: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.9,
    "seed": 7,
    "repetition_penalty": 1.1,
    "min_tokens": 1,
    "presence_penalty": 0.1,
    "beam_width": 1,
    "return_log_probs": True,
    "end_id": 2,
    "pad_id": 0,
    "priority": 1,
    "stop_words": "stop",
    "bad_words": "",
    "num_return_sequences": 1,
    "deadline_ms": 60000,
    "lora_task_id": 0,
    "return_perf_metrics": True,
    "embedding_bias_words": "a",
    "embedding_bias_weights": 0.5,
    "guided_decoding_guide_type": "json",
    "guided_decoding_guide": "{}",
    "exclude_input_in_output": True,
}
TEXTUAL = ("ensemble", "tensorrt_llm_bls")

_JUNK: list[Any] = [
    *(None, True, -1, 0, 1.5, 2**31, -(2**31) - 1, 2**63, 2**64, -(2**63) - 1, 1e308, -1e308, 10**400),
    *(float("nan"), float("inf"), float("-inf"), "", "text", "a\0b", "\ud800", "\U0010ffff", " ", "0", "NaN"),
    *([], [[]], [[[[1]]]], {}, {"a": {"b": []}}, [1, "two", None], ["a", "b"], [1, 2, 3], [None], [{}], [[1], [2, 3]]),
]
_SHAPES = [[], [0], [1], [-1], [1, 0], [0, 1], [1, 1, 1], [2, 1], [1, 2], [-1, -1], [1, 2**40], [2**62, 2**62], [65, 1]]
_DATATYPES = [
    "INT32",
    "INT64",
    "UINT8",
    "FP32",
    "FP16",
    "BF16",
    "BOOL",
    "BYTES",
    "STRING",
    "",
    "int32",
    "\0",
    "X" * 999,
]


@dataclass(frozen=True)
class HttpCase:
    """A request line with headers and a body, as they go over the wire; `whole` says that they fit one another.

    Where they don't, no answer is due: a server waits for the rest, or closes the connection.
    """

    name: str
    raw: bytes
    whole: bool = True


@dataclass(frozen=True)
class GrpcCase:
    """A serialized ModelInferRequest, or what is none, for a stream or a single call."""

    name: str
    raw: bytes
    stream: bool


Case = HttpCase | GrpcCase


def case(number: int, models: tuple[str, ...], seed: int = 0) -> Case:
    """The malformed request of that number, for one of `models`; the same each time."""
    source = random.Random(f"{seed}-{number}")
    model = source.choice(models)
    return source.choice(_DRAWS)(source, model)


def _values(source: random.Random, model: str) -> dict[str, Any]:
    values = dict(VALID[model])
    if model in TEXTUAL:
        for name in source.sample(sorted(OPTIONAL), source.choice([0, 0, 1, 2, 4])):
            values[name] = OPTIONAL[name]
    return values


def _generate(source: random.Random, model: str) -> HttpCase:
    """The generate endpoints, whose JSON is an object of inputs."""
    values = _values(source, model)
    for _ in range(source.choice([1, 1, 1, 2, 3])):
        name = source.choice(sorted(values) or ["text_input"])
        change = source.randrange(5)
        if change <= 2:
            values[name] = source.choice([*_JUNK, "x" * source.choice([10**3, 10**5, 2 * 10**6])])
        elif change == 3:
            values.pop(name, None)
        else:
            values[source.choice(["", "heat", "max_tokens ", "\0", "é" * 500, "id", "sequence_id"])] = source.choice(
                _JUNK
            )
    endpoint = source.choice(["generate", "generate_stream"])
    return _over_http(source, f"/v2/models/{model}/{endpoint}", json.dumps(values).encode())


def _infer(source: random.Random, model: str) -> HttpCase:
    """The inference endpoint, whose JSON names each tensor's type and shape."""
    inputs = [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "data": _data(raw, tensor)}
        for tensor, raw in _tensors(model)
    ]
    for _ in range(source.choice([1, 1, 2])):
        tensor = source.choice(inputs)
        key = source.choice(["name", "datatype", "shape", "data", "parameters"])
        junk: list[Any] = _DATATYPES if key == "datatype" else _SHAPES if key == "shape" else _JUNK
        if source.random() < 0.2:
            tensor.pop(key, None)
        else:
            tensor[key] = source.choice([*junk, *_JUNK])
    whole: dict[str, Any] = {"inputs": source.choice([inputs, inputs, inputs, {}, None, "inputs", [None]])}
    if source.random() < 0.2:
        whole["outputs"] = source.choice([*_JUNK, [{"name": "nothing"}], [{"name": "text_output"}] * 3])
    path = source.choice([f"/v2/models/{model}/infer", f"/v2/models/{model}/versions/1/infer"])
    return _over_http(source, path, json.dumps(whole).encode())


def _over_http(source: random.Random, path: str, body: bytes) -> HttpCase:
    """The request as it is, or with its text, its length, its headers or its path broken too."""
    damage = source.randrange(12)
    name = f"{path}, damage {damage}: {body[:80]!r}"
    length: int | str = len(body)
    headers = ""
    whole = True
    if damage == 0:
        body = body[: source.randrange(len(body) + 1)]
        length = len(body)
    elif damage == 1:
        body = _flipped(source, body)
        length = len(body)
    elif damage == 2:
        opening = source.choice(["[", '{"a":', '[{"a":']) * source.choice([10, 1000, 100_000])
        body = body[:-1] + b', "deep": ' + opening.encode()
        length = len(body)
    elif damage == 3:
        body = source.choice(
            [b"", b"null", b"[]", b"{}", b"5", b'"', b"\xef\xbb\xbf" + body, body.decode().encode("utf-16"), body * 2]
        )
        length = len(body)
    elif damage == 4:
        lengths: list[int | str] = [len(body) + 50, len(body) // 2, -1, 2**63, 2**65, "many", ""]
        length = source.choice(lengths)
        whole = False
    elif damage == 5:
        headers = f"Inference-Header-Content-Length: {source.choice([0, -1, 5, len(body) + 1, 2**64, 'x'])}\r\n"
    elif damage == 6:
        headers = f"Content-Encoding: {source.choice(['gzip', 'deflate', 'br', 'x'])}\r\n"
    elif damage == 7:
        path = source.choice(
            [
                "/v2/models//generate",
                "/v2/models/nobody/generate",
                "/v2/models/ensemble/versions/99/infer",
                "/" + "a" * 9000,
                "/v2/models/%00/generate",
                "/v2/models/ensemble/../x",
            ]
        )
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    return HttpCase(name, head.encode() + body, whole)


def _grpc(source: random.Random, model: str) -> GrpcCase:
    message = service_pb2.ModelInferRequest(model_name=model)
    for tensor, raw in _tensors(model):
        message.inputs.append(tensor)
        message.raw_input_contents.append(raw)
    changes = [source.choice(_GRPC_CHANGES) for _ in range(source.choice([1, 1, 1, 2, 3]))]
    for change in changes:
        change(source, message)
    raw = message.SerializeToString()
    if source.random() < 0.15:
        raw = source.choice([_flipped(source, raw), raw[: source.randrange(len(raw) + 1)], source.randbytes(200), b""])
    names = " ".join(change.__name__ for change in changes)
    return GrpcCase(f"{model}: {names}", raw, stream=source.random() < 0.7)


def _tensors(model: str) -> list[tuple[Any, bytes]]:
    """The inputs of the valid request to a model, and their bytes."""
    values = dict(VALID[model])
    if model == "tensorrt_llm":
        values["input_ids"] = np.array([values["input_ids"]], np.int32)
    elif model == "postprocessing":
        values = {name: np.array([value], np.int32) for name, value in values.items()}
    elif model == "preprocessing":
        values["REQUEST_OUTPUT_LEN"] = np.array([[4]], np.int32)
    message = request(model, values)
    return list(zip(message.inputs, message.raw_input_contents, strict=True))


def _data(raw: bytes, tensor: Any) -> list[Any]:
    if tensor.datatype == "BYTES":
        return [raw[4:].decode()]
    values: list[Any] = np.frombuffer(raw, np.bool_ if tensor.datatype == "BOOL" else np.int32).tolist()
    return values


def _flipped(source: random.Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(source.choice([1, 3, 20]) if changed else 0):
        changed[source.randrange(len(changed))] = source.randrange(256)
    return bytes(changed)


def _drop(source: random.Random, message: Any) -> None:
    if message.inputs:
        position = source.randrange(len(message.inputs))
        del message.inputs[position]
        if position < len(message.raw_input_contents) and source.random() < 0.7:
            del message.raw_input_contents[position]


def _double(source: random.Random, message: Any) -> None:
    if message.inputs:
        position = source.randrange(len(message.inputs))
        message.inputs.append(message.inputs[position])
        if position < len(message.raw_input_contents) and source.random() < 0.7:
            message.raw_input_contents.append(message.raw_input_contents[position])


def _rename(source: random.Random, message: Any) -> None:
    for tensor in message.inputs[: source.randrange(3)]:
        tensor.name = source.choice(
            ["", "heat", "text_input\0", "é" * 300, "stream_key", "temperature", "prompt_embedding_table"]
        )


def _retype(source: random.Random, message: Any) -> None:
    if message.inputs:
        source.choice(message.inputs).datatype = source.choice(_DATATYPES)


def _reshape(source: random.Random, message: Any) -> None:
    if message.inputs:
        shape = source.choice([*_SHAPES, [source.randrange(-3, 4) for _ in range(source.randrange(6))]])
        source.choice(message.inputs).shape[:] = shape


def _resize(source: random.Random, message: Any) -> None:
    """Other bytes than the shape tells."""
    if message.raw_input_contents:
        position = source.randrange(len(message.raw_input_contents))
        raw = message.raw_input_contents[position]
        message.raw_input_contents[position] = source.choice(
            [b"", raw[:-1], raw + b"\0", raw * 2, b"\xff" * 4, struct.pack("<I", 2**31 - 1) + b"a", bytes(10**6)]
        )


def _misuse(source: random.Random, message: Any) -> None:
    """Values of the right size that nobody should send."""
    position = source.randrange(len(message.inputs) or 1)
    if position < len(message.raw_input_contents) and position < len(message.inputs):
        text = source.choice(
            [b"\xff\xfe", b"a\0b", b"", b"\xed\xa0\x80", b"tea " * 300_000, b"<s></s>" * 50, bytes(500)]
        )
        number = struct.pack("<i", source.choice([-1, 0, 2**31 - 1, -(2**31), 10**6]))
        is_text = message.inputs[position].datatype == "BYTES"
        message.raw_input_contents[position] = struct.pack("<I", len(text)) + text if is_text else number


def _add_optional(source: random.Random, message: Any) -> None:
    """An optional number of the textual models, by its own type or another, with any bits."""
    name = source.choice(
        [
            "temperature",
            "top_k",
            "top_p",
            "seed",
            "beam_width",
            "num_return_sequences",
            "deadline_ms",
            "stop_words",
            "lora_weights",
            "unknown",
        ]
    )
    tensor = message.inputs.add(name=name, datatype=source.choice(["INT32", "FP32", "UINT64", "BYTES", "FP16"]))
    tensor.shape.extend(source.choice([[1, 1], [1, 1], [1, 1], *_SHAPES]))
    message.raw_input_contents.append(
        source.choice(
            [b"\xff" * 4, struct.pack("<f", float("nan")), struct.pack("<f", 1e38), bytes(8), source.randbytes(4)]
        )
    )


def _type_contents(source: random.Random, message: Any) -> None:
    """Typed contents, beside raw ones or in place of them."""
    for tensor in message.inputs:
        tensor.contents.int_contents.extend([1] * source.randrange(4))
        tensor.contents.bytes_contents.extend([b"tea"] * source.randrange(3))
    if source.random() < 0.7:
        del message.raw_input_contents[:]


def _misaddress(source: random.Random, message: Any) -> None:
    message.model_name = source.choice(["", "nobody", "ensemble\0", "é" * 500, message.model_name])
    message.model_version = source.choice(["", "99", "one", "-1"])


def _ask_for_outputs(source: random.Random, message: Any) -> None:
    message.outputs.add(name=source.choice(["", "nothing", "text_output", "OUTPUT", "output_ids"]))


def _parameterize(source: random.Random, message: Any) -> None:
    names = ["priority", "timeout", "sequence_id", "sequence_start", "binary_data_output", "triton_x", "heat"]
    parameter = message.parameters[source.choice(names)]
    kind = source.randrange(4)
    if kind == 0:
        parameter.int64_param = source.choice([-1, 0, 1, 2**62])
    elif kind == 1:
        parameter.string_param = source.choice(["", "x", "y" * 5000])
    elif kind == 2:
        parameter.bool_param = True
    if message.inputs and source.random() < 0.5:
        region = source.choice(message.inputs).parameters
        region["shared_memory_region"].string_param = "nowhere"
        region["shared_memory_byte_size"].int64_param = source.choice([-1, 4, 2**62])


def _identify(source: random.Random, message: Any) -> None:
    message.id = source.choice(["", "x" * 100_000, "é", "\n", "a\0b"])


_GRPC_CHANGES: list[Callable[[random.Random, Any], None]] = [
    *(_drop, _double, _rename, _retype, _retype, _reshape, _reshape, _resize, _resize, _misuse, _misuse),
    *(_add_optional, _add_optional, _type_contents, _misaddress, _ask_for_outputs, _parameterize, _identify),
]

_DRAWS: list[Callable[[random.Random, str], Case]] = [_generate, _generate, _infer, _grpc, _grpc, _grpc]
