from __future__ import annotations

import time
from pathlib import Path

import pytest

from inflight.deploy.server.triton_log import LogRelay, failure_reason, is_relevant, log_size
from tests.fixtures.waiting import wait_until

STAMP = "1121 02:16:03.359434 16074"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f'I{STAMP} metrics.cc:770] "Collecting CPU metrics"', False),
        (f'W{STAMP} model.py:3] "a warning of a model"', True),
        (f'E{STAMP} process.py:164] "the engine\'s process died"', True),
        (
            f'E{STAMP} main.cc:535] "failed to stop server: Internal - Exit timeout expired. Exiting immediately."',
            False,
        ),
        (f'E{STAMP} ensemble_scheduler.cc:1468] "unable to create stream for ensemble: CUDA driver version"', False),
        (f'E{STAMP} model.cc:1] "[TensorRT-LLM][ERROR] CUDA runtime error in cudaMalloc: out of memory"', True),
        (f'W{STAMP} pinned_memory_manager.cc:170] "failed to allocate pinned system memory"', False),
        ("| Model | Version | Status |", False),
        ("+-------+", False),
        ("", False),
        ("Signal (15) received.", False),
        (" 4# abort in /lib/x86_64-linux-gnu/libc.so.6", False),
        ("what a model prints", True),
    ],
)
def test_only_what_an_operator_wants_is_shown(line: str, shown: bool) -> None:
    assert is_relevant(line) is shown


def test_the_reason_is_the_first_hand_error_and_what_the_model_printed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        f'E{STAMP} server.cc:241] "CudaDriverHelper has not been initialized."\n'
        'Traceback (most recent call last):\n  File "child.py", line 9, in main\n'
        "ValueError: there is no engine 'steam'\n"
        f'E{STAMP} backend_model.cc:692] "ERROR: Failed to create instance: the engine ended\\n\\nAt:\\n  a.py"\n'
        f"E{STAMP} model_lifecycle.cc:642] \"failed to load 'tensorrt_llm': the engine ended\\n\\nAt:\\n  a.py\"\n"
        f"E{STAMP} model_repository_manager.cc:7] \"'ensemble' depends on 'a' which has no loaded version.\"\n"
        f"I{STAMP} server.cc:674] \n+-----+\n| a | b |\n"
        "error: creating server: Internal - failed to load all models\n"
    )
    assert failure_reason(log) == (
        "failed to load 'tensorrt_llm': the engine ended / ValueError: there is no engine 'steam'"
    )


def test_without_an_error_the_last_line_stands_for_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\nerror while loading shared libraries: libx.so\n")
    assert failure_reason(log) == "error while loading shared libraries: libx.so"
    log.write_text("")
    assert failure_reason(log) == "it logged nothing"
    assert failure_reason(tmp_path / "none") == "it left no log"


def test_the_reason_is_not_an_earlier_starts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f'E{STAMP} a.cc:1] "the engine died"\n')
    begins = log_size(log)
    with log.open("a") as file:
        file.write(f'E{STAMP} main.cc:535] "failed to stop server: Internal - Exit timeout expired."\nlock_exception\n')
    assert failure_reason(log, begins) == "lock_exception"
    log.write_text("the log was emptied\n")
    assert failure_reason(log, begins) == "the log was emptied"


def test_the_relay_hands_on_whole_lines_as_they_come(tmp_path: Path) -> None:
    log, lines = tmp_path / "log", list[str]()
    log.touch()
    relay = LogRelay(log, lines.append, everything=False)
    relay.muted = False
    with log.open("a") as file:
        file.write("half")
        file.flush()
        time.sleep(0.5)
        assert lines == []
        file.write(f" a line\nI{STAMP} a.cc:1] nothing\n")
    relay.close()
    assert lines == ["half a line"]


def test_a_muted_relay_drops_what_comes_meanwhile(tmp_path: Path) -> None:
    log, lines = tmp_path / "log", list[str]()
    log.write_text("before\n")
    relay = LogRelay(log, lines.append, everything=False)
    wait_until(lambda: relay._offset > 0)
    relay.muted = False
    with log.open("a") as file:
        file.write("after\n")
    relay.close()
    assert lines == ["after"]
