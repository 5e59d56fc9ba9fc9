"""Python files of the directory in which a command is called never run: see the fixture `poisoned`."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from inflight_client import Client, Guide, Sampling
from safetensors.torch import load_file, save_file

from build_engines.build import BuildOptions, build_engine
from build_engines.errors import BuildError
from inflight.deploy.server.server import Server
from loadtests.run.controller import run_load_test
from loadtests.run.worker_spec import WorkerSpec
from loadtests.run_directory import RunDirectory
from tests.fixtures.engines import ROOT, TinyCheckpoint, TinyEngine
from tests.fixtures.errors import raises
from tests.fixtures.load_runs import read_records
from tests.loadtests.run.plans import plan

PACKAGES = ("inflight", "build_engines", "loadtests", "client/inflight_client", "docker")


def commands() -> Iterator[tuple[str, ast.expr]]:
    """Where `sys.executable` begins a command line, and what follows it."""
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.List | ast.Tuple) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.elts[1]


def test_every_python_of_ours_is_told_to_leave_the_directory_out() -> None:
    found = dict(commands())
    assert len(found) >= 8
    unsafe = {place for place, option in found.items() if ast.unparse(option) not in ("'-P'", "'-I'")}
    assert len(unsafe) == 1, "but for what runtime/python_module.py does before Python 3.11"


def test_a_build_runs_nothing_of_it_and_makes_up_no_weights(
    poisoned: Callable[[], str], tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint("llama"), checkpoint)
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    with raises(BuildError, "checkpoint_damaged", naming="model.layers.1.mlp.up_proj.weight"):
        build_engine(str(checkpoint), tmp_path / "engine", BuildOptions(precision="fp32"))
    assert not (tmp_path / "engine").exists()
    assert poisoned() == ""


def test_neither_do_a_server_its_engine_a_guide_s_trial_and_a_load(
    poisoned: Callable[[], str], tiny_engine: TinyEngine, tmp_path: Path
) -> None:
    with Server(tiny_engine("llama")) as server:
        with Client(server.grpc_address) as client:
            assert client.generate("tell", max_tokens=8, sampling=Sampling(guide=Guide("regex", "[ab]+"))).text
        directory = RunDirectory.create(tmp_path / "run")
        run_load_test(plan(server), directory, WorkerSpec(workers=2), lambda found: None)
        assert read_records(directory)
    assert poisoned() == ""
