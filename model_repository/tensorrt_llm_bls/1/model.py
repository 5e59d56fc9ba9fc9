"""Generates text from text, scripted; see inflight/runtime/triton/bls/model.py."""

from inflight.runtime.triton.bls.model import BlsModel


class TritonPythonModel:
    def initialize(self, args):
        self._model = BlsModel(args)

    def execute(self, requests):
        self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
