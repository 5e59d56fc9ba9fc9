"""Token ids to token ids, in flight; see inflight/runtime/triton_engine.py."""

from inflight.runtime.triton_engine import TritonEngine


class TritonPythonModel:
    def initialize(self, args):
        self._model = TritonEngine(args)

    def execute(self, requests):
        self._model.execute(requests)

    def finalize(self):
        self._model.finalize()
