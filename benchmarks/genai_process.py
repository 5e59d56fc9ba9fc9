"""OpenVINO GenAI's continuous batching in a process of its own: `python genai_process.py ENGINE_DIR KV_CACHE_TOKENS`.

Needs openvino-genai and openvino-tokenizers, and nothing of inflight. Reads lines of JSON (see `peer_process`): the
prompts' token ids, the length of the answers and the values of the generation config. Answers with tokens per second
and the length of each step in seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy
import openvino
import openvino_genai
from openvino_tokenizers import convert_tokenizer
from transformers import AutoTokenizer

MAX_NUM_TOKENS = 256
"""The best of 96, 128, 256 and 512 at 64 requests in flight."""


def load(engine: Path, kv_cache_tokens: int) -> Any:
    properties = json.loads((engine / "engine.json").read_text(encoding="utf-8"))["properties"]
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = kv_cache_tokens // 32
    scheduler.max_num_batched_tokens = MAX_NUM_TOKENS
    scheduler.max_num_seqs = 64
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    models = convert_tokenizer(AutoTokenizer.from_pretrained(engine), with_detokenizer=True)
    with tempfile.TemporaryDirectory() as place:
        for model, name in zip(models, ("openvino_tokenizer.xml", "openvino_detokenizer.xml"), strict=True):
            openvino.save_model(model, Path(place) / name)
        tokenizer = openvino_genai.Tokenizer(place)
    return openvino_genai.ContinuousBatchingPipeline(str(engine), tokenizer, scheduler, "CPU", **properties)


def run(pipeline: Any, prompts: list[list[int]], max_tokens: int, values: dict[str, Any]) -> tuple[float, list[float]]:
    config = openvino_genai.GenerationConfig(max_new_tokens=max_tokens, ignore_eos=True, **values)
    handles = [
        pipeline.add_request(number, openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)), config)
        for number, prompt in enumerate(prompts)
    ]
    steps, started = [], time.perf_counter()
    while pipeline.has_non_finished_requests():
        step_started = time.perf_counter()
        pipeline.step()
        steps.append(time.perf_counter() - step_started)
    seconds = time.perf_counter() - started
    return sum(len(handle.read_all()[0].generated_ids) for handle in handles) / seconds, steps


def main() -> None:
    pipeline = load(Path(sys.argv[1]), int(sys.argv[2]))
    print('answer "ready"', flush=True)
    for line in sys.stdin:
        print("answer", json.dumps(run(pipeline, *json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
