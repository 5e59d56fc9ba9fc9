"""The examples in the client's docstrings do what they say, against a running server."""

from __future__ import annotations

import ast
import asyncio
import doctest
import importlib
import pkgutil
import warnings
from types import CodeType
from typing import Any

import inflight_client
import pytest
from inflight_client import AsyncClient, Client

from inflight.deploy.server.server import Server

MODULES = [found.name for found in pkgutil.walk_packages(inflight_client.__path__, "inflight_client.")]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples_of(module: str) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    return [docstring for docstring in found if docstring.examples]


@pytest.mark.parametrize("module", [module for module in MODULES if examples_of(module)])
def test_the_examples_of_a_module(server: Server, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are given the `address` of a server, and a `client` of it; those of the asyncio client may use await."""
    told: list[str] = []
    asynchronous = "._async" in module
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if asynchronous else 0
    with asyncio.Runner() as runner:

        def execute(code: CodeType, names: dict[str, Any]) -> None:
            result = eval(code, names)
            if asyncio.iscoroutine(result):
                runner.run(result)

        monkeypatch.setattr(doctest, "exec", execute, raising=False)
        for docstring in examples_of(module):
            assert not any(doctest.SKIP in example.options for example in docstring.examples)
            client = (AsyncClient if asynchronous else Client)(server.grpc_address)
            with warnings.catch_warnings():
                docstring.globs |= {"address": server.grpc_address, "client": client}
                doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(docstring, flags, out=told.append)
            closed = client.close()
            if closed is not None:
                runner.run(closed)
    assert not told, "".join(told)


def test_both_clients_have_examples() -> None:
    found = {module for module in MODULES if examples_of(module)}
    assert {"inflight_client._sync.client", "inflight_client._async.client", "inflight_client.sampling"} <= found
