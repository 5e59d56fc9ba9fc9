"""Text to text, scripted; see inflight/runtime/triton_bls.py."""

from inflight.runtime.triton_bls import TritonBls


class TritonPythonModel:
    def initialize(self, args):
        self._model = TritonBls(args)

    def execute(self, requests):
        self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
