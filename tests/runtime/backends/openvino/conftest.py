from __future__ import annotations

import time

import pytest


@pytest.fixture(autouse=True)
def drafts_that_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps seem to take no time, so that drafts are made: those of tiny models would not pay."""
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
