"""Malformed requests to the generate endpoints: JSON that Triton reads, with values that models must refuse."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.serving.malformed.case import HttpCase
from tests.serving.malformed.values import OPTIONAL, TEXTUAL, VALID, mistyped_values, wrong_values


def http_case(source: random.Random, model: str) -> HttpCase:
    """A request to `model` that is to be refused: with one to three wrong values, or without an input."""
    values: dict[str, Any] = dict(VALID[model])
    if model in TEXTUAL:
        names = source.sample(sorted(OPTIONAL), source.choice([0, 0, 1, 2, 4]))
        values |= {name: OPTIONAL[name] for name in names}
    kind, others = "missing input", tuple[str, ...]()
    if source.random() < 0.1:
        required = [name for name in VALID[model] if name not in ("stream", "streaming")]
        for name in source.sample(required, source.choice([1, 1, 2])):
            del values[name]
        # Where another input takes its place in Triton's count, an ensemble ends without having begun.
        others = ("silent",) if model == "ensemble" else ()
    else:
        wrong = mistyped_values(model) if source.random() < 0.3 else wrong_values(model)
        names = source.sample(sorted(wrong), source.choice([1, 1, 1, 2, 3]))
        values |= {name: source.choice(wrong[name]) for name in names}
        kind = f"wrong value of {names[0][:30]}"
    path, body = f"/v2/models/{model}/{source.choice(['generate', 'generate_stream'])}", json.dumps(values)
    return HttpCase(kind, f"{path}: {body[:200]!r}", path, body.encode(), others)
