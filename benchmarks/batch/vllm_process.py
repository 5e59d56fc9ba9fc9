"""The part of vllm_peer.py that runs in vLLM's own environment: reads rows as JSON lines, answers with seconds."""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any


def main(checkpoint: str) -> None:
    vllm: Any = importlib.import_module("vllm")
    model = vllm.LLM(model=checkpoint, dtype="bfloat16", max_model_len=1024, max_num_seqs=64)

    def generate(rows: list[tuple[list[int], int]]) -> float:
        prompts = [{"prompt_token_ids": ids} for ids, _ in rows]
        how = [vllm.SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for _, length in rows]
        began = time.perf_counter()
        answers = model.generate(prompts, how, use_tqdm=False)
        seconds = time.perf_counter() - began
        for answer, (_, length) in zip(answers, rows, strict=True):
            if len(answer.outputs[0].token_ids) != length:
                raise RuntimeError(f"an answer has {len(answer.outputs[0].token_ids)} tokens and not {length}")
        return seconds

    generate([([number, 6, 7], 8) for number in range(64)])
    print("answer 0", flush=True)
    for line in sys.stdin:
        print("answer", generate(json.loads(line)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
