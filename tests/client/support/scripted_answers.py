"""Answers of scripted servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import grpc

from tests.client.support.scripted_server import response


def whole(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    yield response("お")
    yield response("")
    yield response("茶 tea")
    yield response(".", "stop", tokens_in=3, tokens_out=4)


def never_ending(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
    while context.is_active():
        yield response("tea ")
        time.sleep(0.005)
