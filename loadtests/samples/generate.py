"""Generates the sample files: `python -m loadtests.samples.generate` writes the same bytes each time.

Nothing in them was recorded: prompts come from templates, and traces from the distributions below, in the formats of
the public traces.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

_TOPICS = ["tea", "tides", "bridges", "bread", "rainbows", "clocks", "volcanoes", "chess", "batteries", "maps"]
_READERS = ["a child", "an engineer", "a new colleague", "someone who has never heard of it"]
_FOLLOW_UPS = [
    "Say that in one sentence.",
    "Which part of it is the hardest?",
    "Give an example.",
    "What would change if it were twice as large?",
    "And a hundred years ago?",
]
_ROWS = 48
_BLOCK = 512


def prompts() -> str:
    """Return texts, each with its maximum answer length."""
    source = random.Random("prompts")
    rows = []
    for topic in _TOPICS:
        for reader in source.sample(_READERS, 3):
            sentences = source.randint(1, 6)
            text = f"Explain {topic} to {reader} in {sentences} sentences."
            rows.append({"prompt": text, "max_tokens": 16 * sentences})
    return _json_lines(rows)


def conversations() -> str:
    """Return the user messages of conversations with two to five turns."""
    source = random.Random("conversations")
    rows = []
    for topic in _TOPICS:
        later = source.sample(_FOLLOW_UPS, source.randint(1, 4))
        rows.append({"turns": [f"Tell me about {topic}.", *later], "max_tokens": 48})
    return _json_lines(rows)


def mooncake() -> str:
    """Return sessions of one to four requests; each input extends the previous one, and all share their first block."""
    source = random.Random("mooncake")
    fresh = iter(range(1, 10_000))
    visits: list[list[int]] = []
    rows = []
    moment = 0.0
    for _ in range(_ROWS):
        if visits and source.random() < 0.6:
            ids = source.choice(visits)
        else:
            ids = [0]
            visits.append(ids)
        ids += [next(fresh) for _ in range(source.randint(1, 4))]
        length = _BLOCK * (len(ids) - 1) + source.randint(1, _BLOCK)
        output = round(source.lognormvariate(4.5, 0.8))
        rows.append(
            {"timestamp": round(moment), "input_length": length, "output_length": output, "hash_ids": list(ids)}
        )
        ids[-1:] = [next(fresh)]  # the next request fills this block, so it is another one
        moment += source.expovariate(1 / 1000)
    return _json_lines(rows)


def azure() -> str:
    """Return calls of a service, two thirds with short outputs."""
    source = random.Random("azure")
    moment = datetime(2026, 1, 5, 9, 30)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for _ in range(_ROWS):
        moment += timedelta(seconds=source.expovariate(1.0))
        output = round(source.lognormvariate(2.6, 0.5) if source.random() < 0.67 else source.lognormvariate(5, 0.4))
        lines.append(f"{moment:%Y-%m-%d %H:%M:%S.%f}0,{round(source.lognormvariate(6.5, 1.0))},{max(1, output)}")
    return "\n".join(lines) + "\n"


def burstgpt() -> str:
    """Return bursts of calls; some failed, and have no response tokens."""
    source = random.Random("burstgpt")
    moment = 5.0
    lines = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    for _ in range(_ROWS):
        moment += source.gammavariate(0.4, 2.5)
        input_tokens = round(source.lognormvariate(5.5, 1.0))
        output_tokens = 0 if source.random() < 0.08 else round(source.lognormvariate(4.5, 0.9))
        model, log_type = source.choice([("ChatGPT", "API log"), ("ChatGPT", "Conversation log"), ("GPT-4", "API log")])
        lines.append(
            f"{round(moment)},{model},{input_tokens},{output_tokens},{input_tokens + output_tokens},{log_type}"
        )
    return "\n".join(lines) + "\n"


SAMPLES: dict[str, Callable[[], str]] = {
    "prompts.jsonl": prompts,
    "conversations.jsonl": conversations,
    "mooncake.jsonl": mooncake,
    "azure.csv": azure,
    "burstgpt.csv": burstgpt,
}


def _json_lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    for name, make in SAMPLES.items():
        (Path(__file__).parent / name).write_text(make())
