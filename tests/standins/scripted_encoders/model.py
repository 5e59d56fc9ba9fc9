"""A stand-in for encoders in tests, as Triton models of inflight's tensors: a text's words decide what becomes of it.

A token is a word, and each text has two more. `refused` fails alone, `nan` has values that are no numbers, `busy` makes
the whole request fail as a full queue does, and `while=PATH` takes as long as there is such a file. An embedding is drawn from a hash of
the text, a document's score is the part of the query's words that it has, and a text is `long` by its number of words.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

LABELS = ("short", "long")


class TritonPythonModel:
    def initialize(self, args: dict[str, Any]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        served = json.loads(parameters["inflight_served"]["string_value"])
        self._task, self._limit, self._dimensions = served["task"], served["max_seq_len"], served.get("dimensions", 1)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer({one.name(): one.as_numpy() for one in request.inputs()}) for request in requests]

    def _answer(self, inputs: dict[str, Any]) -> Any:
        texts = self._texts(inputs)
        if any("busy" in words for words in texts):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("the queue is full [overloaded]"))
        cut = bool(inputs["truncate"].flat[0]) if "truncate" in inputs else False
        rows = [self._row(words, inputs, cut) for words in texts]
        for path in (word[6:] for words in texts for word in words if word.startswith("while=")):
            while os.path.exists(path):
                time.sleep(0.005)
        shape = (len(rows),) if self._task == "rerank" else (len(rows), 1)
        values = np.float32([value for value, *_ in rows])
        outputs = {
            "embedding" if self._task == "embed" else "scores": values if self._task != "rerank" else values[:, 0],
            "num_input_tokens": np.int32([tokens for _, tokens, _, _ in rows]).reshape(shape),
            "truncated": np.array([truncated for _, _, truncated, _ in rows]).reshape(shape),
            "error": np.array([error for *_, error in rows], object).reshape(shape),
        }
        if self._task == "classify":
            outputs["labels"] = np.array([LABELS] * len(rows), object)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])

    def _texts(self, inputs: dict[str, Any]) -> list[list[str]]:
        if "input_ids" in inputs:
            lengths = inputs["input_lengths"].ravel()
            return [
                [str(each) for each in ids[:length]] for ids, length in zip(inputs["input_ids"], lengths, strict=True)
            ]
        return [text.decode().split() for text in inputs["documents" if self._task == "rerank" else "text_input"].flat]

    def _row(self, words: list[str], inputs: dict[str, Any], cut: bool) -> tuple[list[float], int, bool, str]:
        most = self._limit - 2
        nothing = [float("nan")] * {"embed": self._size(inputs), "rerank": 1, "classify": len(LABELS)}[self._task]
        if not words:
            return nothing, 0, False, "the text is empty; send at least one character [empty_prompt]"
        if "refused" in words:
            return nothing, 0, False, "the text has a word that is refused; leave it out [invalid_text]"
        if len(words) > most and not cut:
            return nothing, 0, False, f"the text has more than {most} words; shorten it [prompt_too_long]"
        kept = words[:most]
        values = nothing if "nan" in words else self._values(kept, inputs)
        return values, len(kept) + 2, len(kept) < len(words), ""

    def _size(self, inputs: dict[str, Any]) -> int:
        return int(inputs["dimensions"].flat[0]) if "dimensions" in inputs else self._dimensions

    def _values(self, words: list[str], inputs: dict[str, Any]) -> list[float]:
        if self._task == "classify":
            share = len(words) / self._limit
            return [1 - share, share]
        if self._task == "rerank":
            query = inputs["query"].flat[0].decode().split()
            return [sum(word in words for word in query) / len(query)]
        prompt = inputs["input_type"].flat[0].decode() if "input_type" in inputs else ""
        seed = int.from_bytes(hashlib.sha256(" ".join([prompt, *words]).encode()).digest()[:8], "big")
        vector = np.random.default_rng(seed).standard_normal(self._dimensions)[: self._size(inputs)]
        return [float(each) for each in vector / np.linalg.norm(vector)]
