"""Scores documents for a query; see inflight/runtime/triton/encoders/model.py."""

from inflight.runtime.triton.encoders.model import EncoderModel


class TritonPythonModel:
    def initialize(self, args):
        self._model = EncoderModel(args)

    def execute(self, requests):
        self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
