"""How much memory an engine's process takes for its weights and for tokens of the KV cache, as Linux counts it.

Run as `python -m tests.build_engines.plan.memory_probe ENGINE_DIR TOKENS KV_PRECISION`; prints JSON, in bytes.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

BLOCK = 32
PROMPT = 510
ANSWER = 2


def grown(kind: str) -> int:
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    match = re.search(rf"^{kind}:\s+(\d+) kB$", rollup, re.MULTILINE)
    assert match
    return int(match[1]) * 1024


def fill(pipeline: Any, sequences: int, prompt: int) -> None:
    """Run so many sequences at once, each of `prompt` random tokens and two of answer."""
    request = openvino_genai.GenerationConfig()
    request.max_new_tokens = ANSWER
    request.ignore_eos = True
    random = np.random.default_rng(7)
    handles = [
        pipeline.add_request(number, openvino.Tensor(random.integers(5, 1000, (1, prompt), dtype=np.int64)), request)
        for number in range(sequences)
    ]
    while pipeline.has_non_finished_requests():
        pipeline.step()
    del handles


def main(engine: str, tokens: int, kv_precision: str) -> dict[str, int]:
    properties = json.loads(Path(engine, "engine.json").read_text(encoding="utf-8"))["properties"]
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = tokens // BLOCK + 1
    scheduler.max_num_batched_tokens = 256
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    tokenizer = openvino_genai.Tokenizer(engine)
    private, resident = grown("Pss_Anon"), grown("Rss")
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        engine, tokenizer, scheduler, "CPU", **(properties | {"KV_CACHE_PRECISION": kv_precision})
    )
    # What is multiplied by is copied at the first step; one of a single token needs little else.
    fill(pipeline, 1, 1)
    loaded = {"private": grown("Pss_Anon") - private, "resident": grown("Rss") - resident}
    # The first sequences take half of the cache, and what steps of this size need; the next ones are given blocks
    # that were never used, and need nothing else.
    half = tokens // 2
    fill(pipeline, half // (PROMPT + ANSWER), PROMPT)
    before = grown("Pss_Anon")
    fill(pipeline, half // (PROMPT + ANSWER), PROMPT)
    return loaded | {"kv_cache": grown("Pss_Anon") - before, "kv_cache_tokens": half}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
