from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from build_engines.errors import BuildError
from build_engines.model_cache.cache import EntryRecord, ModelCache
from tests.fixtures.engines import TinyEngine
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until

Build = Callable[[Path], None]


def record(name: str = "tests/tiny", revision: str = "1" * 40, options: str = "0") -> EntryRecord:
    return EntryRecord(
        name=name,
        revision=revision,
        requested_revision=None,
        target="openvino",
        precision=None,
        options=options,
        version="1",
    )


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


@pytest.fixture
def build(tiny_engine: TinyEngine) -> Build:
    def copy(out: Path) -> None:
        shutil.copytree(tiny_engine("llama"), out)

    return copy


def fail(out: Path) -> None:
    raise AssertionError("an engine was built that is there")


def ignore(line: str) -> None:
    pass


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({"INFLIGHT_CACHE": "/a"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/inflight/engines"),
        ({"XDG_CACHE_HOME": "b", "HOME": "/c"}, "/c/.cache/inflight/engines"),
        ({"HOME": "/c"}, "/c/.cache/inflight/engines"),
    ],
)
def test_the_root_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], root: str
) -> None:
    for name in ("INFLIGHT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ModelCache.default().root == Path(root)


def test_an_engine_is_built_once_for_the_same_content_and_options(cache: ModelCache, build: Build) -> None:
    with cache.hold(record(), build, ignore) as first:
        assert first.manifest is not None
    with cache.hold(record(), fail, ignore) as again:
        assert again.engine == first.engine
    for other in (record(revision="2" * 40), record(options="1"), record(name="tests-tiny")):
        with cache.hold(other, build, ignore) as held:
            assert held.engine != first.engine
    assert len(cache.entries()) == 4
    assert {entry.state for entry in cache.entries()} == {"ready"}


def test_a_damaged_engine_is_built_again(cache: ModelCache, build: Build) -> None:
    with cache.hold(record(), build, ignore) as held:
        (held.engine / "openvino_model.bin").write_bytes(b"")

    def rebuild(out: Path) -> None:
        shutil.rmtree(out)
        build(out)

    with cache.hold(record(), rebuild, ignore) as again:
        assert again.manifest is not None


def test_a_failed_build_leaves_what_list_and_rm_know(cache: ModelCache, build: Build) -> None:
    with pytest.raises(AssertionError), cache.hold(record(), fail, ignore):
        pass
    [left] = cache.entries()
    assert (left.state, left.manifest) == ("incomplete", None)
    with cache.hold(record(), build, ignore):
        pass
    cache.remove(left)
    assert list(cache.root.iterdir()) == []


def test_an_engine_in_use_is_not_removed(cache: ModelCache, build: Build) -> None:
    with ExitStack() as servers:
        entry = servers.enter_context(cache.hold(record(), build, ignore))
        servers.enter_context(cache.hold(record(), fail, ignore))
        assert entry.state == "in use"
        with raises(BuildError, "engine_in_use", naming="tests/tiny"):
            cache.remove(entry)
        assert entry.engine.is_dir()
    cache.remove(entry)
    assert cache.entries() == []


def test_a_second_process_waits_for_the_build(cache: ModelCache, build: Build) -> None:
    building, proceed, lines = threading.Event(), threading.Event(), list[str]()

    def slowly(out: Path) -> None:
        building.set()
        assert proceed.wait(60)
        build(out)

    def first() -> None:
        with cache.hold(record(), slowly, ignore):
            pass

    def second() -> None:
        with cache.hold(record(), fail, lines.append):
            pass

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert building.wait(60)
    [entry] = cache.entries()
    assert entry.state == "building"
    threads[1].start()
    wait_until(lambda: lines, "the second one's message")
    proceed.set()
    for thread in threads:
        thread.join(60)
    assert [one.state for one in cache.entries()] == ["ready"]


@pytest.mark.parametrize(
    ("name", "near"),
    [("tests/tinny", "tests/tiny"), ("tiny", "tests/tiny"), ("TINY", "tests/tiny"), ("other", "`inflight list`")],
)
def test_an_unknown_model_is_answered_with_the_nearest(cache: ModelCache, build: Build, name: str, near: str) -> None:
    with cache.hold(record(), build, ignore):
        pass
    with raises(BuildError, "engine_not_found", naming=name) as caught:
        cache.find(name)
    assert near in str(caught.value)


def test_a_cache_that_can_not_be_written_is_one_sentence(tmp_path: Path, build: Build) -> None:
    (tmp_path / "file").write_text("")
    with (
        raises(BuildError, "output_unwritable", naming="INFLIGHT_CACHE"),
        ModelCache(tmp_path / "file" / "cache").hold(record(), build, ignore),
    ):
        pass


def test_what_is_no_engine_is_left_alone(cache: ModelCache, build: Build) -> None:
    cache.root.mkdir()
    (cache.root / "notes.txt").write_text("mine")
    (cache.root / ".removed-1234").mkdir()
    with cache.hold(record(), build, ignore):
        pass
    assert len(cache.entries()) == 1
    assert sorted(os.listdir(cache.root))[0] == "notes.txt"
