"""Malformed requests over gRPC: a valid message with something broken, and bytes that are no message."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from tests.serving.malformed.case import GrpcCase
from tests.serving.malformed.values import VALID, tensors, wrong_values
from tests.serving.raw_requests import TYPES, request

_FLAGS = ("stream", "streaming")
_ONE_RESPONSE = ("preprocessing", "postprocessing")
_SHAPES = [
    *([], [0], [-1], [1, 0], [1, 1, 1, 1], [2, 1], [1, 7], [-1, -1], [65, 1], [2**62, 2**62], [1, 2**40]),
    *([1] * 50, [2**63 - 1], [3, -3]),
]
_DATATYPES = ["UINT8", "FP32", "FP16", "BF16", "BOOL", "STRING", "", "int32", "\0", "X" * 999]


def grpc_case(source: random.Random, model: str) -> GrpcCase:
    """A request to `model` that is to be refused; seldom a single call of one that streams, which Triton refuses."""
    stream = source.random() < (0.5 if model in _ONE_RESPONSE else 0.95)
    message = valid_message(model)
    if source.random() < 0.1:
        return _no_message(source, message.SerializeToString(), model, stream)
    wrong = _scalars(model)
    if wrong and source.random() < 0.4:
        name, value = source.choice(wrong)
        raw = request(model, {**_plain(model), name: value}).SerializeToString()
        return GrpcCase(f"wrong value of {name[:30]}", f"{model}: {str(value)[:60]!r}", raw, stream)
    change = source.choice(_CHANGES)
    change(source, message)
    # Where another input takes its place in Triton's count, an ensemble ends without having begun.
    others = ("silent",) if model == "ensemble" and change is _input_dropped else ()
    kind = change.__name__.strip("_").replace("_", " ")
    return GrpcCase(kind, f"{model}: {message}"[:300].replace("\n", " "), message.SerializeToString(), stream, others)


def valid_message(model: str) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model)
    for tensor, raw in tensors(model):
        message.inputs.append(tensor)
        message.raw_input_contents.append(raw)
    return message


def _no_message(source: random.Random, raw: bytes, model: str, stream: bool) -> GrpcCase:
    kind = source.choice(["truncated", "random bytes", "nothing", "flipped bytes", "nested groups"])
    flipped = bytearray(raw)
    for _ in range(source.choice([1, 3, 20])):
        flipped[source.randrange(len(flipped))] = source.randrange(256)
    changed = {
        "truncated": raw[: source.randrange(len(raw))],
        "random bytes": source.randbytes(200),
        "nothing": b"",
        "flipped bytes": bytes(flipped),
        "nested groups": b"\x0b" * 10_000,
    }[kind]
    # Triton ends a stream of what is no message without a word.
    others = ("silent", "served") if kind == "flipped bytes" else ("silent",)
    return GrpcCase(f"{kind} as message", f"{model}: {changed[:60]!r}", changed, stream, others)


def _plain(model: str) -> dict[str, Any]:
    """The valid request by its arrays."""
    values = dict(VALID[model])
    if model == "tensorrt_llm":
        values["input_ids"] = np.array([values["input_ids"]], np.int32)
    return values


def _scalars(model: str) -> list[tuple[str, Any]]:
    """Wrong values that a tensor [1, 1] of the input's type can hold."""
    if model in _ONE_RESPONSE:
        return []
    found = [(name, value) for name, values in wrong_values(model).items() for value in values]
    return [(name, value) for name, value in found if _fits(name, value)]


def _fits(name: str, value: Any) -> bool:
    if isinstance(value, str):
        return name in ("text_input", "stop_words", "bad_words", "guided_decoding_guide_type") and value.isascii()
    dtype = TYPES.get(name)
    if dtype is None or isinstance(value, list):
        return False
    if not np.issubdtype(dtype, np.integer):
        return bool(abs(value) != 1e308)
    return bool(np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)


def _place(source: random.Random, message: Any) -> int:
    """Where a required input is."""
    return source.choice([at for at, tensor in enumerate(message.inputs) if tensor.name not in _FLAGS] or [0])


def _input_dropped(source: random.Random, message: Any) -> None:
    place = _place(source, message)
    del message.inputs[place]
    if source.random() < 0.7:
        del message.raw_input_contents[place : place + 1]


