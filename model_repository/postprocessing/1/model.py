"""Converts token ids to text; see inflight/runtime/triton/postprocessing.py."""

from inflight.runtime.triton.postprocessing import Postprocessing


class TritonPythonModel:
    def initialize(self, args):
        self._model = Postprocessing(args)

    def execute(self, requests):
        return self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
