"""Clients that send a request and never read: the server memory that their answers take.

gRPC readers open their stream with a window of zero bytes; HTTP readers have the smallest receive buffer and leave it
full. The engine completes each answer whether it is read or not, so what waits for a reader is limited by its
`max_tokens`: at most that many responses of a certain size. That size is measured here, on the fake engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from inflight_client import AsyncClient
from rich.console import Console
from rich.table import Table
from tritonclient.grpc import service_pb2

from benchmarks.fixtures import bench_engine
from benchmarks.idle import ended_requests, wait_for_ended
from benchmarks.process_memory import MIB, resident_bytes
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server

MODELS = ("tensorrt_llm", "ensemble", "tensorrt_llm_bls")
MAX_TOKENS = 4096
_PROMPT = "tell me about tea"
_PROMPT_IDS = [5, 6, 7, 8]
_STABILIZE_SECONDS = 1.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_INITIAL_WINDOW_SIZE = 4
_END_HEADERS, _END_STREAM, _ACK = 4, 1, 1


@dataclass(frozen=True)
class ReaderMemory:
    """The memory of one group of readers: bytes of each process before it came, while it waited, after it had gone."""

    model: str
    transport: str
    readers: int
    max_tokens: int
    memory_before: dict[str, int]
    memory_during: dict[str, int]
    memory_after: dict[str, int]
    sockets: int
    """Additional bytes in the machine's TCP sockets while the readers waited."""

    @property
    def growth(self) -> int:
        return sum(self.memory_during.values()) - sum(self.memory_before.values())

    @property
    def remaining(self) -> int:
        return sum(self.memory_after.values()) - sum(self.memory_before.values())

    @property
    def per_reader(self) -> float:
        return (self.growth + self.sockets) / self.readers

    @property
    def per_response(self) -> float:
        return self.per_reader / self.max_tokens


def fake_engine() -> DeploymentOptions:
    """Return options of the fake engine with room for 64 answers of LONGEST tokens, without pauses between steps."""
    parameters = {
        "inflight_engine": "fake",
        "inflight_engine_options": json.dumps({"vocabulary_size": "512", "max_seq_len": str(2 * MAX_TOKENS)}),
    }
    return DeploymentOptions(kv_cache_tokens=128 * MAX_TOKENS, parameters={"tensorrt_llm": parameters})


def hold_readers(server: Server, model: str, transport: str, readers: int, max_tokens: int) -> ReaderMemory:
    """Let this many readers wait until the engine has completed all of their answers, then close them."""
    before, sockets, ended = _memory(server), _socket_bytes(), ended_requests(server)
    with contextlib.ExitStack() as crowd:
        for _ in range(readers):
            crowd.enter_context(contextlib.closing(_READERS[transport](server, model, max_tokens)))
        wait_for_ended(server, ended + readers)
        time.sleep(_STABILIZE_SECONDS)
        waiting, sockets = _memory(server), _socket_bytes() - sockets
        asyncio.run(_read_one(server.grpc_address))
    time.sleep(_STABILIZE_SECONDS)
    return ReaderMemory(model, transport, readers, max_tokens, before, waiting, _memory(server), max(0, sockets))


async def _read_one(address: str) -> None:
    """Check that other clients are served meanwhile."""
    async with AsyncClient(address) as client:
        await client.generate(_PROMPT, max_tokens=4, timeout=60)


def _memory(server: Server) -> dict[str, int]:
    return {member.name: resident_bytes(member) or 0 for member in server.instance.process_tree}


def _socket_bytes() -> int:
    """Return the bytes in the buffers of all TCP sockets of the machine."""
    for line in Path("/proc/net/sockstat").read_text(encoding="ascii").splitlines():
        if line.startswith("TCP:"):
            return int(line.split()[-1]) * 4096
    return 0


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    reader = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel uses its minimum
    reader.connect((host, int(port)))
    return reader


def _http_reader(server: Server, model: str, max_tokens: int) -> socket.socket:
    reader = _connect(server.http_address)
    values: dict[str, object] = {"text_input": _PROMPT, "max_tokens": max_tokens, "stream": True, "end_id": -1}
    if model == "tensorrt_llm":
        lengths = {"input_lengths": len(_PROMPT_IDS), "request_output_len": max_tokens}
        values = {"input_ids": _PROMPT_IDS, **lengths, "streaming": True, "end_id": -1}
    body = json.dumps(values).encode()
    head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    reader.sendall(head.encode() + body)
    return reader


