"""Clients that disconnect during their answers: by a gRPC cancel, a dropped HTTP connection, a killed process.

`python -m benchmarks.disconnects ADDRESS STREAMS MAX_TOKENS` is the process to be killed: it opens this many streams,
prints `open` when each has received something, and reads on until it is killed or they have ended.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

from inflight_client import AsyncClient, InflightError, Sampling

from benchmarks.traffic import REQUEST_TIMEOUT, ClientBehaviour, TrafficCounts, TrafficRequest

_PATH = "/v2/models/ensemble/generate_stream"
_CLIENT_TIMEOUT = REQUEST_TIMEOUT
_EVENT = b"data: "


def chunks_before_disconnect(request: TrafficRequest, source: random.Random) -> int:
    """Return a random number of chunks in the first half of the answer, so that the disconnect is in the middle."""
    return source.randint(1, max(1, request.max_tokens // 2))


def cancel_over_grpc(source: random.Random) -> ClientBehaviour:
    async def visit(client: AsyncClient, request: TrafficRequest, tally: TrafficCounts) -> None:
        tally.sent += 1
        left = chunks_before_disconnect(request, source)
        stream = client.stream(
            request.text, max_tokens=request.max_tokens, sampling=Sampling(end_id=-1), timeout=REQUEST_TIMEOUT
        )
        try:
            async for _ in stream:
                left -= 1
                if left <= 0:
                    break
            tally.disconnected += 1
        except InflightError as error:
            tally.fail(error.code, str(error))
        finally:
            await stream.aclose()

    return visit


def drop_over_http(address: str, source: random.Random) -> ClientBehaviour:
    host, _, port = address.rpartition(":")

    async def visit(_: AsyncClient, request: TrafficRequest, tally: TrafficCounts) -> None:
        tally.sent += 1
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    writer.write(_post(host, request))
                    error = await _read_chunks(reader, chunks_before_disconnect(request, source))
                finally:
                    writer.transport.abort()
        except TimeoutError:
            tally.hung += 1
        except OSError as failure:
            tally.fail(type(failure).__name__)
        else:
            if error is None:
                tally.disconnected += 1
            else:
                tally.fail("overloaded" if "Exceeds maximum queue size" in error else error)

    return visit


def _post(host: str, request: TrafficRequest) -> bytes:
    values = {"text_input": request.text, "max_tokens": request.max_tokens, "stream": True, "end_id": -1}
    body = json.dumps(values).encode()
    return f"POST {_PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _read_chunks(reader: asyncio.StreamReader, count: int) -> str | None:
    """Read this many events; return the error that was received instead of one, if any."""
    while count > 0:
        line = await reader.readline()
        if not line:
            return "the connection was closed"
        if line.startswith((_EVENT, b"{")):
            event = json.loads(line.removeprefix(_EVENT))
            if "error" in event:
                return str(event["error"])
            count -= 1
    return None


async def kill_client_process(address: str, streams: int, max_tokens: int, counts: TrafficCounts) -> None:
    """Start a process that opens `streams`, and kill it while they are open."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.disconnects", address, str(streams), str(max_tokens)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_CLIENT_TIMEOUT):
            counts_line = (await process.stdout.readline()).split()
    except TimeoutError:
        counts_line = []
    process.kill()
    await process.wait()
    if len(counts_line) == 3:
        opened, refused = int(counts_line[1]), int(counts_line[2])
        counts.disconnected += opened
        counts.rejected += refused
        counts.sent += opened + refused
    else:
        counts.failures["doomed process"] += 1


async def _run_client_process(address: str, streams: int, max_tokens: int) -> None:
    """Open the streams, print how many are open and how many were rejected, and read on."""
    opened = refused = 0

    async def one(client: AsyncClient, number: int) -> None:
        nonlocal opened, refused
        begun = False
        try:
            async for _ in client.stream(
                f"{number} clients that will not see the end", max_tokens=max_tokens, sampling=Sampling(end_id=-1)
            ):
                if not begun:
                    begun = True
                    opened += 1
                    print_counts()
        except InflightError:
            refused += 1
            print_counts()

    def print_counts() -> None:
        if opened + refused == streams:
            print("open", opened, refused, flush=True)

    async with AsyncClient(address) as client:
        await asyncio.gather(*(one(client, number) for number in range(streams)))


if __name__ == "__main__":
    asyncio.run(_run_client_process(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
