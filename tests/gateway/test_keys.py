"""The keys of a running gateway: it follows the file, and denies every key while that is unusable."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from inflight_client import InflightError

from inflight.gateway.key_editing import add_key, revoke_key
from inflight.gateway.key_file import ApiKey, key_digest
from inflight.gateway.key_ring import KeyRing
from tests.fixtures.errors import raises
from tests.fixtures.waiting import wait_until
from tests.gateway.key_files import keys_json, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def token(path: Path) -> str:
    return add_key(path, ApiKey.new("shop", models=["llama"]))


def accepts(ring: KeyRing, token: str) -> Callable[[], bool]:
    return lambda: ring.authenticate(token) is not None


def denies(ring: KeyRing, token: str) -> Callable[[], bool]:
    return lambda: ring.authenticate(token) is None


def test_a_key_is_accepted_and_its_entry_returned(path: Path, token: str) -> None:
    other = add_key(path, ApiKey.new("ci"))
    ring = KeyRing.load(path)
    for text, name in ((token, "shop"), (other, "ci")):
        key = ring.authenticate(text)
        assert key is not None
        assert key.name == name


def test_other_texts_are_denied(path: Path, token: str) -> None:
    ring = KeyRing.load(path)
    digest = key_digest(token).hex()
    texts = ["", " ", token[:-1], token + "x", token.upper(), f" {token}", digest, "shop", "\ud800", "é" * 100_000]
    assert [ring.authenticate(text) for text in texts] == [None] * len(texts)


def test_a_ring_shows_no_key(path: Path, token: str) -> None:
    ring = KeyRing.load(path)
    assert token not in repr(ring)
    assert key_digest(token).hex() not in repr(ring)
    assert ring.authenticate(token) is not None
    assert token not in repr(ring.authenticate(token))


def test_a_missing_file_has_no_keys_until_there_is_one(path: Path) -> None:
    ring = KeyRing.load(path)
    assert not ring.required
    assert ring.authenticate("sk-inflight-x") is None
    token = add_key(path, ApiKey.new("shop"))
    wait_until(accepts(ring, token))
    assert ring.required


def test_a_file_without_valid_keys_requires_keys(path: Path, token: str) -> None:
    revoke_key(path, "shop")
    assert KeyRing.load(path).required
    write(path, keys_json())
    assert KeyRing.load(path).required


def test_a_revoked_key_is_denied_while_the_ring_runs(path: Path, token: str) -> None:
    other = add_key(path, ApiKey.new("ci"))
    ring = KeyRing.load(path)
    program = "import sys; from inflight import cli; cli.main(['key', 'revoke', 'shop', '--key-file', sys.argv[1]])"
    subprocess.run([sys.executable, "-P", "-c", program, path], check=True, stdout=subprocess.DEVNULL)
    wait_until(denies(ring, token), seconds=60)
    assert ring.authenticate(other) is not None


def test_an_expired_key_is_denied(path: Path) -> None:
    end = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=2)
    token = add_key(path, ApiKey.new("soon", expires=end))
    ring = KeyRing.load(path)
    wait_until(denies(ring, token), seconds=60)
    assert datetime.now(timezone.utc) >= end
    assert ring.required


def unlink(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def open_to_others(path: Path) -> None:
    path.chmod(0o644)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


def replace_by_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("missing"))


def garble(path: Path) -> None:
    write(path, b"\x00" * path.stat().st_size)


DAMAGE = [unlink, truncate, open_to_others, replace_by_directory, replace_by_dangling_link, garble]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda each: each.__name__)
def test_a_file_that_becomes_unusable_denies_until_it_is_restored(
    path: Path, token: str, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    caplog.set_level(logging.INFO, "inflight.gateway.key_ring")
    good = path.read_bytes()
    ring = KeyRing.load(path)
    assert ring.authenticate(token) is not None
    damage(path)
    wait_until(denies(ring, token))
    assert ring.required
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [str(path) in each.getMessage() for each in errors] == [True]
    assert token not in caplog.text
    assert key_digest(token).hex() not in caplog.text

    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    write(path, good)
    wait_until(accepts(ring, token))
    assert caplog.records[-1].levelno == logging.INFO


def test_a_file_that_is_invalid_when_it_first_appears_requires_keys(path: Path) -> None:
    ring = KeyRing.load(path)
    write(path, "garbled")
    wait_until(lambda: ring.required)
    path.unlink()
    assert ring.required


@pytest.mark.parametrize("damage", [truncate, open_to_others, replace_by_directory, replace_by_dangling_link, garble])
def test_an_unusable_file_is_an_error_at_the_start(path: Path, token: str, damage: Callable[[Path], None]) -> None:
    damage(path)
    with raises(InflightError, "storage_denied" if damage is open_to_others else "keys_invalid", naming=str(path)):
        KeyRing.load(path)


def test_a_file_of_the_same_size_and_time_is_read_again(path: Path, token: str) -> None:
    """An editor or a copy that keeps the time of modification."""
    ring = KeyRing.load(path)
    before = path.stat()
    digest = key_digest(token).hex()
    write(path, path.read_text().replace(digest, "ab" * 32))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    wait_until(denies(ring, token))


def test_a_symbolic_link_that_points_elsewhere_is_followed(path: Path, token: str, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    second = add_key(other, ApiKey.new("ci"))
    link = tmp_path / "link.json"
    link.symlink_to(path)
    ring = KeyRing.load(link)
    assert ring.authenticate(token) is not None
    link.unlink()
    link.symlink_to(other)
    wait_until(accepts(ring, second))
    assert ring.authenticate(token) is None


def test_threads_share_a_ring_while_keys_are_added(path: Path, token: str) -> None:
    ring = KeyRing.load(path)
    stop = threading.Event()
    denied: list[str] = []

    def authenticate() -> None:
        while not stop.is_set():
            if ring.authenticate(token) is None:
                denied.append(token)

    threads = [threading.Thread(target=authenticate) for _ in range(4)]
    for thread in threads:
        thread.start()
    last = [add_key(path, ApiKey.new(f"name-{number}")) for number in range(20)][-1]
    wait_until(accepts(ring, last))
    stop.set()
    for thread in threads:
        thread.join()
    assert not denied


def test_no_server_is_imported() -> None:
    program = (
        "import sys, inflight.gateway.key_ring; print({'uvicorn', 'starlette', 'grpc', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
