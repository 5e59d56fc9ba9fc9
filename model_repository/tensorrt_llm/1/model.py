"""Generates token ids with in-flight batching; see inflight/runtime/triton/engine_model.py."""

from inflight.runtime.triton.engine_model import EngineModel


class TritonPythonModel:
    def initialize(self, args):
        self._model = EngineModel(args)

    def execute(self, requests):
        self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
