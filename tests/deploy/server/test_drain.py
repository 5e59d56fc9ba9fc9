"""In which order models are unloaded, by a scripted server; `test_server.py` drains real ones."""

from __future__ import annotations

from collections import Counter

from inflight.deploy.server.instance import drain
from inflight.deploy.server.probe import Probe

CALLERS, ENGINE = ["ensemble", "tensorrt_llm_bls", "rerank"], "tensorrt_llm"
POLLS = 3
"""A model's last request has ended when it is looked at so many times."""


class ScriptedProbe(Probe):
    """Writes down which models were unloaded, and which requests had ended."""

    events: list[str]
    looks: Counter[str]

    def total_count(self) -> int | None:
        return None

    def unload(self, model: str) -> None:
        self.events.append(f"unload {model}")

    def unloaded(self, model: str) -> bool:
        self.looks[model] += 1
        if self.looks[model] == POLLS:
            self.events.append(f"end {model}")
        return self.looks[model] >= POLLS


def test_the_engine_is_unloaded_once_the_requests_of_all_that_call_it_have_ended() -> None:
    ScriptedProbe.events, ScriptedProbe.looks = [], Counter()
    assert drain(ScriptedProbe("", 0, "", ("generate", "rerank")), 60.0, lambda: False, lambda: 0.0)
    before, after = ScriptedProbe.events[:-2], ScriptedProbe.events[-2:]
    assert sorted(before) == sorted(f"{what} {model}" for model in CALLERS for what in ("unload", "end"))
    assert after == [f"unload {ENGINE}", f"end {ENGINE}"]
