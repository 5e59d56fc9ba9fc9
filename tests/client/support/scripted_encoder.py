"""A Triton model that embeds, reranks and classifies by a hash of the text, and translates it to capitals.

Triton's stub runs this file as model.py.

A text may ask for more: `fail CODE` has an error, `nan` has no numbers, `once CODE ...` fails the first time that it
comes, `request CODE` and `once request CODE ...` fail their whole request, `raise` makes the model raise an exception,
`wait SECONDS` takes so long, and `hold PATH` as long as there is such a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import Any

import numpy as np

DIMENSIONS = 16
LABELS = ("good", "bad", "odd")
TRANSLATION_OPTIONS = (
    *("target_prefix", "source_language"),
    *("beam_width", "length_penalty", "repetition_penalty", "max_tokens", "priority"),
)


def expected_vector(text: str, input_type: str = "", size: int = DIMENSIONS) -> np.ndarray[Any, Any]:
    """The values for a text, float32 [size]."""
    digest = hashlib.sha512(f"{input_type}|{text}".encode()).digest()
    return np.frombuffer(digest, "<u4")[:size].astype(np.float32) / np.float32(2**32)


def expected_translation(text: str, **options: Any) -> str:
    """The text in capitals, and the options that came with it, by name."""
    return text.upper() + "".join(f" {name}={options[name]}" for name in sorted(options))


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self._task = json.loads(parameters["inflight_served"]["string_value"])["task"]
        self._seen: set[str] = set()

    def execute(self, requests: list[Any]) -> list[Any]:
        import triton_python_backend_utils as pb_utils

        return [self._answer(request, pb_utils) for request in requests]

    def _answer(self, request: Any, utils: Any) -> Any:
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        texts = self._texts(given)
        rows, errors = [], []
        for place, text in enumerate(texts):
            command, _, argument = text.partition(" ")
            if command == "request" or (command == "once" and argument.startswith("request ") and self._new(text)):
                code = argument.split()[-1] if command == "request" else argument.split()[1]
                return utils.InferenceResponse([], utils.TritonError(f"the whole request fails [{code}]"))
            if command == "raise":
                raise ValueError("the text asks for it")
            if command == "wait":
                time.sleep(float(argument))
            while command == "hold" and os.path.exists(argument):
                time.sleep(0.005)
            code = argument.split()[0] if command == "fail" or (command == "once" and self._new(text)) else ""
            if self._task == "text2text" and not text.strip():
                code = "empty_prompt"
            errors.append(f"the text asks for it [{code}]" if code else "")
            kind = self._texts_of(given, "input_type")[place] if "input_type" in given else ""
            size = int(given["dimensions"][place, 0]) if "dimensions" in given else DIMENSIONS
            row = expected_vector(text if self._task != "rerank" else given["query"][0].decode() + text, kind, size)
            rows.append(np.full_like(row, np.nan) if command == "nan" or code else row)
        outputs = self._outputs(np.array(rows), texts, errors)
        if self._task == "text2text":
            written = [
                "" if errors[place] else expected_translation(text, **_options(given, place))
                for place, text in enumerate(texts)
            ]
            outputs["text_output"] = np.array(written, np.object_).reshape(-1, 1)
            outputs["finish_reason"] = np.array([["stop"]] * len(written), np.object_)
            outputs["num_output_tokens"] = np.array([[len(text.split())] for text in written], np.int32)
        asked = request.requested_output_names()
        return utils.InferenceResponse([utils.Tensor(name, outputs[name]) for name in asked])

    def _texts(self, given: dict[str, Any]) -> list[str]:
        if "input_ids" in given:
            rows = zip(given["input_ids"], given["input_lengths"][:, 0], strict=True)
            return [" ".join(map(str, ids[:length].tolist())) for ids, length in rows]
        return self._texts_of(given, "documents" if self._task == "rerank" else "text_input")

    def _texts_of(self, given: dict[str, Any], name: str) -> list[str]:
        return [value.decode() for value in given[name].reshape(-1)]

    def _outputs(self, values: Any, texts: list[str], errors: list[str]) -> dict[str, Any]:
        shape = (len(texts),) if self._task == "rerank" else (len(texts), 1)
        found = {
            "num_input_tokens": np.array([len(text.split()) for text in texts], np.int32).reshape(shape),
            "truncated": np.array([text.endswith("!") for text in texts]).reshape(shape),
            "error": np.array(errors, np.object_).reshape(shape),
        }
        if self._task == "embed":
            return {"embedding": values, **found}
        if self._task == "rerank":
            return {"scores": values[:, 0], "logits": values[:, 0], **found}
        labels = np.array([LABELS] * len(texts), np.object_)
        scores = values[:, : len(LABELS)]
        return {"scores": scores, "logits": scores, "labels": labels, **found}

    def _new(self, text: str) -> bool:
        if text in self._seen:
            return False
        self._seen.add(text)
        return True


def _options(given: dict[str, Any], place: int) -> dict[str, Any]:
    """What was given for a text besides it."""
    named = {name: values[place, 0] for name, values in given.items() if name in TRANSLATION_OPTIONS}
    return {
        name: value.decode() if isinstance(value, bytes) else round(float(value), 3) for name, value in named.items()
    }
