"""A running stand-in: its models, its engine, and both protocols on free ports of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.standins.kserve import llmapi_model, text_models
from tests.standins.kserve.engine import StandInEngine
from tests.standins.kserve.grpc_frontend import GrpcFrontend
from tests.standins.kserve.http_frontend import HttpFrontend
from tests.standins.kserve.repository import ModelSpec
from tests.standins.kserve.requests import ModelRequest, RefusedError
from tests.standins.kserve.responses import ModelResponse


class StandInServer:
    """Serves `models` (see repository.py) in a `with` block; `tokenizer` is a checkpoint's directory.

    `restricted` are groups of the protocol that it refuses, by Triton's names: `model-repository`, `model-config`.
    """

    def __init__(
        self,
        models: Mapping[str, ModelSpec],
        tokenizer: Path,
        step_seconds: float = 0.001,
        restricted: tuple[str, ...] = (),
    ) -> None:
        self.models = models
        self.restricted = restricted
        self.engine = StandInEngine(tokenizer, step_seconds)
        self.requests: list[ModelRequest] = []
        """All that came, in order, refused or not."""
        said = json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
        self._end_ids = tuple(said) if isinstance(said, list) else (said,)

    def __enter__(self) -> StandInServer:
        self._grpc, self._http = GrpcFrontend(self), HttpFrontend(self)
        self.grpc_address, self.http_address = self._grpc.address, self._http.address
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.end()
        self._grpc.close()
        self._http.close()

    def model(self, name: str) -> ModelSpec:
        if name not in self.models:
            raise RefusedError(f"Request for unknown model: '{name}' is not found", "NOT_FOUND")
        return self.models[name]

    def check_open(self, group: str) -> None:
        if group in self.restricted:
            raise RefusedError("restricted", "RESTRICTED")

    def infer(self, request: ModelRequest) -> Iterator[ModelResponse]:
        """The responses to a request; RefusedError in the middle of them is an error that ends them."""
        self.requests.append(request)
        request.check()
        model = request.model
        if "sampling_param_max_tokens" in model.inputs:
            return _in_words(llmapi_model.answer(self.engine, request, self._end_ids), "Error generating request: ")
        if "text_input" in model.inputs:
            answer = text_models.answer(self.engine, request, self._end_ids, self._special_tokens())
            return _in_words(answer, f"in ensemble '{model.name}', " if model.steps else text_models.TRACEBACK)
        if model.name == "tensorrt_llm":
            return text_models.stop(self.engine, request)
        raise RefusedError(f"the stand-in answers nobody as {model.name}")

    def _special_tokens(self) -> bool:
        preprocessing = self.models.get("preprocessing")
        return preprocessing is None or preprocessing.parameters.get("add_special_tokens", "true") == "true"


def _in_words(answer: Iterator[ModelResponse], where: str) -> Iterator[ModelResponse]:
    """The answer, and what the engine refuses as its models put it."""
    try:
        yield from answer
    except ValueError as error:
        raise RefusedError(f"{where}{error}", "INTERNAL") from None
