"""Engines on several GPUs: which processes they take, and real Tritons as the ranks under a stand-in for mpirun."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from inflight.deploy.errors import DeployError
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server import process_layout
from inflight.deploy.server.process_layout import MultiGpuMode, ProcessLayout
from inflight.deploy.server.run_directory import SHARED_MEMORY_DIRECTORY, remove_stale_run_directories
from inflight.deploy.server.server import Server, ServerSettings
from tests.fixtures.engines import ROOT
from tests.fixtures.errors import raises
from tests.fixtures.gpu_machine import gpu_machine
from tests.fixtures.manifests import manifest
from tests.fixtures.nvidia import H100
from tests.fixtures.open_streams import TIMEOUT, still_running
from tests.fixtures.tensorrtllm import GpuEngine, stand_in_backend
from tests.fixtures.waiting import wait_until

STANDINS = Path(__file__).resolve().parents[2] / "standins" / "mpi"
WORKER = str(STANDINS / "trtllmExecutorWorker")


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "machine").mkdir()
    gpu_machine(monkeypatch, tmp_path / "machine", [H100] * 4)
    monkeypatch.setenv("PATH", f"{STANDINS}:{os.environ['PATH']}")


def choose(mode: MultiGpuMode | None = None, tensor_parallel: int = 1, **parameters: str) -> ProcessLayout:
    engine = manifest().model_copy(update={"target": "tensorrt-llm", "tensor_parallel": tensor_parallel})
    return process_layout.choose_layout(engine, {"executor_worker_path": WORKER, **parameters}, mode)


def lines(chosen: ProcessLayout) -> list[list[str]]:
    """mpirun's own options, and behind its -n the count and the command of each process."""
    whole = " ".join(chosen.command(["server"], lambda rank: [f"follower{rank}"]))
    options, _, ranks = whole.partition(" -n ")
    return [options.split(), *(rank.split() for rank in ranks.split(" : -n "))]


@pytest.mark.usefixtures("four_gpus")
def test_an_engine_on_one_gpu_is_one_server_without_mpi() -> None:
    assert choose() == ProcessLayout()
    assert choose().command(["server"], lambda rank: []) == ["server"]
    assert process_layout.choose_layout(manifest(), {}, None) == ProcessLayout()
    assert choose().variables(Path("/run")) == {}


@pytest.mark.usefixtures("four_gpus")
def test_each_rank_is_a_server_of_which_the_first_one_serves() -> None:
    chosen = choose(tensor_parallel=4)
    assert (chosen.mode, chosen.ranks) == ("leader", 4)
    options, *ranks = lines(chosen)
    assert options[0] == str(STANDINS / "mpirun")
    assert " ".join(options).endswith("--bind-to none --oversubscribe")
    assert [rank[-1] for rank in ranks] == ["server", "follower1", "follower2", "follower3"]
    assert {tuple(rank[:-2]) for rank in ranks} == {("1", sys.executable, "-I", "-S")}, "one each, bound to mpirun"
    assert "TRTLLM_ORCHESTRATOR" not in chosen.variables(Path("/run"))


@pytest.mark.usefixtures("four_gpus")
def test_an_orchestrator_is_one_server_that_leaves_the_gpus_to_its_workers() -> None:
    chosen = choose("orchestrator", tensor_parallel=2, gpu_device_ids="0,1;2,3")
    [_, rank] = lines(chosen)
    server = rank.index("server")
    assert rank[0] == "1"
    memory = rank[server + 1 :]
    assert memory[:2] == ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
    assert memory[2:] == [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(4)]
    variables = chosen.variables(Path("/run"))
    assert (variables["TRTLLM_ORCHESTRATOR"], variables["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"]) == ("1", "1")


@pytest.mark.usefixtures("four_gpus")
def test_several_instances_take_an_orchestrator_whether_it_was_named_or_not() -> None:
    assert choose(gpu_device_ids="0;1").mode == "orchestrator"


