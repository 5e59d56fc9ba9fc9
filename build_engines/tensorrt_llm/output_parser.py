"""What NVIDIA's programs print: sentences for the user, and what went wrong."""

from __future__ import annotations

import re

from build_engines.progress import BuildProgress
from build_engines.tensorrt_llm.commands import Step

# "[11/21/2026-12:00:00] [TRT-LLM] [I] ", with which their loggers begin.
_PREFIX = re.compile(r"^(\[[^\]]*\] )+")
_SERIALIZING = re.compile(r"Serializing engine to .*rank(\d+)\.engine")
_STEP_PATTERNS = (
    (re.compile(r"Loading calibration dataset"), "Loading the texts to calibrate with"),
    (re.compile(r"Starting quantization"), "Calibrating"),
    (re.compile(r"Quantization done"), "Writing the quantized checkpoint"),
)
# An exception's last line, or an error of TensorRT's logger; warnings name errors too.
_ERROR = re.compile(r"^((\w+\.)*\w*(Error|Exception|Interrupt)\b.*|AssertionError.*)$")
_LOGGED_ERROR = re.compile(r"\[E\] ?(.*)$")
_FULL = "No space left on device"
# What a pool of workers says last, after the error of the one that failed.
_ELSEWHERE = "please check error log"
_MAX_REASON = 300


class OutputParser:
    """Hears the lines of one program. `reason` is its last error, `disk_full` whether a disk was full."""

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