def _grpc_reader(server: Server, model: str, max_tokens: int) -> socket.socket:
    """Send a gRPC call as raw HTTP/2 (RFC 9113), since any client library would read."""
    message = _infer_request(model, max_tokens).SerializeToString()
    reader = _connect(server.grpc_address)
    reader.sendall(
        _PREFACE
        + _frame(_SETTINGS, 0, 0, struct.pack("!HI", _INITIAL_WINDOW_SIZE, 0))
        + _frame(_SETTINGS, _ACK, 0, b"")
        + _frame(_HEADERS, _END_HEADERS, 1, _grpc_headers(server.grpc_address))
        + _frame(_DATA, _END_STREAM, 1, struct.pack("!BI", 0, len(message)) + message)
    )
    return reader


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack("!BBI", kind, flags, stream) + payload


def _grpc_headers(address: str) -> bytes:
    """Encode headers as literals without indexing (RFC 7541, section 6.2.2), shorter than 127 bytes."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/inference.GRPCInferenceService/ModelStreamInfer",
        ":authority": address,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    strings = ((name.encode(), value.encode()) for name, value in headers.items())
    return b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in strings)


def _infer_request(model: str, max_tokens: int) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=model)

    def add(name: str, datatype: str, shape: list[int], raw: bytes) -> None:
        tensor = request.inputs.add()
        tensor.name, tensor.datatype = name, datatype
        tensor.shape.extend(shape)
        request.raw_input_contents.append(raw)

    ids = model == "tensorrt_llm"
    if ids:
        add("input_ids", "INT32", [1, len(_PROMPT_IDS)], struct.pack(f"<{len(_PROMPT_IDS)}i", *_PROMPT_IDS))
        add("input_lengths", "INT32", [1, 1], struct.pack("<i", len(_PROMPT_IDS)))
    else:
        add("text_input", "BYTES", [1, 1], struct.pack("<I", len(_PROMPT)) + _PROMPT.encode())
    add("request_output_len" if ids else "max_tokens", "INT32", [1, 1], struct.pack("<i", max_tokens))
    add("streaming" if ids else "stream", "BOOL", [1, 1], b"\1")
    add("end_id", "INT32", [1, 1], struct.pack("<i", -1))
    return request


_READERS: dict[str, Callable[[Server, str, int], socket.socket]] = {"gRPC": _grpc_reader, "HTTP": _http_reader}
TRANSPORTS = tuple(_READERS)


@click.command(help=__doc__)
@click.option("--readers", default=64, show_default=True)
@click.option("--max-tokens", default=1000, show_default=True, type=click.IntRange(1, MAX_TOKENS))
@click.option("--like", default="tiny-llama", show_default=True, help="Model whose tokenizer is used.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(".cache/bench/silent.json"), show_default=True)
def main(readers: int, max_tokens: int, like: str, out: Path) -> None:
    console = Console()
    found = list(_measure(bench_engine(like, "fp32"), readers, max_tokens))
    table = Table(title=f"{readers} clients that never read, each with max_tokens {max_tokens}")
    columns = ("model", "over", "before MiB", "waiting", "after", "in sockets", "a reader KiB", "a response bytes")
    for column in columns:
        table.add_column(column, justify="right")
    for one in found:
        sizes = [sum(values.values()) / MIB for values in (one.memory_before, one.memory_during, one.memory_after)]
        table.add_row(
            one.model, one.transport, *(f"{size:.1f}" for size in sizes), f"{one.sockets / MIB:.1f}",
            f"{one.per_reader / 1024:.0f}", f"{one.per_response:.0f}",
        )  # fmt: skip
    console.print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps([asdict(one) for one in found], indent=2))
    console.print(f"All figures: {out}")


def _measure(engine: Path, readers: int, max_tokens: int) -> Iterator[ReaderMemory]:
    """Measure each group on its own server, after a small warm-up group, so that no group sees another's leftovers."""
    for model in MODELS:
        for transport in TRANSPORTS:
            with Server(engine, fake_engine()) as server:
                hold_readers(server, model, transport, readers, 16)
                yield hold_readers(server, model, transport, readers, max_tokens)


if __name__ == "__main__":
    main()
