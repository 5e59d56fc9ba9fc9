"""A Triton that batches texts dynamically, by size and window, and its callers."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc

from inflight.deploy.server import triton
from inflight.deploy.server.ports import ListenHosts, reserved_ports
from inflight.deploy.server.process import TritonProcess

MODEL = "dynamic_batching"
SIZE = 32
WINDOW_MS = 5
"""As config.pbtxt has them."""
_START_SECONDS = 60
_STOP_SECONDS = 5


class DynamicBatchingServer:
    """A context manager: inside it the engine is served, on the same Triton as inflight's models."""

    def __init__(self, engine: Path) -> None:
        self._engine = engine.absolute()
        self._stack = ExitStack()

    def __enter__(self) -> DynamicBatchingServer:
        with self._stack:
            work = Path(tempfile.mkdtemp(prefix="inflight-dynamic-"))
            self._stack.callback(shutil.rmtree, work)
            shutil.copytree(Path(__file__).parent, work / "models" / MODEL, ignore=shutil.ignore_patterns("*.pyc"))
            installation = triton.mirror_wheel(triton.find_triton(), work / "triton")
            hosts = ListenHosts()
            ports = self._stack.enter_context(reserved_ports(hosts))
            prefix = f"inflight-{secrets.token_hex(4)}-"
            command = triton.server_command(
                installation,
                work / "models",
                hosts=hosts,
                ports=ports,
                shm_prefix=prefix,
                admin_key=secrets.token_hex(16),
                exit_seconds=_STOP_SECONDS,
            )
            environment = {**triton.server_environment(installation), "ENGINE": str(self._engine)}
            process = TritonProcess(command, environment, work / "log", prefix)
            self._stack.callback(process.stop, _STOP_SECONDS)
            self._client = grpc.InferenceServerClient(f"127.0.0.1:{ports.grpc}")
            self._stack.callback(self._client.close)
            self._wait(process, work / "log")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def embed(self, texts: Sequence[str], callers: int) -> int:
        """Embed texts, which so many callers send one at a time, each after its last answer; return padded tokens."""

        def one(text: str) -> int:
            tensor = grpc.InferInput("text_input", [1, 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[text.encode()]], dtype=object))
            answer = self._client.infer(MODEL, [tensor])
            return int(answer.as_numpy("padded_tokens")[0, 0])

        with ThreadPoolExecutor(callers) as pool:
            return sum(pool.map(one, texts))

    def _wait(self, process: TritonProcess, log: Path) -> None:
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                if self._client.is_model_ready(MODEL):
                    return
            except grpc.InferenceServerException:
                pass  # it does not listen yet
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server does not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
