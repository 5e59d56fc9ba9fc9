"""How much memory an engine's process takes for its weights and for tokens of the KV cache, as Linux counts it.

Run as `python -m tests.build_engines.plan.memory_probe ENGINE_DIR TOKENS KV_PRECISION`; prints JSON, in bytes.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from inflight.runtime.backends.openvino.model_runner import OpenVinoModelRunner
from inflight.runtime.engine.interface import EngineOptions
from inflight.runtime.messages import GenerationRequest
from tests.runtime.backends.drive_runner import run

BLOCK = 32
PROMPT = 510
ANSWER = 2


def grown(kind: str) -> int:
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    match = re.search(rf"^{kind}:\s+(\d+) kB$", rollup, re.MULTILINE)
    assert match
    return int(match[1]) * 1024


def fill(runner: OpenVinoModelRunner, sequences: int, prompt: int) -> None:
    """Run so many sequences at once, each of `prompt` random tokens and two of answer."""
    random = np.random.default_rng(7)
    prompts = random.integers(5, 1000, (sequences, prompt)).tolist()
    run(runner, *(GenerationRequest(tuple(prompt), ANSWER) for prompt in prompts))


def main(engine: str, tokens: int, kv_precision: str) -> dict[str, int]:
    options = EngineOptions("openvino", engine, tokens + BLOCK, 4096, 256, kv_cache_reuse=False)
    private, resident = grown("Pss_Anon"), grown("Rss")
    runner = OpenVinoModelRunner(replace(options, extra={"KV_CACHE_PRECISION": kv_precision}))
    # What is multiplied by is copied at the first step; one of a single token needs little else.
    fill(runner, 1, 1)
    loaded = {"private": grown("Pss_Anon") - private, "resident": grown("Rss") - resident}
    # The first sequences take half of the cache, and what steps of this size need; twice as many take the other half
    # too, whose blocks were never used, and need nothing else.
    half = tokens // 2
    fill(runner, half // (PROMPT + ANSWER), PROMPT)
    before = grown("Pss_Anon")
    fill(runner, tokens // (PROMPT + ANSWER), PROMPT)
    return loaded | {"kv_cache": grown("Pss_Anon") - before, "kv_cache_tokens": half}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
