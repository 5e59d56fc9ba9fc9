"""A job is one process's at a time, and goes on only as it began: same rows, same model, same sampling."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from inflight.batch.job.directory import JobDirectory
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.server.server import Server
from tests.batch.crash.job_processes import JobProcesses
from tests.batch.crash.jobs import lines_of, write_rows
from tests.fixtures.engines import TinyEngine
from tests.fixtures.server import fake_engine
from tests.fixtures.waiting import wait_until

REFUSED = 1


class BoundJob:
    """A job that died on its way."""

    def __init__(self, lives: JobProcesses, server: Server, directory: Path) -> None:
        self.rows, self.out = directory / "rows.jsonl", directory / "answers.jsonl"
        self.server = server.grpc_address
        self._lives = lives
        write_rows(self.rows, 100, odd=False)
        assert lives.run("run", self.rows, *self.asked(), failpoint="lines.write:1:kill").wait() == -9

    def asked(self) -> tuple[str, ...]:
        out = ("--out", str(self.out), "--checkpoint-seconds", "0.05", "--server", self.server)
        return (*out, "--id", "id", "--max-tokens", "8")

    def refusal(self, *arguments: str | Path) -> str:
        """The message of a process that is refused; it changes no file."""
        before = lines_of(self.out)
        life = self._lives.run(*arguments)
        assert life.wait() == REFUSED, life.said
        assert "Traceback" not in life.said
        assert lines_of(self.out) == before
        return life.said


@pytest.fixture(scope="module")
def begun(lives: JobProcesses, paced_server: Server, tmp_path_factory: pytest.TempPathFactory) -> BoundJob:
    return BoundJob(lives, paced_server, tmp_path_factory.mktemp("begun"))


@pytest.mark.parametrize(
    "other",
    [
        ("--max-tokens", "9"),
        ("--temperature", "0.5"),
        ("--template", "Say {{ prompt }}"),
        ("--chat",),
    ],
    ids=lambda other: other[0],
)
def test_another_template_or_sampling_is_refused(begun: BoundJob, other: tuple[str, ...]) -> None:
    said = begun.refusal("run", begun.rows, *begun.asked(), *other)
    assert "[job_mismatch]" in said
    assert other[0] in said


def test_another_model_is_refused(begun: BoundJob, tiny_engine: TinyEngine) -> None:
    with Server(tiny_engine("qwen2"), DeploymentOptions(parameters=fake_engine())) as other:
        said = begun.refusal("resume", begun.out, "--server", other.grpc_address)
    assert "[job_mismatch]" in said
    assert "model" in said


def test_an_input_that_changed_is_refused(begun: BoundJob) -> None:
    content = begun.rows.read_bytes()
    begun.rows.write_bytes(content.replace(b"tea", b"tee", 1))
    assert "[input_changed]" in begun.refusal("resume", begun.out)
    begun.rows.write_bytes(content)


def test_a_second_process_is_refused_while_one_runs(lives: JobProcesses, paced_server: Server, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", 20, odd=False)
    out = tmp_path / "answers.jsonl"
    asked = ("--out", out, "--server", paced_server.grpc_address, "--max-tokens", "3000")
    life = lives.start("run", tmp_path / "rows.jsonl", *asked)
    wait_until(lambda: JobDirectory(out.with_suffix(".job")).progress.exists())
    for command in (("run", tmp_path / "rows.jsonl", *asked), ("resume", out)):
        other = lives.run(*command)
        assert other.wait() == REFUSED
        assert "[job_running]" in other.said
    assert life.status is None
    life.send(signal.SIGKILL)
    assert life.wait() == -9
