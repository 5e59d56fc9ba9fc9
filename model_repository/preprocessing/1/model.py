"""Converts text to token ids; see inflight/runtime/triton/preprocessing.py."""

from inflight.runtime.triton.preprocessing import Preprocessing


class TritonPythonModel:
    def initialize(self, args):
        self._model = Preprocessing(args)

    def execute(self, requests):
        return self._model.execute(requests)
