"""Builds that are cut off: by a full disk, by a signal, by a kill. The old engine is kept, and nothing runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from build_engines.manifest import Manifest
from tests.build_engines.build_runs import StartedBuild, UntilExport, build, names
from tests.fixtures.waiting import wait_until

CLI = [sys.executable, "-c", "from inflight.cli import main; main()"]


def test_a_disk_that_fills_up_midway_leaves_the_old_engine(tmp_path: Path, engine: Path, checkpoint: Path) -> None:
    """On a separate file system that is too small, which takes the right to mount one."""
    size = sum(path.stat().st_size for path in engine.iterdir())
    disk = tmp_path / "disk"
    disk.mkdir()
    arguments = ["build", str(checkpoint), "--precision", "fp32", "--out", str(disk / "engine"), "--force"]
    # The file system is gone with the namespace, so what is on it is read inside.
    script = f"""
        mount -t tmpfs -o size={size + 600_000 >> 12 << 12} tmpfs {disk} && cp -r {engine} {disk}/engine || exit 77
        "$@"
        echo "ended with $?"; find {disk} -mindepth 1 -maxdepth 1; sha256sum {disk}/engine/openvino_model.bin
    """
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *CLI, *arguments], capture_output=True, text=True, check=False
    )
    if "ended with" not in done.stdout:
        pytest.skip("this user may not mount a file system")
    assert "ended with 1" in done.stdout
    assert "[disk_full]" in done.stderr
    lines = done.stdout.split("\n", 1)[1].split()
    assert lines[0] == f"{disk}/engine"
    assert lines[1] == Manifest.read(engine).files["openvino_model.bin"].sha256


@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, "Converting"), (signal.SIGTERM, "Loading the exporter")])
def test_an_interrupt_midway_leaves_the_old_engine_and_no_process(
    engine: Path, checkpoint: Path, number: signal.Signals, step: str
) -> None:
    before = (engine / "engine.json").read_bytes()
    arguments = [*CLI, "build", str(checkpoint), "--precision", "fp32", "--out", str(engine), "--force"]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(step):
            break
    children = _children(process.pid)
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(60) == 130
    process.stderr.close()
    assert rest.splitlines()[-1] == "Interrupted."
    assert "Traceback" not in rest
    assert (engine / "engine.json").read_bytes() == before
    assert names(engine.parent) == ["checkpoint", "engine"]
    assert children
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_build_takes_its_exporting_process_along(engine: Path, checkpoint: Path) -> None:
    arguments = [*CLI, "build", str(checkpoint), "--precision", "fp32", "--out", str(engine), "--force"]
    # The log of a build that was killed is kept; keep it with this test.
    environment = os.environ | {"TMPDIR": str(checkpoint)}
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("Loading the exporter"):
            break
    (child,) = _children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    process.stderr.close()
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "the end of the exporting process")
    # What it left beside is swept by the next build.
    assert len(names(engine.parent)) > 2
    with pytest.raises(StartedBuild):
        build(checkpoint, engine, UntilExport(), force=True)
    assert names(engine.parent) == ["checkpoint", "engine"]
