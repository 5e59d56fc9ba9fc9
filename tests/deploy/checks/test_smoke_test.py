from __future__ import annotations

import pytest

from inflight.deploy.checks import smoke_test


def test_each_trial_has_an_admin_key_that_nobody_can_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def refuse(command: list[str], *_: object) -> None:
        commands.append(command)
        raise MemoryError

    monkeypatch.setattr(smoke_test, "TritonProcess", refuse)
    for _ in range(2):
        with pytest.raises(MemoryError):
            smoke_test.smoke_test()
    keys = {part.partition("inflight-admin-key=")[2] for command in commands for part in command if "admin-key" in part}
    assert len(keys) == 2
    assert all(len(key) >= 32 for key in keys)
