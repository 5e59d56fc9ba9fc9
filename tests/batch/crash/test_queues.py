"""Workers of a queue are killed, and the queue's server too: each message has one record, before it is acknowledged."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from urllib.parse import urlsplit

import psutil
import pytest

from inflight.deploy.server.server import Server
from tests.batch.crash.history import POISON, VARIABLE, check
from tests.batch.crash.job_processes import JobProcess, JobProcesses
from tests.batch.crash.test_failpoints import OF_QUEUES
from tests.fixtures.postgresql import PostgreSql
from tests.fixtures.queues import QUEUES, SampleQueue, SampleSqs, SampleStream, queue_of
from tests.fixtures.waiting import wait_until
from tests.standins.faulty_network.proxy import Faults, FaultyNetwork
from tests.standins.faulty_network.toxics import CutAt

POINTS = ("queue.settle", "queue.settled", "lines.written", "lines.synced", "commit", "committed")


def restart(postgresql: PostgreSql) -> None:
    """The postmaster dies at once, and its processes then."""
    assert postgresql._process is not None
    children = psutil.Process(postgresql._process.pid).children(recursive=True)
    postgresql._process.kill()
    postgresql._process.wait()
    psutil.wait_procs(children, 30)
    time.sleep(0.3)
    postgresql.start()


def test_a_job_for_ever_dies_at_each_point_of_its_own(
    paced_server: Server, lives: JobProcesses, postgresql: PostgreSql, tmp_path: Path
) -> None:
    with queue_of("postgresql", postgresql, tmp_path) as queue:
        options = ["--max-tokens", "1", "--no-dedupe", "--raw", "--lease-seconds", "1", "--checkpoint-seconds", "0.05"]
        options += ["--server", paced_server.grpc_address, "--forever", "--segment-rows", "10", "--max-deliveries", "1"]

        def start(failpoint: str = "") -> JobProcess:
            command = ("run", queue.address, "--out", str(tmp_path / "answers.jsonl"), *options)
            return lives.start(*command, failpoint=failpoint, environment={VARIABLE: str(tmp_path / "history")})

        points = ("lines.write", *sorted(OF_QUEUES))  # the messages of the first are suspects then
        for point in points:
            queue.send([{"prompt": f"{point} {number}"} for number in range(12)])
            life = start(f"{point}:1:kill")
            assert life.wait() == -9, f"{point}: {life.said}"
        life = start()
        wait_until(lambda: queue.left() == 0)
        life.send(signal.SIGTERM)
        assert life.wait() == 75, life.said
        files = sorted(tmp_path.glob("answers*.jsonl"))
        assert [path.name for path in files] == [f"answers.{at:06}.jsonl" for at in range(1, len(files) + 1)]
        check(tmp_path / "history", files, 12 * len(points))


def cut(network: FaultyNetwork) -> None:
    """For two seconds the server can't be reached, and connections end at the first byte of their answers."""
    network.refuse()
    network.disturb(Faults(down=(CutAt(1, "rst"),)))
    time.sleep(2)
    network.listen()


def feed(queue: SampleQueue, messages: int, share: Callable[[], float], up: Lock) -> None:
    """Send them, one of them the poison; never more than a share of them, so that some are left for each kill, and
    none while the server is not `up`. moto looks at all of its messages for each that it gives or deletes, so it gets
    more as they go."""
    for first in range(0, messages, 100):
        while first > messages * share():
            time.sleep(0.05)
        if isinstance(queue, SampleSqs):
            wait_until(lambda: queue.left() < 300, seconds=600)
        batch = [{"prompt": f"tea {number}"} for number in range(first, first + 100)]
        with up:
            queue.send(batch if first else [*batch[:-1], {"prompt": POISON}])


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", QUEUES)
def test_each_message_has_one_record_before_it_is_acknowledged(
    kind: str, crash_server: Server, lives: JobProcesses, postgresql: PostgreSql, tmp_path: Path
) -> None:
    """Of 10,000 messages, over 50 deaths of workers and 5 of the server. moto's SQS keeps nothing over its death: there
    the network is cut instead, in the middle of answers."""
    messages, worker_kills, outages = 10_000, 50, 5
    draw = random.Random(messages)
    (tmp_path / "queue").mkdir()
    with queue_of(kind, postgresql, tmp_path / "queue") as queue, ExitStack() as stack:
        address, kills, broken, up = queue.address, 0, 0, Lock()
        Thread(target=feed, args=(queue, messages, lambda: (kills + 2) / worker_kills, up), daemon=True).start()
        break_queue: Callable[[], None] = partial(restart, postgresql)
        if isinstance(queue, SampleStream):
            break_queue = queue.server.restart
        if isinstance(queue, SampleSqs):
            host = urlsplit(address).netloc
            network = stack.enter_context(FaultyNetwork(host))
            address, break_queue = address.replace(host, network.address), partial(cut, network)
        out, history = tmp_path / "answers.jsonl", tmp_path / "history"
        options = ["--max-tokens", "1", "--until-empty", "10", "--lease-seconds", "2", "--checkpoint-seconds", "0.05"]
        options += ["--server", crash_server.grpc_address, "--no-dedupe", "--raw"]
        options += [] if queue.dead_letters is None else ["--dead-letters", queue.dead_letters]
        environment: dict[str, str] = {VARIABLE: str(history)} | {
            name: os.environ[name] for name in os.environ if "AWS" in name
        }
        while True:
            killing = kills < worker_kills
            point = f"{draw.choice(POINTS)}:{draw.randint(1, 6)}:kill" if kills % 2 and killing else ""
            life = lives.start("run", address, "--out", out, *options, failpoint=point, environment=environment)
            life.ended.wait(draw.uniform(0.5, 3.0) if killing else 0)
            if 8 * broken + 8 <= kills and broken < outages and not life.ended.is_set():
                with up:
                    break_queue()
                broken += 1
                life.ended.wait(draw.uniform(0.5, 3.0))
            if killing:
                life.send(signal.SIGKILL)
            code = life.wait(900)
            if code == -9:
                kills += 1
                continue
            assert code in (3, 75), life.said
            if code == 3:  # one dead letter
                break
        files = [path for path in tmp_path.glob("answers*.jsonl") if path.stat().st_size]
        print(kind, f"{kills} kills, {broken} of the server:", check(history, files, messages))
        assert (kills >= worker_kills, broken) == (True, outages)
        assert queue.left() == 0
        assert queue.dead() == [POISON]
        assert (tmp_path / "answers.dead.jsonl").read_text().count("row_crashed_worker") == 1
