"""Malformed requests over HTTP: to the generate endpoints and the inference endpoint, and bytes that are no request."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.serving.malformed.case import HttpCase, flipped
from tests.serving.malformed.values import OPTIONAL, TEXTUAL, VALID, mistyped_values, tensors, wrong_values

_JUNK: list[Any] = [None, True, -1, 1.5, 2**64, 10**400, float("nan"), "text", "\ud800", {}, [None], {"a": {"b": []}}]
_DATATYPES = ["FP16", "BF16", "STRING", "", "int32", "\0", "X" * 999, *_JUNK]
_SHAPES = [[0], [-1], [1, 0], [1, 1, 1, 1], [2, 1], [1, 7], [-1, -1], [65, 1], [1.5], ["1", 1]]
_TOO_LONG = "/" + "a" * 9000
"""A path at which Triton's HTTP library hangs up."""
_DEPTH = 10_000
"""Of nested JSON. Ten times as deep, Triton 2.51 overflows its stack: see test_malformed."""


def http_case(source: random.Random, model: str) -> HttpCase:
    """A request to `model` that is to be refused; at the inference endpoint seldom to one of those that stream.

    That endpoint refuses these whatever they are sent.
    """
    draw = source.choice(_DRAWS)
    if draw in _TENSORS and source.random() < 0.9:
        model = source.choice(["preprocessing", "postprocessing"])
    return draw(source, model)


def _valid(source: random.Random, model: str) -> dict[str, Any]:
    """A valid request as JSON for the generate endpoint, with some optional inputs."""
    values = dict(VALID[model])
    if model in TEXTUAL:
        names = source.sample(sorted(OPTIONAL), source.choice([0, 0, 1, 2, 4]))
        values |= {name: OPTIONAL[name] for name in names}
    return values


def _wrong_value(source: random.Random, model: str) -> HttpCase:
    values = _valid(source, model)
    wrong = mistyped_values(model) if source.random() < 0.3 else wrong_values(model)
    names = source.sample(sorted(wrong), source.choice([1, 1, 1, 2, 3]))
    values |= {name: source.choice(wrong[name]) for name in names}
    return _generate(source, model, f"wrong value of {names[0][:30]}", values)


def _missing_input(source: random.Random, model: str) -> HttpCase:
    values = _valid(source, model)
    required = [name for name in VALID[model] if name not in ("stream", "streaming")]
    for name in source.sample(required, source.choice([1, 1, 2])):
        del values[name]
    case = _generate(source, model, "missing input", values)
    # Where another input takes its place in Triton's count, an ensemble ends without having begun.
    return replace(case, others=("silent",)) if model == "ensemble" else case


