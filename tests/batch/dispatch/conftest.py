"""Coroutines are tests here: each in a separate event loop."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from inflight.batch.dispatch import endpoint


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    parameters = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in parameters}))
    return True


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """No server is given up here for dying too often, and scripted ones never call themselves ready wrongly."""
    monkeypatch.setattr(endpoint, "_CRASH_COOLDOWN_SECONDS", 0.0)
    if "served" not in request.fixturenames:
        monkeypatch.setattr(endpoint, "_AFTER_CRASH_SECONDS", 0.0)
