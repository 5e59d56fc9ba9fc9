"""A Triton model `whisper` whose text says what it was sent. Triton's stub runs this file as model.py.

A prompt may ask for more: `fail CODE` has an error, `once CODE ...` fails the first time that it comes, `wait SECONDS`
takes so long, and `plain` has no segments.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import numpy as np

SAMPLE_RATE = 16_000


def expected_texts(prefix: str, samples: Any, options: str = "") -> tuple[str, str]:
    """The texts of a clip's two segments; each is half as long as the clip."""
    return f" {prefix}", f" {len(samples)} samples, {np.abs(samples).mean():.5f}{options}"


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._seen: set[str] = set()

    def execute(self, requests: list[Any]) -> list[Any]:
        import triton_python_backend_utils as pb_utils

        return [self._answer(request, pb_utils) for request in requests]

    def _answer(self, request: Any, utils: Any) -> Any:
        given = {tensor.name(): tensor.as_numpy().reshape(-1) for tensor in request.inputs()}
        samples = given.pop("WAV")[: given.pop("WAV_LENS")[0]]
        text = given.pop("TEXT_PREFIX")[0].decode()
        given.pop("deadline_ms", None)
        prompt, _, prefix = text.rpartition("<|startoftranscript|>")
        command, _, argument = prompt.removeprefix("<|startofprev|>").strip().partition(" ")
        if command == "wait":
            time.sleep(float(argument))
        code = argument.split()[0] if command == "fail" or (command == "once" and argument not in self._seen) else ""
        self._seen.add(argument)
        language = re.match(r"<\|(\w\w)\|>", prefix)
        found = language[1] if language else "de"
        options = "".join(f", {name} {value[0]:g}" for name, value in sorted(given.items()))
        texts = expected_texts(prefix, samples, options)
        outputs = {
            "TRANSCRIPTS": "".join(texts),
            "SEGMENTS": json.dumps(
                {"language": found, "segments": _segments(texts, len(samples), "word_t" in options)}
            ),
            "language": found,
            "error": f"the clip asks for it [{code}]" if code else "",
        }
        if command == "plain":
            del outputs["SEGMENTS"]
        tensors = [utils.Tensor(name, np.array([[value]], np.object_)) for name, value in outputs.items()]
        return utils.InferenceResponse(tensors)


def _segments(texts: tuple[str, str], samples: int, words: bool) -> list[dict[str, Any]]:
    half = samples / SAMPLE_RATE / 2
    return [
        {
            "start": round(place * half, 3),
            "end": round((place + 1) * half, 3),
            "text": text,
            "tokens": [place],
            "avg_logprob": -0.25,
            "words": [
                {"word": text, "start": round(place * half, 3), "end": round((place + 1) * half, 3), "probability": 0.5}
            ]
            * words,
        }
        for place, text in enumerate(texts)
    ]
