"""Parses the output of NVIDIA's programs: progress for the user, and errors."""

from __future__ import annotations

import re

from build_engines.progress import BuildProgress
from build_engines.tensorrt_llm.commands import Step

# The prefix of their log lines: "[11/21/2026-12:00:00] [TRT-LLM] [I] ".
_PREFIX = re.compile(r"^(\[[^\]]*\] )+")
_SERIALIZING = re.compile(r"Serializing engine to .*rank(\d+)\.engine")
_STEP_PATTERNS = (
    (re.compile(r"Loading calibration dataset"), "Loading the texts to calibrate with"),
    (re.compile(r"Starting quantization"), "Calibrating"),
    (re.compile(r"Quantization done"), "Writing the quantized checkpoint"),
)
# The last line of an exception, or an error of TensorRT's logger; warnings also mention errors.
_ERROR = re.compile(r"^((\w+\.)*\w*(Error|Exception|Interrupt)\b.*|AssertionError.*)$")
_LOGGED_ERROR = re.compile(r"\[E\] ?(.*)$")
_FULL = "No space left on device"
# The last line of a pool of workers, after the error of the one that failed.
_ELSEWHERE = "please check error log"
_MAX_REASON = 300


class OutputParser:
    """Parses the lines of one program. `reason` is its last error; `disk_full` says whether a disk was full."""

    def __init__(self, step: Step, ranks: int, progress: BuildProgress) -> None:
        self.reason = ""
        self.disk_full = False
        self._step = step
        self._ranks = ranks
        self._progress = progress

    def start(self, doing: str) -> None:
        self._progress.step(doing)
        if self._step == "build":
            self._progress.step(f"Compiling rank 1 of {self._ranks}")

    def feed(self, line: str) -> None:
        said = _PREFIX.sub("", line).strip()
        self.disk_full = self.disk_full or _FULL in said
        if _ERROR.match(said) and not (self.reason and _ELSEWHERE in said):
            self.reason = said[:_MAX_REASON]
        elif logged := _LOGGED_ERROR.search(line):
            self.reason = logged[1].strip()[:_MAX_REASON]
        if found := _SERIALIZING.search(said):
            rank = int(found[1])
            self._progress.step(f"Writing rank {rank + 1} of {self._ranks}")
            if rank + 1 < self._ranks:
                self._progress.step(f"Compiling rank {rank + 2} of {self._ranks}")
        for saying, sentence in _STEP_PATTERNS:
            if saying.search(said):
                self._progress.step(sentence)