def _input_twice(source: random.Random, message: Any) -> None:
    place = _place(source, message)
    message.inputs.append(message.inputs[place])
    message.raw_input_contents.extend(message.raw_input_contents[place : place + 1])


def _input_renamed(source: random.Random, message: Any) -> None:
    message.inputs[_place(source, message)].name = source.choice(["", "heat", "text_input\1", "é" * 300])


def _other_type(source: random.Random, message: Any) -> None:
    message.inputs[_place(source, message)].datatype = source.choice(_DATATYPES)


def _other_shape(source: random.Random, message: Any) -> None:
    message.inputs[_place(source, message)].shape[:] = source.choice(_SHAPES)


def _other_bytes_than_the_shape_tells(source: random.Random, message: Any) -> None:
    place = _place(source, message)
    raw = message.raw_input_contents[place] if place < len(message.raw_input_contents) else b""
    other = [b"", raw[:-1], raw + b"\0", b"\xff" * 5, struct.pack("<I", 2**31 - 1) + b"a", bytes(10**6)]
    message.raw_input_contents[place : place + 1] = [source.choice(other)]


def _text_that_is_none(source: random.Random, message: Any) -> None:
    """Values of the right size and type that no model takes; also of numbers, where a model has no text."""
    for place, tensor in enumerate(message.inputs[: len(message.raw_input_contents)]):
        if tensor.datatype == "BYTES":
            texts = [b"\xff\xfe", b"a\0b", b"\xed\xa0\x80", b"tea \xff" * 10**5, bytes(500), b"\xc3\x28"]
            text = source.choice(texts)
            message.raw_input_contents[place] = struct.pack("<I", len(text)) + text
        elif tensor.name in ("input_lengths", "SEQUENCE_LENGTH", "request_output_len"):
            message.raw_input_contents[place] = struct.pack("<i", source.choice([-1, 2**31 - 1, -(2**31), 10**6]))


def _unknown_or_wrong_option(source: random.Random, message: Any) -> None:
    names = ["heat", "unknown", "\0", "temperature", "beam_width", "lora_weights"]
    name = source.choice(names)
    tensor = message.inputs.add(name=name, datatype=source.choice(["FP64", "UINT8", "INT64"]))
    tensor.shape.extend(source.choice([[1, 1], [1, 1], [1, 1, 1], [3, 1]]))
    message.raw_input_contents.append(source.randbytes(source.choice([0, 1, 8])))


def _typed_contents_beside_raw_ones(source: random.Random, message: Any) -> None:
    for tensor in message.inputs:
        tensor.contents.int_contents.extend([1] * source.randint(1, 4))
        tensor.contents.bytes_contents.extend([b"tea"] * source.randrange(3))


def _wrong_model(source: random.Random, message: Any) -> None:
    message.model_name = source.choice(["", "nobody", message.model_name + "\1", "é" * 500, "../ensemble"])


def _wrong_version(source: random.Random, message: Any) -> None:
    message.model_version = source.choice(["99", "one", "-2", "9" * 40])


def _unknown_output(source: random.Random, message: Any) -> None:
    message.outputs.add(name=source.choice(["", "nothing", "é" * 300]))


def _shared_memory_from_nowhere(source: random.Random, message: Any) -> None:
    region = message.inputs[_place(source, message)].parameters
    region["shared_memory_region"].string_param = source.choice(["nowhere", "", "é" * 300])
    region["shared_memory_byte_size"].int64_param = source.choice([4, 2**40, 2**62])


def _wrong_parameter(source: random.Random, message: Any) -> None:
    """Parameters of the protocol with a type that is not theirs."""
    name = source.choice(["sequence_start", "sequence_end", "priority", "timeout"])
    message.parameters[name].string_param = source.choice(["", "x", "y" * 5000])


_CHANGES: list[Callable[[random.Random, Any], None]] = [
    *(_input_dropped, _input_twice, _input_renamed, _other_type, _other_shape, _other_bytes_than_the_shape_tells),
    *(_text_that_is_none, _unknown_or_wrong_option, _typed_contents_beside_raw_ones, _wrong_model, _wrong_version),
    *(_unknown_output, _shared_memory_from_nowhere, _wrong_parameter),
]
