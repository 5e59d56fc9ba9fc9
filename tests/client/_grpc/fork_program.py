"""A program that uses gRPC and forks: what its child may do is printed. See test_fork.py."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from inflight_client import InflightError
from inflight_client._grpc.async_transport import AsyncGrpcTransport
from inflight_client._grpc.sync_transport import GrpcTransport
from inflight_client.address import Address
from inflight_client.deadline import NEVER, Deadline

from tests.client._grpc.transports import request

ADDRESS = Address.parse(sys.argv[1])


def texts(transport: GrpcTransport) -> str:
    responses = transport.infer(request(), Deadline(20), NEVER)
    return "".join(response.text("text_output") or "" for response in responses)


async def aio_ready(transport: AsyncGrpcTransport) -> str:
    return str(await transport.model_ready("ensemble", Deadline(20)))


async def own_aio_ready() -> str:
    transport = AsyncGrpcTransport(ADDRESS, {}, None)
    try:
        return await aio_ready(transport)
    finally:
        await transport.close()


def in_child(what: Callable[[], object]) -> None:
    """Do it in a child, and print what comes of it, or the code of its error."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            print(what(), flush=True)
        except InflightError as error:
            print(error.code, flush=True)
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    transport, unused = GrpcTransport(ADDRESS, {}, None), GrpcTransport(ADDRESS, {}, None)
    in_child(lambda: texts(transport))  # nothing is open yet
    in_child(lambda: asyncio.run(own_aio_ready()))
    stuck = transport.infer(request("stuck"), NEVER, NEVER)
    next(stuck)
    in_child(lambda: texts(transport))  # the parent's connection is open
    in_child(lambda: next(stuck))
    in_child(lambda: texts(unused))
    in_child(lambda: asyncio.run(own_aio_ready()))
    in_child(lambda: [call() for call in (stuck.close, transport.close)])  # as the end of a `with` would
    print(texts(transport))  # and works on
    stuck.close()
    transport.close()
    in_child(lambda: texts(unused))  # nothing is open any more
    with asyncio.Runner() as runner:
        aio = AsyncGrpcTransport(ADDRESS, {}, None)
        print(runner.run(aio_ready(aio)))
        in_child(lambda: asyncio.run(aio_ready(aio)))
        in_child(lambda: texts(unused))
        print(runner.run(aio_ready(aio)))
        runner.run(aio.close())
        in_child(lambda: asyncio.run(own_aio_ready()))


if __name__ == "__main__":
    main()