@pytest.mark.usefixtures("four_gpus")
def test_ranks_that_are_named_are_started_and_not_spawned() -> None:
    chosen = choose("orchestrator", tensor_parallel=2, participant_ids="1,2", executor_worker_path="/nowhere")
    assert [rank[-1] for rank in lines(chosen)[1:]] == ["server", "follower1", "follower2"]
    assert chosen.variables(Path("/run"))["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] == "0"


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("parameters", "ranks"),
    [
        ({"participant_ids": "1"}, 2),
        ({"participant_ids": "1;2"}, 3),
        ({"participant_ids": "2,1", "tensor_parallel": 2}, 3),
    ],
)
def test_who_names_ranks_means_an_orchestrator(parameters: dict[str, Any], ranks: int) -> None:
    chosen = choose(**parameters)
    assert (chosen.mode, chosen.ranks, chosen.spawns_workers) == ("orchestrator", ranks, False)


@pytest.mark.usefixtures("four_gpus")
def test_shared_memory_is_counted_for_the_ranks_of_every_instance(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=200 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert choose(participant_ids="1;2;3").ranks == 4
    with raises(DeployError, "server_start_failed", naming=("4 ranks", "256")):
        choose(participant_ids="1;2;3;4")


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        ({"mode": "leader", "gpu_device_ids": "0;1"}, "invalid_parameter", ("gpu_device_ids", "2 instances")),
        (
            {"tensor_parallel": 2, "num_nodes": "2"},
            "invalid_parameter",
            "num_nodes is 2",
        ),
        ({"gpu_device_ids": "0;4"}, "gpu_missing", "GPU 4"),
        ({"mode": "orchestrator", "executor_worker_path": "/nowhere"}, "server_not_found", "/nowhere"),
        ({"gpu_device_ids": "7"}, "gpu_missing", "GPU 7"),
        ({"mode": "leader", "participant_ids": "1"}, "invalid_parameter", ("participant_ids", "leader")),
        ({"participant_ids": "0;1"}, "invalid_parameter", ("ranks 0,1", "1 to 2")),
        ({"participant_ids": "1;1"}, "invalid_parameter", ("ranks 1,1", "1 to 2")),
        ({"participant_ids": "1;3"}, "invalid_parameter", ("ranks 1,3", "1 to 2")),
        ({"participant_ids": "1000"}, "invalid_parameter", ("ranks 1000", "1 to 1")),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(asked: dict[str, Any], code: str, message: str) -> None:
    with raises(DeployError, code, naming=message):
        choose(**asked)


def test_a_mode_is_for_engines_of_tensorrt_llm() -> None:
    with raises(DeployError, "invalid_parameter", naming=("orchestrator", "openvino")):
        process_layout.choose_layout(manifest(), {}, "orchestrator")


@pytest.mark.usefixtures("four_gpus")
def test_a_machine_without_mpirun_is_told_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_layout, "_MPIRUNS", ("/nowhere/mpirun",))
    places = [place for place in os.environ["PATH"].split(":") if not (Path(place) / "mpirun").exists()]
    monkeypatch.setenv("PATH", ":".join(places))
    with raises(DeployError, "server_not_found", naming=("mpirun", "2 ranks")):
        choose(tensor_parallel=2)


@pytest.mark.usefixtures("four_gpus")
def test_too_little_shared_memory_is_said_before_the_ranks_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_layout, "_MIN_SHARED_MEMORY_BYTES", 1 << 60)
    with raises(DeployError, "server_start_failed", naming=("/dev/shm", "2 ranks", "--shm-size=1g")):
        choose(tensor_parallel=2)


def test_a_server_needs_as_many_gpus_as_its_engine(gpu_engine: GpuEngine) -> None:
    with (
        stand_in_backend(gpus=1),
        raises(DeployError, "gpu_missing", naming="2 GPUs"),
    ):
        Server(gpu_engine("llama", tensor_parallel=2)).start()


Serving = Callable[..., Server]


