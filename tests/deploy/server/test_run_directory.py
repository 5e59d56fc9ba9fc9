from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inflight.deploy.errors import DeployError
from inflight.deploy.server.run_directory import (
    SHARED_MEMORY_DIRECTORY,
    ServerRunDirectory,
    default_base_directory,
    remove_shared_memory,
    remove_stale_run_directories,
    stale_run_directories,
)
from tests.fixtures.errors import raises

ABANDON = """
import os, signal, sys
from pathlib import Path
from inflight.deploy.server.run_directory import ServerRunDirectory
run = ServerRunDirectory.create(Path(sys.argv[1]))
(Path("/dev/shm") / (run.shm_prefix + "region")).touch()
print(run.shm_prefix, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
SWEEP = """
import sys
from pathlib import Path
from inflight.deploy.server.run_directory import remove_stale_run_directories
print(remove_stale_run_directories(Path(sys.argv[1])))
"""


@pytest.fixture
def abandoned(tmp_path: Path) -> Iterator[Path]:
    """The shared memory region of an owner that was killed."""
    done = subprocess.run([sys.executable, "-c", ABANDON, str(tmp_path)], capture_output=True, text=True)
    region = SHARED_MEMORY_DIRECTORY / f"{done.stdout.strip()}region"
    yield region
    region.unlink(missing_ok=True)


def test_the_next_start_sweeps_what_a_killed_owner_left(tmp_path: Path, abandoned: Path) -> None:
    assert abandoned.exists()
    assert len(stale_run_directories(tmp_path)) == 1
    run = ServerRunDirectory.create(tmp_path)
    assert not abandoned.exists()
    assert list(tmp_path.iterdir()) == [run.path]
    run.close()


def test_a_sweep_never_touches_the_living(tmp_path: Path) -> None:
    run = ServerRunDirectory.create(tmp_path)
    region = SHARED_MEMORY_DIRECTORY / f"{run.shm_prefix}region"
    region.touch()
    done = subprocess.run([sys.executable, "-c", SWEEP, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == "[]\n"
    assert remove_stale_run_directories(tmp_path) == stale_run_directories(tmp_path) == []
    assert region.exists()
    assert run.path.exists()
    run.close()


def test_a_sweep_leaves_the_shared_memory_of_strangers(tmp_path: Path, abandoned: Path) -> None:
    stranger = SHARED_MEMORY_DIRECTORY / f"test-stranger-{uuid.uuid4()}"
    stranger.touch()
    try:
        remove_stale_run_directories(tmp_path)
        assert stranger.exists()
    finally:
        stranger.unlink()


@pytest.mark.parametrize("prefix", ["", "i", "inflight-", "inflight-12345678901*-", "triton"])
def test_shared_memory_is_only_removed_by_a_prefix_of_ours(prefix: str) -> None:
    with raises(ValueError):
        remove_shared_memory(prefix)


def test_closing_leaves_nothing(tmp_path: Path) -> None:
    run = ServerRunDirectory.create(tmp_path)
    (run.path / "repository").mkdir()
    region = SHARED_MEMORY_DIRECTORY / f"{run.shm_prefix}region"
    region.touch()
    run.close()
    assert list(tmp_path.iterdir()) == []
    assert not region.exists()


def test_a_log_that_is_kept_stays_until_the_next_start(tmp_path: Path) -> None:
    run = ServerRunDirectory.create(tmp_path)
    run.log.write_text("why")
    run.close(keep_log=True)
    assert run.log.read_text() == "why"
    ServerRunDirectory.create(tmp_path).close()
    assert not run.log.exists()


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with raises(DeployError, "server_start_failed", naming=("file/home", "INFLIGHT_RUN_DIR")):
        ServerRunDirectory.create(tmp_path / "file" / "home")


def test_a_place_that_triton_can_not_be_started_in_is_refused(tmp_path: Path) -> None:
    with raises(DeployError, "server_start_failed", naming=("a $(b)", "INFLIGHT_RUN_DIR")):
        ServerRunDirectory.create(tmp_path / "a $(b)")
    assert list(tmp_path.iterdir()) == []


def test_a_runtime_directory_that_triton_can_not_be_started_in_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = tmp_path / "run time"
    strange.mkdir()
    monkeypatch.delenv("INFLIGHT_RUN_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(strange))
    monkeypatch.setattr(tempfile, "tempdir", str(strange))
    assert default_base_directory() == Path(f"/tmp/inflight-{os.getuid()}")


@pytest.mark.parametrize("squat", [lambda home, own: home.symlink_to(own), lambda home, own: home.mkdir(mode=0o755)])
def test_a_place_that_somebody_may_have_prepared_is_refused(
    tmp_path: Path, squat: Callable[[Path, Path], object]
) -> None:
    everybodys, own = tmp_path / "tmp", tmp_path / "own"
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    own.mkdir(mode=0o700)
    squat(everybodys / "inflight", own)
    with raises(DeployError, "server_start_failed", naming="tmp/inflight"):
        ServerRunDirectory.create(everybodys / "inflight")


def test_a_place_among_everybodys_is_made_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    run = ServerRunDirectory.create(tmp_path / "inflight")
    assert stat.S_IMODE((tmp_path / "inflight").stat().st_mode) == 0o700
    run.close()
