"""Where a repository goes: whole or not at all, and only over one of ours."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from build_engines.errors import BuildError
from inflight.deploy.errors import DeployError
from inflight.deploy.publish.publish import publish_repository
from inflight.deploy.publish.s3_address import S3Address
from inflight.deploy.publish.s3_repository import S3Repository
from inflight.deploy.repository import manifest
from inflight.deploy.repository.assemble import AssemblyRequest, assemble_repository
from inflight.deploy.repository.configure import DeploymentOptions
from inflight.deploy.repository.engine_set import EngineSet
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises
from tests.fixtures.s3_server import S3TestBucket, s3_server

CLI = [sys.executable, "-c", "from inflight.cli import main; main()"]
# Ends this process in the middle of the copy, as a kill or a power cut would.
KILLED = """
import os, shutil, sys
from inflight.deploy.publish import publish
from inflight.deploy.repository import assemble
def put(source, target):
    if source.name.endswith(".bin"):
        os.kill(os.getpid(), 9)
    shutil.copyfile(source, target)
publish.assemble_repository = lambda request, out: assemble.assemble_repository(request, out, put)
from inflight.cli import main
main()
"""


@pytest.fixture(scope="module")
def engine(tiny_engine: TinyEngine) -> Path:
    return tiny_engine("llama")


@pytest.fixture(scope="module")
def storage() -> Iterator[S3TestBucket]:
    with s3_server() as running:
        yield running


def silent(line: str) -> None:
    pass


Order_ = Callable[..., AssemblyRequest]


@pytest.fixture
def order(engine: Path) -> Order_:
    return lambda **options: AssemblyRequest(EngineSet.find(engine), DeploymentOptions(**options))


def test_a_second_time_nothing_is_written_unless_forced(order: Order_, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert publish_repository(order(), out, silent).updated
    written = (out / manifest.MANIFEST_FILE).stat().st_mtime_ns
    assert not publish_repository(order(), out, silent).updated
    assert (out / manifest.MANIFEST_FILE).stat().st_mtime_ns == written
    again = publish_repository(order(), out, silent, force=True)
    assert again.updated
    assert again.manifest == manifest.verify_repository(out, hashes=True)


def test_one_that_was_damaged_or_is_of_another_order_is_written_anew(order: Order_, tmp_path: Path) -> None:
    out = tmp_path / "out"
    publish_repository(order(), out, silent)
    (out / "ensemble" / "config.pbtxt").write_text("name: 'x'")
    messages: list[str] = []
    assert publish_repository(order(), out, messages.append).updated
    assert "can't be kept" in messages[0]
    assert publish_repository(order(max_num_sequences=3), out, silent).updated
    assert {path.name for path in tmp_path.iterdir()} == {"out"}, "something is left beside it"


def test_what_is_not_ours_is_left_alone(order: Order_, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    for out in (tmp_path, tmp_path / "letter"):
        with raises(BuildError, "output_exists", naming="--out"):
            publish_repository(order(), out, silent, force=True)
    assert (tmp_path / "letter").read_text() == "dear"


def test_an_engine_that_is_not_ready_to_be_copied_is_no_repository_to_replace(order: Order_, engine: Path) -> None:
    with raises(BuildError, "output_exists"):
        publish_repository(order(), engine, silent)


@pytest.mark.parametrize("force", [False, True])
def test_what_somebody_has_put_into_a_repository_does_not_go_with_it(
    order: Order_, tmp_path: Path, force: bool
) -> None:
    out = tmp_path / "out"
    publish_repository(order(), out, silent)
    (out / "tensorrt_llm" / "__pycache__").mkdir()
    (out / "tensorrt_llm" / "__pycache__" / "model.pyc").touch()  # what Python leaves belongs to no engine
    assert publish_repository(order(max_num_sequences=3), out, silent).updated
    notes = out / "tensorrt_llm" / "notes.txt"
    notes.write_text("dear")
    with raises(DeployError, "output_exists", naming=("tensorrt_llm/notes.txt", "inflight.json")):
        publish_repository(order(max_num_sequences=4), out, silent, force=force)
    assert notes.read_text() == "dear"


def test_what_comes_into_a_repository_while_the_next_one_is_made_stays_too(
    order: Order_, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    publish_repository(order(), out, silent)
    real = assemble_repository

    def meanwhile(order: AssemblyRequest, partial: Path) -> manifest.RepositoryManifest:
        (out / "notes.txt").write_text("dear")
        return real(order, partial)

    monkeypatch.setattr("inflight.deploy.publish.publish.assemble_repository", meanwhile)
    with raises(DeployError, "output_exists", naming="notes.txt"):
        publish_repository(order(max_num_sequences=4), out, silent)
    assert (out / "notes.txt").read_text() == "dear"


@pytest.mark.parametrize(
    ("around", "noun"), [(manifest.MANIFEST_FILE, "the repository"), ("engine.json", "the engine directory")]
)
def test_nothing_is_put_into_a_repository_or_an_engine(order: Order_, tmp_path: Path, around: str, noun: str) -> None:
    (tmp_path / around).write_text("{}")
    out = tmp_path / "deep" / "out"
    with raises(DeployError, "output_exists", naming=str(tmp_path)):
        publish_repository(order(), out, silent)
    assert not out.parent.exists()


def test_a_kill_in_the_middle_leaves_the_old_one_and_the_next_run_sweeps(
    order: Order_, engine: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    old = publish_repository(order(), out, silent).manifest
    arguments = ["assemble", str(engine), "--out", str(out), "--max-num-sequences", "3"]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) > 1, "it was killed before it had begun"
    assert manifest.verify_repository(out, hashes=True) == old
    subprocess.run([*CLI, *arguments], capture_output=True, check=True)
    assert manifest.verify_repository(out, hashes=True) != old
    assert list(tmp_path.iterdir()) == [out]


def test_a_disk_that_fills_up_midway_leaves_the_old_one(order: Order_, engine: Path, tmp_path: Path) -> None:
    """On a separate file system that is too small, which takes the right to mount one."""
    publish_repository(order(), tmp_path / "old", silent)
    disk = tmp_path / "disk"
    disk.mkdir()
    pages = sum(-(-path.stat().st_size // 4096) for path in (tmp_path / "old").rglob("*") if path.is_file())
    # There is room for the old one and for the engine, as the look before says, but not for all the rest.
    room = pages * 4096 + sum(path.stat().st_size for path in engine.iterdir()) + 100_000
    script = f"""
        mount -t tmpfs -o size={room >> 12 << 12} tmpfs {disk} && cp -r {tmp_path}/old {disk}/out || exit 77
        "$@"
        echo "ended with $?"; find {disk} -mindepth 1 -maxdepth 1; sha256sum {disk}/out/inflight.json
    """
    arguments = [*CLI, "assemble", str(engine), "--out", str(disk / "out"), "--max-num-sequences", "3"]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *arguments], capture_output=True, text=True, check=False
    )
    if "ended with" not in done.stdout:
        pytest.skip("this user may not mount a file system")
    assert "ended with 1" in done.stdout, done.stdout
    assert "[disk_full]" in done.stderr
    assert "Copying" in done.stderr, "it was refused before it had begun"
    lines = done.stdout.split("\n", 1)[1].split()
    assert lines[0] == f"{disk}/out"
    assert len(lines) == 3, "something is left beside it"


def test_a_full_temporary_directory_is_said_and_nothing_begun_on_s3(
    order: Order_, storage: S3TestBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("inflight.deploy.repository.assemble.vendor_runtime", full)
    with raises(DeployError, "disk_full", naming="TMPDIR"):
        publish_repository(replace(order(), vendored=True), S3Address.parse(storage.address("llama/full")), silent)
    assert storage.names("llama/full") == set()


def test_to_s3_it_goes_the_same_and_without_a_copy_of_the_engine_on_the_way(
    order: Order_, storage: S3TestBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = S3Address.parse(storage.address("llama/v1"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert publish_repository(order(), address, silent).updated
    assert not publish_repository(order(), address, silent).updated
    there = S3Repository(address).read_manifest()
    here = publish_repository(order(), tmp_path / "out", silent).manifest
    assert there.files == here.files
    assert storage.names("llama/v1") == {*there.files, manifest.MANIFEST_FILE}