@pytest.fixture
def serving(gpu_engine: GpuEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """`serving("leader")`: an engine on two GPUs, started in that mode."""
    started: list[Server] = []
    with stand_in_backend(gpus=2):
        monkeypatch.setenv("PATH", f"{STANDINS}:{os.environ['PATH']}")

        def start(mode: MultiGpuMode, **settings: str) -> Server:
            engine = gpu_engine("llama", tensor_parallel=2)
            options = DeploymentOptions(settings=settings)
            started.append(Server(engine, options, ServerSettings(multi_gpu=mode), on_message=lambda line: None))
            started[-1].start()
            return started[-1]

        yield start
        for server in started:
            server.stop()


def check_the_whole_life(server: Server, victim: str) -> None:
    """It generates; one of its processes is killed, and all are started anew; once it stops, nothing is left."""
    server.instance.probe.generate(TIMEOUT)
    first = server.instance.process_tree
    os.kill(next(member.pid for member in first if member.name == victim), signal.SIGKILL)
    wait_until(lambda: not server.wait(0.1) and server.restarts, "the restart", 2 * TIMEOUT)
    server.instance.probe.generate(TIMEOUT)
    second = server.instance.process_tree
    assert sorted(member.name for member in second) == sorted(member.name for member in first)
    assert not [member for member in first if member.is_running()]
    prefix, run = server.run_directory.shm_prefix, server.run_directory.path
    assert server.stop(drain_seconds=TIMEOUT)
    assert not [member for member in second if member.is_running()]
    assert not list(SHARED_MEMORY_DIRECTORY.glob(f"{prefix}*"))
    assert not run.exists()


def test_leader_and_follower_live_and_die_together(serving: Serving) -> None:
    server = serving("leader")
    names = [member.name for member in server.instance.process_tree]
    assert [name for name in names if name.startswith("tritonserver")] == [
        "tritonserver of rank 0",
        "tritonserver of rank 1",
    ]
    assert [name for name in names if name.endswith("of rank 1")] == [
        "tritonserver of rank 1",
        "the stub of tensorrt_llm of rank 1",
    ], "a follower computes, and no more"
    assert server.pid == next(one.pid for one in server.instance.process_tree if one.name == "tritonserver of rank 0")
    check_the_whole_life(server, "tritonserver of rank 1")


def test_nothing_outlives_supervisor_and_guard_that_are_killed_together(gpu_engine: GpuEngine, tmp_path: Path) -> None:
    program = (
        "import signal, sys; from pathlib import Path; from tests.fixtures.tensorrtllm import stand_in_backend\n"
        "from inflight.deploy.server.server import Server\n"
        "with stand_in_backend(gpus=2), Server(Path(sys.argv[1])): print('ready', flush=True); signal.pause()\n"
    )
    home = tmp_path / "home"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(gpu_engine("llama", tensor_parallel=2))],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "INFLIGHT_RUN_DIR": str(home), "PATH": f"{STANDINS}:{os.environ['PATH']}"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    family = psutil.Process(process.pid).children(recursive=True)
    assert [one.name() for one in family].count("tritonserver") == 2
    guard = next(one for one in family if one.ppid() == process.pid)
    process.kill()
    guard.kill()
    process.communicate()
    left = still_running(family)
    for one in left:
        one.kill()
    remove_stale_run_directories(home)
    assert left == []


@pytest.mark.slow
def test_an_orchestrator_and_its_workers_live_and_die_together(serving: Serving) -> None:
    server = serving("orchestrator", executor_worker_path=WORKER)
    workers = [member.name for member in server.instance.process_tree if member.name.startswith("the worker")]
    assert len(workers) == 2
    check_the_whole_life(server, workers[0])


def test_the_stand_in_refuses_what_mpirun_refuses() -> None:
    def said(*arguments: str) -> str:
        done = subprocess.run([sys.executable, str(STANDINS / "mpirun"), *arguments], capture_output=True, text=True)
        assert done.returncode == 1
        return done.stderr

    assert "unknown option '--np'" in said("--np", "1", "true")
    assert "no -n" in said("true")