def _no_object(source: random.Random, model: str) -> HttpCase:
    """A body that is no JSON object, for either endpoint."""
    body = json.dumps(_valid(source, model)).encode()
    opening = source.choice(["[", '{"a":', '[{"a":']) * source.choice([10, 1000, _DEPTH // 2])
    kinds: dict[str, bytes] = {
        "no JSON": source.choice([b"", b" ", b'"', b"tea", b"{", b"}", b"nul", b"\0" * 50, source.randbytes(200)]),
        "truncated": body[: source.randrange(1, len(body))],
        "not an object": source.choice([b"null", b"[]", b"5", b'"tea"', b"true", b"[" + body + b"]"]),
        "an empty object": b"{}",
        "another encoding": body.decode().encode(source.choice(["utf-16", "utf-32", "utf-16-be"])),
        "twice": body + body,
        "more behind it": body + source.choice([b"}", b",", b"tea", b"{}"]),
        "nesting without end": body[:-1] + b', "deep": ' + opening.encode(),
        "single quotes": body.replace(b'"', b"'"),
        "a bare control character": body.replace(b"tea", b"t\x01a\n").replace(b"[5", b"[\x015"),
    }
    kind = source.choice(sorted(kinds))
    return http_post(_endpoint(source, model), kind, kinds[kind])


def _wrong_tensor(source: random.Random, model: str) -> HttpCase:
    """The inference endpoint, whose JSON names each tensor's type and shape."""
    inputs = json_tensors(model)
    # Without the flag for streams the request would go on without it, so that one stays whole.
    tensor = source.choice([one for one in inputs if one["name"] not in ("stream", "streaming")])
    kind = source.choice(["name", "datatype", "shape", "data"])
    junk = {"name": ["heat", "", "é" * 300, *_JUNK], "datatype": _DATATYPES, "shape": [*_SHAPES, *_JUNK], "data": _JUNK}
    if source.random() < 0.15:
        del tensor[kind]
    elif kind == "data":
        wrong = [value for value in junk["data"] if not (tensor["datatype"] == "BYTES" and value == "text")]
        tensor["data"] = source.choice([*wrong, [], tensor["data"] * 5, [*tensor["data"], None]])
    else:
        tensor[kind] = source.choice(junk[kind])
    return _infer(source, model, f"tensor's {kind}", {"inputs": inputs})


def _wrong_request(source: random.Random, model: str) -> HttpCase:
    inputs = json_tensors(model)
    first = next(one for one in inputs if one["name"] not in ("stream", "streaming"))
    wholes: dict[str, Any] = {
        "inputs that are no list": {"inputs": source.choice([{}, None, "inputs", 5, [None], [[]], [5]])},
        "no inputs": source.choice([{}, {"inputs": []}, {"input": inputs}]),
        "an input missing": {"inputs": [one for one in inputs if one is not first]},
        "an input twice": {"inputs": [*inputs, first]},
        "unknown input": {"inputs": [*inputs, {**first, "name": source.choice(["heat", "", "text_input\0"])}]},
        "unknown output": {"inputs": inputs, "outputs": [{"name": source.choice(["nothing", "", "é" * 300])}]},
        "outputs that are no list": {"inputs": inputs, "outputs": source.choice([5, "text_output", [5], [{}]])},
        "shared memory from nowhere": {"inputs": [{**_head(one), **_region(source)} for one in inputs]},
        "binary data that is not there": {"inputs": [{**_head(one), **_size(source)} for one in inputs]},
    }
    kind = source.choice(sorted(wholes))
    return _infer(source, model, kind, wholes[kind])


def _binary_extension(source: random.Random, model: str) -> HttpCase:
    """Tensors as bytes behind the JSON, which do not fit what it says."""
    pieces = [raw for _, raw in tensors(model)]
    heads = [_head(one) for one in json_tensors(model)]
    for head, raw in zip(heads, pieces, strict=True):
        head["parameters"] = {"binary_data_size": len(raw)}
    place = source.randrange(len(heads))
    kind = source.choice(["declared size", "bytes missing", "bytes too many", "string length", "header length"])
    if kind == "declared size":
        heads[place]["parameters"] = {
            "binary_data_size": source.choice([-1, 10**6, 2**40, 2**63, 2**64, "4", 1.5, None])
        }
    elif kind == "bytes missing":
        pieces[-1] = pieces[-1][:-1]
    elif kind == "bytes too many":
        pieces.append(source.choice([b"\0", b"tea", bytes(10**5)]))
    elif kind == "string length":
        kind = "bytes garbled"
        pieces = [source.choice([b"\xff" * 4, struct.pack("<I", 2**31 - 1)]) + raw[4:] + b"\0" for raw in pieces]
    text = json.dumps({"inputs": heads}).encode()
    lengths = [1, 5, len(text) - 1, len(text) + 3, 10**6]
    length = source.choice(lengths) if kind == "header length" else len(text)
    headers = f"Inference-Header-Content-Length: {length}\r\n"
    return http_post(f"/v2/models/{model}/infer", f"binary data, {kind}", text + b"".join(pieces), headers)


def _wrong_address(source: random.Random, model: str) -> HttpCase:
    """A valid body, sent to an address that no model has."""
    path = source.choice(
        [
            *(
                "/v2/models//generate",
                "/v2/models/nobody/generate",
                "/v2/models/nobody/infer",
                "/v2/models/%00/generate",
            ),
            *(f"/v2/models/{model}/versions/99/infer", f"/v2/models/{model}/versions/one/infer"),
            *(f"/v2/models/{model}/../x", f"/v2/models/{model}/degenerate", "/v3", _TOO_LONG),
            *("/v2/models/" + "é" * 99 + "/generate", "/v2/models/nobody/versions/-1/generate"),
        ]
    )
    case = http_post(path.encode().decode("latin-1"), "wrong address", json.dumps(_valid(source, model)).encode())
    return replace(case, others=("closed",)) if path == _TOO_LONG else case


def _wrong_encoding(source: random.Random, model: str) -> HttpCase:
    coding = source.choice(["gzip", "deflate"])
    body = json.dumps(_valid(source, model)).encode()
    return http_post(f"/v2/models/{model}/infer", f"not {coding}", body, f"Content-Encoding: {coding}\r\n")


def _wrong_length(source: random.Random, model: str) -> HttpCase:
    """Headers that promise another body than comes."""
    path, body = _endpoint(source, model), json.dumps(_valid(source, model)).encode()
    lengths: list[int | str] = [len(body) + 50, len(body) // 2, -1, 2**63, 2**65, "many", ""]
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {source.choice(lengths)}\r\n\r\n"
    garbage = [b"\x16\x03\x01" + bytes(200), b"PRI * HTTP/2.0\r\n\r\n", b"POST\r\n\r\n", source.randbytes(300), b"\r\n"]
    chunks = b"Transfer-Encoding: chunked\r\n\r\n" + source.choice(
        [b"zz\r\n", b"ffffffffffffffff\r\na", b"5\r\nab\r\n0"]
    )
    raw = source.choice(
        [
            head.encode() + body,
            head.encode() + body,
            head.encode() + body,
            *garbage,
            b"POST " + path.encode() + b" HTTP/1.1\r\nHost: x\r\n" + chunks,
        ]
    )
    return HttpCase("no whole request", path, raw, others=("served", "closed", "hanging"), whole=False)


def _flipped(source: random.Random, model: str) -> HttpCase:
    body = flipped(source, json.dumps(_valid(source, model)).encode())
    return replace(http_post(_endpoint(source, model), "flipped bytes", body, ""), others=("served", "silent"))


def json_tensors(model: str) -> list[dict[str, Any]]:
    """The tensors of a valid request to the inference endpoint."""
    return [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "data": _data(raw, tensor)}
        for tensor, raw in tensors(model)
    ]


def _data(raw: bytes, tensor: Any) -> list[Any]:
    if tensor.datatype == "BYTES":
        return [raw[4:].decode()]
    values: list[Any] = np.frombuffer(raw, np.bool_ if tensor.datatype == "BOOL" else np.int32).tolist()
    return values


def _head(tensor: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tensor.items() if name != "data"}


def _region(source: random.Random) -> dict[str, Any]:
    size = source.choice([0, 4, 2**40, 2**63])
    return {"parameters": {"shared_memory_region": "nowhere", "shared_memory_byte_size": size}}


def _size(source: random.Random) -> dict[str, Any]:
    return {"parameters": {"binary_data_size": source.choice([1, 4, 100, 2**40])}}


def _endpoint(source: random.Random, model: str) -> str:
    return f"/v2/models/{model}/{source.choice(['generate', 'generate_stream'])}"


def _generate(source: random.Random, model: str, kind: str, values: dict[str, Any]) -> HttpCase:
    return http_post(_endpoint(source, model), kind, json.dumps(values).encode())


def _infer(source: random.Random, model: str, kind: str, whole: dict[str, Any]) -> HttpCase:
    path = source.choice([f"/v2/models/{model}/infer", f"/v2/models/{model}/versions/1/infer"])
    return http_post(path, kind, json.dumps(whole).encode())


def http_post(path: str, kind: str, body: bytes, headers: str = "") -> HttpCase:
    """A whole POST request; the server is to close the connection behind its answer."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return HttpCase(kind, f"{path[:60]}: {body[:200]!r}", head.encode("latin-1") + body)


_TENSORS: list[Callable[[random.Random, str], HttpCase]] = [
    *([_wrong_tensor] * 3),
    *([_wrong_request] * 2),
    *([_binary_extension] * 2),
    _wrong_encoding,
]
_DRAWS: list[Callable[[random.Random, str], HttpCase]] = [
    *([_wrong_value] * 10),
    *([_no_object] * 2),
    *(_missing_input, _wrong_address, _wrong_length, _flipped),
    *_TENSORS,
]
