"""Workers of a queue are killed, and the queue's server too: each message has one record, before it is acknowledged."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from inflight.deploy.server.server import Server
from tests.batch.crash.history import POISON, VARIABLE, check
from tests.batch.crash.job_processes import JobProcess, JobProcesses
from tests.batch.crash.test_failpoints import OF_QUEUES
from tests.fixtures.postgresql import PostgreSql
from tests.fixtures.queues import SampleStream, queue_of
from tests.fixtures.waiting import wait_until

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


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("kind", "messages", "server_kills"), [("postgresql", 10_000, 5), ("jetstream", 10_000, 5), ("sqs", 1_000, 0)]
)
def test_each_message_has_one_record_before_it_is_acknowledged(
    kind: str,
    messages: int,
    server_kills: int,
    crash_server: Server,
    lives: JobProcesses,
    postgresql: PostgreSql,
    tmp_path: Path,
) -> None:
    """moto's SQS keeps nothing of a server that dies, and is so slow that a job should hold few messages."""
    draw = random.Random(messages)
    (tmp_path / "queue").mkdir()
    with queue_of(kind, postgresql, tmp_path / "queue") as queue:
        restart_queue: Callable[[], None] = lambda: restart(postgresql)  # noqa: E731
        if isinstance(queue, SampleStream):
            restart_queue = queue.server.restart
        for first in range(0, messages, 1000):
            batch = [{"prompt": f"tea {number}"} for number in range(first, min(first + 1000, messages))]
            queue.send(batch if first else [*batch[:-1], {"prompt": POISON}])
        out, history = tmp_path / "answers.jsonl", tmp_path / "history"
        options = ["--max-tokens", "1", "--until-empty", "2", "--lease-seconds", "2", "--checkpoint-seconds", "0.05"]
        options += ["--server", crash_server.grpc_address, "--no-dedupe", "--raw"]
        options += ["--window", "16"] if kind == "sqs" else []
        options += [] if queue.dead_letters is None else ["--dead-letters", queue.dead_letters]
        environment: dict[str, str] = {VARIABLE: str(history)} | {
            name: os.environ[name] for name in os.environ if "AWS" in name
        }
        kills, servers = 0, 0
        while True:
            point = f"{draw.choice(POINTS)}:{draw.randint(1, 6)}:kill" if kills % 2 and kills < 50 else ""
            life = lives.start("run", queue.address, "--out", out, *options, failpoint=point, environment=environment)
            life.ended.wait(draw.uniform(0.5, 3.0) if kills < 50 else 0)
            if servers < server_kills and kills % 8 == 7:
                restart_queue()
                servers += 1
            if kills < 50:
                life.send(signal.SIGKILL)
            code = life.wait(600)
            if code == -9:
                kills += 1
                continue
            assert code in (3, 75), life.said
            if code == 3:  # one dead letter
                break
        files = [path for path in tmp_path.glob("answers*.jsonl") if path.stat().st_size]
        print(kind, f"{kills} kills, {servers} of the server:", check(history, files, messages))
        assert kills >= 50
        assert queue.left() == 0
        assert queue.dead() == [POISON]
        assert (tmp_path / "answers.dead.jsonl").read_text().count("row_crashed_worker") == 1
