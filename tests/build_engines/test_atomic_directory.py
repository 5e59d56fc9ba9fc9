from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from build_engines.atomic_directory import atomic_directory, exclusive_writer, in_use
from build_engines.errors import BuildError
from tests.fixtures.errors import raises
from tests.fixtures.other_user import as_other_user
from tests.fixtures.waiting import wait_until


def ours(directory: Path) -> bool:
    return (directory / "mark").is_file()


def write(out: Path, content: str = "new", force: bool = False) -> None:
    with atomic_directory(out, is_ours=ours, kind="thing", force=force) as directory:
        (directory / "mark").write_text(content)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_directory_appears_when_the_block_ends(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with atomic_directory(out, is_ours=ours, kind="thing") as directory:
        (directory / "sub").mkdir()
        (directory / "sub" / "file").write_text("content")
        assert not out.exists()
    assert (out / "sub" / "file").read_text() == "content"
    assert names(out.parent) == ["out"]


def test_one_of_ours_is_replaced_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, "old")
    (out / "stale").write_text("")
    write(out, "new")
    assert names(out) == ["mark"]
    assert (out / "mark").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_one_that_is_in_use_is_replaced_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, "old")
    with in_use(out), in_use(out):
        with raises(BuildError, "output_exists", naming="--force"):
            write(out)
        assert (out / "mark").read_text() == "old"
        write(out, force=True)
    assert (out / "mark").read_text() == "new"
    write(out, "newer")


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert names(tmp_path / "out") == ["mark"]


def test_a_link_keeps_pointing(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == ["mark"]


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_is_not_ours_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("precious")
    else:
        out.mkdir()
        (out / "precious").write_text("precious")
    with raises(BuildError, "output_exists", naming="--out"):
        write(out)
    assert "precious" in (out.read_text() if kind == "file" else names(out))
    assert names(tmp_path) == ["out"]


def test_an_error_leaves_the_old_as_it_was_and_no_rubbish(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, "old")

    def fail_midway() -> None:
        with atomic_directory(out, is_ours=ours, kind="thing") as directory:
            (directory / "mark").write_text("new")
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail_midway()
    assert (out / "mark").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = (
        "import os, signal, pathlib\n"
        "from build_engines.atomic_directory import atomic_directory\n"
        f"with atomic_directory(pathlib.Path({str(out)!r}), is_ours=lambda d: False, kind='thing') as directory:\n"
        "    (directory / 'half').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert not out.exists()
    assert len(names(tmp_path)) == 1
    write(out)
    assert names(tmp_path) == ["out"]
    assert names(out) == ["mark"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unwinds_and_cleans_up(tmp_path: Path, number: int) -> None:
    """In a separate process: threads of libraries that other tests loaded here may take the signal, and crash."""
    out = tmp_path / "out"
    write(out, "old")
    script = (
        "import os, signal, pathlib, time\n"
        "from build_engines.atomic_directory import atomic_directory\n"
        "try:\n"
        f"    with atomic_directory(pathlib.Path({str(out)!r}), is_ours=lambda d: True, kind='thing'):\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "        time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
        "    raise SystemExit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 7
    assert (out / "mark").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises(BuildError, "output_exists"):
        write(tmp_path / "file" / "out")


def test_a_place_that_the_user_may_not_write_is_told(tmp_path: Path) -> None:
    with as_other_user(), raises(BuildError, "output_unwritable"):
        write(tmp_path / "out")


def test_a_second_writer_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    out, heard, order = tmp_path / "out", list[str](), list[str]()

    def second() -> None:
        with exclusive_writer(out, heard.append):
            order.append("second")

    with exclusive_writer(out, heard.append):
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: heard)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert [line for line in heard if "waiting" in line] == heard
    assert len(heard) == 1
    assert names(tmp_path) == []
