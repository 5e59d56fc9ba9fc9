"""A process that tests guides before the engine uses them.

The library compiles a guide in the middle of a step. There, an error ends every request, and a guide that overflows the
stack, exhausts memory or never compiles takes the engine's process down; here it takes down this process only. Start it
as `python -m inflight.runtime.backends.openvino.guided_decoding.probe FD ENGINE_DIR VOCABULARY_SIZE END_IDS` with FD a
socket: it sends a GuideProbeResult once it is ready, then receives one DecodingGuide at a time and answers with a
GuideProbeResult.
"""

from __future__ import annotations

import math
import os
import re
import resource
import signal
import sys
import tempfile
import time
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

from inflight.common.process_guard import die_with_parent
from inflight.runtime.backends.openvino.generation_config import structured_output
from inflight.runtime.backends.openvino.guided_decoding.dummy_model import write_dummy_model
from inflight.runtime.backends.openvino.guided_decoding.probe_process import GuideProbeResult
from inflight.runtime.messages import DecodingGuide, GuideType

COMPILE_SECONDS = 1.0
"""Processor time limit of compiling a guide; the engine's streams wait meanwhile."""

TOKEN_SECONDS = 0.02
"""Limit of the mean processor time to find the allowed tokens; it grows without bound for ambiguous grammars."""

WALK_TOKENS = (160, 32, 32)
"""Tokens of each test answer."""

_STACK_BYTES = 4 << 20
"""Half of the engine's stack, so that a guide that passes here doesn't overflow it there."""


class GuideProbe:
    """Generates random answers within a guide, on a model that costs nothing."""

    def __init__(self, engine_dir: str, vocabulary_size: int, end_ids: tuple[int, ...]) -> None:
        self._tokenizer = openvino_genai.Tokenizer(engine_dir)
        self._vocabulary_size = vocabulary_size
        self._end_ids = end_ids
        self._stuck_log_prob = math.log(1 / vocabulary_size)
        self._pipeline = dummy_pipeline(self._tokenizer, vocabulary_size)

    def probe(self, guide: DecodingGuide) -> GuideProbeResult:
        """Probe a guide; this takes seconds at most if the compiler returns."""
        before = _resident_bytes()
        try:
            fault = self._find_fault(guide)
        except RuntimeError as error:
            self._pipeline = dummy_pipeline(
                self._tokenizer, self._vocabulary_size
            )  # such a step has broken the old one
            fault = f"can't be used ({_reason(error)}); fix it"
        return GuideProbeResult(fault, max(0, _resident_bytes() - before))

    def _find_fault(self, guide: DecodingGuide) -> str:
        compiled = 0.0
        for number, tokens in enumerate(WALK_TOKENS):
            first, rest, log_probs = self._walk(guide, tokens, seed=number)
            compiled = compiled or first
            if compiled > COMPILE_SECONDS:
                return f"takes {compiled:.1f} s to compile, and {COMPILE_SECONDS:g} s are allowed; make it simpler"
            if rest > TOKEN_SECONDS:
                return "is so ambiguous that the search for allowed tokens slows down with each token; make it simpler"
            if self._stuck(log_probs):
                return "reaches a point where no token is allowed and the answer is incomplete; fix it"
        return ""

    def _walk(self, guide: DecodingGuide, tokens: int, seed: int) -> tuple[float, float, list[float]]:
        """Return the processor time of the first step, the mean of the others, and the tokens' log probabilities."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.eos_token_id = self._end_ids[0]
        config.stop_token_ids = set(self._end_ids)
        config.do_sample = True
        config.rng_seed = seed
        config.structured_output_config = structured_output(guide)
        generation = self._pipeline.add_request(seed, openvino.Tensor(np.zeros((1, 1), np.int64)), config)
        started = time.process_time()
        self._pipeline.step()
        compiled = time.process_time()
        steps = 0
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            steps += 1
            if time.process_time() - compiled > tokens * TOKEN_SECONDS:
                break
        walked = time.process_time() - compiled
        if self._pipeline.has_non_finished_requests():
            generation.cancel()
            self._pipeline.step()
            return compiled - started, math.inf, []
        (output,) = generation.read_all()
        return compiled - started, walked / max(steps, 1), list(output.generated_log_probs)

    def _stuck(self, log_probs: list[float]) -> bool:
        """Return whether no token was allowed: the library then takes any token, with equal probabilities.

        The dummy model may give a token that very probability by chance, but hardly two in a row.
        """
        even = [abs(log_prob - self._stuck_log_prob) < 3e-6 for log_prob in log_probs]
        return any(one and other for one, other in pairwise(even))


def dummy_pipeline(
    tokenizer: openvino_genai.Tokenizer, vocabulary_size: int
) -> openvino_genai.ContinuousBatchingPipeline:
    """Return a pipeline of the dummy model for one request at a time; `tokenizer` keeps the compiled guides."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = 16
    scheduler.max_num_seqs = 1
    scheduler.enable_prefix_caching = False
    with tempfile.TemporaryDirectory(prefix="inflight-") as directory:
        write_dummy_model(vocabulary_size, Path(directory))
        return openvino_genai.ContinuousBatchingPipeline(
            directory, tokenizer, scheduler, "CPU", INFERENCE_NUM_THREADS=1, sampler_num_threads=1
        )


def _reason(error: Exception) -> str:
    """Return the library's error message without its source locations."""
    line = str(error).strip().partition("\n")[0]
    text = re.sub(r"^\[[\d:]+\] \S+:\d+: |Check failed: \(.*?\) is false: ", "", line)
    return text[:200].strip().rstrip(".") or type(error).__name__


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(5)
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, hard))
    connection = Connection(int(sys.argv[1]))
    end_ids = tuple(map(int, sys.argv[4].split(",")))
    trial = GuideProbe(sys.argv[2], int(sys.argv[3]), end_ids)
    # The first guide makes the library read the tokenizer's vocabulary.
    connection.send(trial.probe(DecodingGuide(GuideType.REGEX, "a")))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # hides the compiler's warnings about clients' guides
    try:
        while True:
            connection.send(trial.probe(connection.recv()))
    except (EOFError, OSError):
        os._exit(0)  # the engine has exited


if __name__ == "__main__":
    main()
