"""Repositories on another Triton: a plain tritonserver, whose Python has no inflight of ours."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from inflight import __version__
from inflight.deploy.repository.assemble import ARCHIVE, AssemblyRequest, assemble_repository
from inflight.deploy.repository.engine_set import EngineSet
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server import ports, triton
from inflight.deploy.server.instance import MAX_START_ATTEMPTS, is_crash
from inflight.deploy.server.run_directory import SHARED_MEMORY_DIRECTORY
from inflight.deploy.server.server import Server
from tests.fixtures.engines import ROOT, TinyEngine
from tests.fixtures.open_streams import TIMEOUT, still_running

OTHER = "9.9.0"
LIBRARIES = (
    "numpy",
    "numpy.libs",
    "tokenizers",
    "huggingface_hub",
    "openvino",
    "llguidance*",
)


class ForeignTriton:
    """A tritonserver whose stubs take a Python that has the libraries, and of inflight another version."""

    def __init__(self, root: Path) -> None:
        self.root = root
        site = root / "site"
        site.mkdir(parents=True)
        ours = Path(importlib.util.find_spec("numpy").origin or "").parent.parent  # type: ignore[union-attr]
        for name in LIBRARIES:
            for path in ours.glob(name):
                (site / path.name).symlink_to(path)
        shutil.copytree(ROOT / "inflight", site / "inflight", ignore=shutil.ignore_patterns("__pycache__"))
        package = (ROOT / "inflight" / "__init__.py").read_text(encoding="utf-8")
        (site / "inflight" / "__init__.py").write_text(package.replace(f'"{__version__}"', f'"{OTHER}"'))
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
        [packages] = (root / "venv").glob("lib/python*/site-packages")
        (packages / "libraries.pth").write_text(f"{site}\n")
        self.installation = triton.mirror_wheel(triton.find_triton(), root / "triton")
        (self.installation.root / "backends" / "python" / "inflight").unlink()
        self.prefix = f"other-{os.getpid()}-"

    @contextmanager
    def ready(self, repository: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
        """As `started`, once it is ready; begun again if it crashes, as it may where others keep the machine busy."""
        for _ in range(MAX_START_ATTEMPTS):
            with self.started(repository) as (process, address):
                if comes_up(process, address):
                    yield process, address
                    return
            assert is_crash(process.returncode), self.log.read_text()
        pytest.fail(self.log.read_text())

    @contextmanager
    def started(self, repository: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
        """As it is started without inflight; yields its HTTP address too; its log is in `log`."""
        with ports.reserved_ports(ports.ListenHosts()) as chosen:
            command = [
                *(str(self.installation.program), f"--model-repository={repository}"),
                f"--backend-directory={self.installation.root / 'backends'}",
                f"--backend-config=python,shm-region-prefix-name={self.prefix}",
                *(f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics")),
                *(f"--http-port={chosen.http}", f"--grpc-port={chosen.grpc}", f"--metrics-port={chosen.metrics}"),
                "--allow-gpu-metrics=false",
            ]
            variables = {
                "PATH": f"{self.root / 'venv' / 'bin'}:{os.environ['PATH']}",
                "LD_LIBRARY_PATH": str(triton.shared_python()),
                "HOME": str(self.root),
            }
            self.log = self.root / "log"
            with self.log.open("wb") as log:
                process = subprocess.Popen(command, env=variables, cwd=self.root, stdout=log, stderr=log)
            try:
                yield process, f"http://127.0.0.1:{chosen.http}"
            finally:
                process.terminate()
                try:
                    process.wait(TIMEOUT)
                finally:
                    process.kill()
                for region in SHARED_MEMORY_DIRECTORY.glob(f"{self.prefix}*"):
                    region.unlink()


@pytest.fixture(scope="module")
def other_triton(tmp_path_factory: pytest.TempPathFactory) -> ForeignTriton:
    return ForeignTriton(tmp_path_factory.mktemp("other"))


def repository(engine: Path, out: Path, vendored: bool) -> Path:
    out.mkdir()
    assemble_repository(AssemblyRequest(EngineSet.find(engine), DeploymentOptions(), vendored), out)
    return out


def generated(address: str, model: str = "ensemble") -> str:
    """What a model says to "hello", in a stream of four tokens."""
    body = json.dumps({"text_input": "hello", "max_tokens": 4, "stream": True}).encode()
    with urllib.request.urlopen(f"{address}/v2/models/{model}/generate_stream", body, timeout=TIMEOUT) as answer:
        events = [json.loads(line.removeprefix(b"data: ")) for line in answer if line.startswith(b"data: ")]
    return "".join(event["text_output"] for event in events)


def refused(address: str) -> str:
    """What is said to a conversation."""
    messages = json.dumps([{"role": "user", "content": "hello"}])
    body = json.dumps({"text_input": "", "messages": messages, "max_tokens": 4}).encode()
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(f"{address}/v2/models/ensemble/generate", body, timeout=TIMEOUT)
    with refusal.value as answer:
        return answer.read().decode()


def comes_up(process: subprocess.Popen[bytes], address: str) -> bool:
    """Wait until the server is ready; false if it ended before that."""
    deadline = time.monotonic() + TIMEOUT
    while process.poll() is None:
        assert time.monotonic() < deadline, "it is not ready"
        try:
            urllib.request.urlopen(f"{address}/v2/health/ready", timeout=TIMEOUT).close()
            return True
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    return False


def test_a_vendored_repository_brings_its_own_runtime_which_wins_over_an_installed_one(
    tiny_engine: TinyEngine, other_triton: ForeignTriton, server: Server, tmp_path: Path
) -> None:
    moved = tmp_path / "moved"
    repository(tiny_engine("llama"), tmp_path / "out", vendored=True).rename(moved)
    with other_triton.ready(moved) as (process, address):
        expected = generated(f"http://{server.http_address}")
        assert [generated(address, model) for model in ("ensemble", "tensorrt_llm_bls")] == [expected] * 2
        # The name that this server's models listen by, and a connection to it.
        sockets = Path("/proc/net/unix").read_text()
        assert len(re.findall(rf"@inflight-chunk-acks-{process.pid}-[1-9]\d*-tensorrt_llm\n", sockets)) == 2
        # That Python has no jinja2.
        message = refused(address)
        assert "messages need the package jinja2" in message
        assert "[no_chat_template]" in message
        family = psutil.Process(process.pid).children(recursive=True)
        for stub in psutil.Process(process.pid).children():
            stub.suspend()  # so it can't end itself
        process.kill()
        assert still_running(family) == []


def test_without_one_of_its_own_another_version_refuses_it_and_names_both(
    tiny_engine: TinyEngine, other_triton: ForeignTriton, tmp_path: Path
) -> None:
    with other_triton.started(repository(tiny_engine("llama"), tmp_path / "out", vendored=False)) as (process, _):
        assert process.wait(TIMEOUT) == 1
    log = other_triton.log.read_text()
    for model in ("preprocessing", "postprocessing", "tensorrt_llm"):
        assert (
            f"the model {model} was written by inflight 0.1.0 and the package inflight that runs it here is {OTHER};"
            in log
        )
    assert "or with --vendor, which brings its own" in log


def test_the_archive_holds_the_runtime_and_nothing_else(tiny_engine: TinyEngine, tmp_path: Path) -> None:
    out = repository(tiny_engine("llama"), tmp_path / "out", vendored=True)
    archives = sorted(out.rglob(ARCHIVE))
    assert [path.parent.parent.name for path in archives] == [
        "postprocessing",
        "preprocessing",
        "tensorrt_llm",
    ]
    with zipfile.ZipFile(archives[0]) as archive:
        names = archive.namelist()
        assert (
            archive.read("inflight/runtime/engine/interface.py")
            == (ROOT / "inflight/runtime/engine/interface.py").read_bytes()
        )
    assert {"inflight/__init__.py", "inflight/runtime/__init__.py", "inflight/runtime/triton/engine_model.py"} <= set(
        names
    )
    assert all(
        name.startswith(("inflight/runtime/", "inflight/text/", "inflight/common/", "inflight/__init__.py"))
        for name in names
    )
    assert not any(name.startswith("inflight/common/schema") for name in names), "that needs pydantic"
