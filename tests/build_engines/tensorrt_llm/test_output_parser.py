from __future__ import annotations

import pytest

from build_engines.tensorrt_llm.run import OutputParser
from tests.build_engines.build_runs import RecordedProgress

# As examples/models/core/commandr/README.md of TensorRT-LLM shows it.
REAL = """\
[09/19/2024-03:34:30] [TRT] [I] Engine generation completed in 26.9495 seconds.
[09/19/2024-03:34:55] [TRT-LLM] [I] Total time of building Unnamed Network 0: 00:00:52
[09/19/2024-03:34:55] [TRT-LLM] [I] Serializing engine to trt_engines/command_r_v01/fp16/1-gpu/rank0.engine...
[09/19/2024-03:35:20] [TRT-LLM] [I] Engine serialized. Total time: 00:00:25
[09/19/2024-03:35:23] [TRT-LLM] [I] Total time of building all engines: 00:01:47
"""


def heard(text: str, ranks: int = 1) -> tuple[OutputParser, list[str]]:
    progress = RecordedProgress()
    listener = OutputParser("build", ranks, progress)
    listener.start("Building the engine")
    for line in text.splitlines():
        listener.feed(line)
    return listener, progress.sentences


def test_what_trtllm_build_prints_becomes_steps() -> None:
    listener, sentences = heard(REAL, 2)
    assert sentences == [
        "Building the engine",
        "Compiling rank 1 of 2",
        "Writing rank 1 of 2",
        "Compiling rank 2 of 2",
    ]
    assert (listener.reason, listener.disk_full) == ("", False)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", "torch.OutOfMemoryError: CUDA out of memory."),
        (
            "ValueError: Unsupported bits\nAssertionError: failed, please check error log.",
            "ValueError: Unsupported bits",
        ),
        ("AssertionError: Engine building failed, please check error log.", "AssertionError: Engine building failed,"),
        ("[09/19/2024-03:34:30] [TRT] [E] Error Code 4: no kernel", "Error Code 4: no kernel"),
        ("FutureWarning: LEGACY WARNING: an Error-prone workflow", ""),
        ("  warnings.warn('DeprecationError')", ""),
    ],
)
def test_the_last_error_is_the_reason_and_warnings_are_none(output: str, reason: str) -> None:
    assert heard(output)[0].reason.startswith(reason)
    assert bool(heard(output)[0].reason) == bool(reason)


def test_a_full_disk_is_recognised() -> None:
    assert heard("OSError: [Errno 28] No space left on device: '/e/rank0.engine'")[0].disk_full
