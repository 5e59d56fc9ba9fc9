"""Against a real S3 API over HTTP: what is sent, what is looked at, and what is said when it refuses."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import settings
from moto.s3.models import S3Backend

from build_engines.engine_files import hash_files
from inflight import __version__
from inflight.deploy.errors import DeployError
from inflight.deploy.publish import s3_repository
from inflight.deploy.publish.s3_address import S3Address
from inflight.deploy.publish.s3_repository import S3Repository
from inflight.deploy.repository.manifest import MANIFEST_FILE, RepositoryManifest
from tests.fixtures.errors import raises
from tests.fixtures.manifests import manifest
from tests.fixtures.s3_server import S3TestBucket, s3_server


@pytest.fixture(scope="module")
def storage() -> Iterator[S3TestBucket]:
    with s3_server() as running:
        yield running


@pytest.fixture
def remote(storage: S3TestBucket, request: pytest.FixtureRequest) -> S3Repository:
    """An empty place of the test's own."""
    return S3Repository(S3Address.parse(storage.address(f"{abs(hash(request.node.name))}/v1")))


def written(directory: Path, **contents: str) -> RepositoryManifest:
    """A repository of a few files, with its card."""
    for name, content in contents.items():
        path = directory / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    card = RepositoryManifest(
        inflight_version=__version__,
        vendored=False,
        engine=manifest(),
        engine_path=None,
        kv_cache_tokens=None,
        options_digest="",
        files=hash_files(directory),
    )
    card.write(directory)
    return card


def silent(line: str) -> None:
    pass


def test_what_was_sent_comes_back_as_it_was(remote: S3Repository, tmp_path: Path) -> None:
    card = written(tmp_path / "here", a="1", empty="")
    assert remote.upload(tmp_path / "here", card, silent) == 3
    assert remote.read_manifest() == card
    remote.download(tmp_path / "there", card, silent)
    assert hash_files(tmp_path / "there") == hash_files(tmp_path / "here")


def test_what_is_there_is_not_sent_again_and_what_is_no_more_goes(
    storage: S3TestBucket, remote: S3Repository, tmp_path: Path
) -> None:
    card = written(tmp_path / "old", a="1", b="2", c="3")
    remote.upload(tmp_path / "old", card, silent)
    assert remote.upload(tmp_path / "old", card, silent) == 0
    assert remote.upload(tmp_path / "old", card, silent, force=True) == 4
    sent: list[str] = []
    remote.upload(tmp_path / "new", written(tmp_path / "new", a="1", b="other"), sent.append)
    assert [line.split()[1] for line in sent] == ["model/b"]
    assert storage.names(remote.address.prefix) == {"model/a", "model/b", MANIFEST_FILE}


def test_a_file_of_several_parts_is_compared_part_by_part(
    remote: S3Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_repository, "PART_BYTES", 5 << 20)  # the least that S3 takes
    card = written(tmp_path, small="1", exact="x" * (5 << 20), large="y" * ((5 << 20) + 1))
    assert remote.upload(tmp_path, card, silent) == 4
    assert remote.upload(tmp_path, card, silent) == 0


@pytest.fixture
def garbled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each of the next objects that S3 stores is garbled on the way."""
    faults: list[bool] = []
    real: Callable[..., Any] = S3Backend.put_object

    def store(self: S3Backend, bucket: str, key: str, value: bytes, *rest: Any, **more: Any) -> Any:
        fault = key.endswith("model/a") and faults and faults.pop(0)
        return real(self, bucket, key, b"garbled" if fault else value, *rest, **more)

    monkeypatch.setattr(S3Backend, "put_object", store)
    return faults


def test_what_arrives_garbled_is_sent_again(remote: S3Repository, tmp_path: Path, garbled: list[bool]) -> None:
    card = written(tmp_path / "here", a="content")
    garbled[:] = [True, True, False]
    remote.upload(tmp_path / "here", card, silent)
    remote.download(tmp_path / "there", card, silent)
    assert (tmp_path / "there" / "model" / "a").read_text() == "content"


def test_what_never_arrives_whole_is_said_and_the_half_repository_known(
    remote: S3Repository, tmp_path: Path, garbled: list[bool]
) -> None:
    card = written(tmp_path, a="content")
    garbled[:] = [True] * 3
    with raises(DeployError, "storage_unreachable", naming=("model/a", "3")):
        remote.upload(tmp_path, card, silent)
    with raises(DeployError, "engine_damaged"):
        remote.read_manifest()


def test_a_copy_that_was_cut_off_is_known_and_completed_by_the_next(remote: S3Repository, tmp_path: Path) -> None:
    remote.upload(tmp_path / "old", written(tmp_path / "old", a="1"), silent)

    def cut_off(line: str) -> None:
        if "model/b" in line:
            raise KeyboardInterrupt

    card = written(tmp_path / "new", a="2", b="3")
    with pytest.raises(KeyboardInterrupt):
        remote.upload(tmp_path / "new", card, cut_off)
    with raises(DeployError, "engine_damaged"):
        remote.read_manifest()
    assert remote.upload(tmp_path / "new", card, silent) == 2, "what had arrived is sent again"
    assert remote.read_manifest() == card


def test_what_is_missing_or_cut_short_is_said(storage: S3TestBucket, remote: S3Repository, tmp_path: Path) -> None:
    remote.upload(tmp_path, written(tmp_path, a="content"), silent)
    storage.client.put_object(Bucket=storage.bucket, Key=remote.address.key("model/a"), Body=b"cont")
    with raises(DeployError, "engine_damaged", naming="model/a"):
        remote.read_manifest()


def test_what_is_not_ours_is_left_alone(storage: S3TestBucket, remote: S3Repository, tmp_path: Path) -> None:
    with raises(DeployError, "engine_not_found", naming="inflight.json"):
        remote.read_manifest()
    storage.client.put_object(Bucket=storage.bucket, Key=remote.address.key("letters/1"), Body=b"dear")
    with raises(DeployError, "output_exists"):
        remote.upload(tmp_path, written(tmp_path, a="1"), silent)
    assert storage.names(remote.address.prefix) == {"letters/1"}


def test_what_somebody_has_put_beside_a_repository_is_not_removed_with_it(
    storage: S3TestBucket, remote: S3Repository, tmp_path: Path
) -> None:
    remote.upload(tmp_path / "old", written(tmp_path / "old", a="1"), silent)
    inner = S3Repository(S3Address.parse(f"{remote.address}/inner"))
    with raises(DeployError, "output_exists", naming=("v1", "--out")):
        inner.upload(tmp_path / "old", written(tmp_path / "old", a="1"), silent)
    storage.client.put_object(Bucket=storage.bucket, Key=remote.address.key("inner/inflight.json"), Body=b"{}")
    before = storage.names(remote.address.prefix)
    with raises(DeployError, "output_exists", naming="inner/inflight.json"):
        remote.upload(tmp_path / "new", written(tmp_path / "new", a="2"), silent)
    assert storage.names(remote.address.prefix) == before
    assert remote.read("model/a") == b"1"


def test_a_mark_alone_opens_no_door_to_what_it_does_not_list(
    storage: S3TestBucket, remote: S3Repository, tmp_path: Path
) -> None:
    for name, content in (("inflight.unfinished", b""), ("letters/1", b"dear")):
        storage.client.put_object(Bucket=storage.bucket, Key=remote.address.key(name), Body=content)
    with raises(DeployError, "output_exists", naming="letters/1"):
        remote.upload(tmp_path, written(tmp_path, a="1"), silent)
    assert storage.names(remote.address.prefix) == {"inflight.unfinished", "letters/1"}


def test_after_a_kill_what_the_old_one_had_goes_all_the_same(
    storage: S3TestBucket, remote: S3Repository, tmp_path: Path
) -> None:
    remote.upload(tmp_path / "old", written(tmp_path / "old", a="1", b="2"), silent)

    def cut_off(line: str) -> None:
        raise KeyboardInterrupt

    card = written(tmp_path / "new", a="3")
    with pytest.raises(KeyboardInterrupt):
        remote.upload(tmp_path / "new", card, cut_off)
    remote.upload(tmp_path / "new", card, silent)
    assert storage.names(remote.address.prefix) == {"model/a", MANIFEST_FILE}


def test_of_two_who_write_at_once_the_first_is_told_and_the_card_is_the_others(
    remote: S3Repository, tmp_path: Path
) -> None:
    first, other = written(tmp_path / "one", a="1"), written(tmp_path / "other", a="2")

    def between(line: str) -> None:
        remote.upload(tmp_path / "other", other, silent)

    with raises(DeployError, "output_exists"):
        remote.upload(tmp_path / "one", first, between)
    with raises(DeployError, "engine_damaged", naming=("model/a", "inflight.json")):
        remote.read_manifest()
    assert remote.upload(tmp_path / "other", other, silent) == 2
    assert remote.read_manifest() == other


def test_what_was_copied_there_by_another_tool_is_taken_if_its_content_is_right(
    storage: S3TestBucket, remote: S3Repository, tmp_path: Path
) -> None:
    card = written(tmp_path, a="content")
    for name in (*card.files, MANIFEST_FILE):
        storage.client.put_object(
            Bucket=storage.bucket, Key=remote.address.key(name), Body=(tmp_path / name).read_bytes()
        )
    assert remote.read_manifest() == card
    storage.client.put_object(Bucket=storage.bucket, Key=remote.address.key("model/a"), Body=b"CONTENT")
    with raises(DeployError, "engine_damaged", naming="model/a"):
        remote.read_manifest()


def test_a_bucket_that_is_not_there_is_named(storage: S3TestBucket) -> None:
    with raises(DeployError, "storage_not_found", naming="elsewhere"):
        S3Repository(S3Address("elsewhere", "a", storage.endpoint)).read_manifest()


def test_a_bucket_that_goes_while_it_is_written_to_is_named(storage: S3TestBucket, tmp_path: Path) -> None:
    name = f"short-lived-{storage.bucket}"
    storage.client.create_bucket(Bucket=name)

    def goes(line: str) -> None:
        for entry in storage.client.list_objects_v2(Bucket=name)["Contents"]:
            storage.client.delete_object(Bucket=name, Key=entry["Key"])
        storage.client.delete_bucket(Bucket=name)

    with raises(DeployError, "storage_not_found", naming=name):
        S3Repository(S3Address(name, "a", storage.endpoint)).upload(tmp_path, written(tmp_path, a="1"), goes)


def test_who_may_not_is_told_so(storage: S3TestBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)  # from now on the server looks who asks
    with raises(DeployError, "storage_denied", naming="InvalidAccessKeyId"):
        S3Repository(S3Address(storage.bucket, "a", storage.endpoint)).read_manifest()


def test_who_has_no_credentials_is_told_which_to_give(
    storage: S3TestBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    with raises(DeployError, "storage_denied", naming="AWS_ACCESS_KEY_ID"):
        S3Repository(S3Address(storage.bucket, "a", storage.endpoint)).read_manifest()


def test_a_storage_that_does_not_answer_is_named(storage: S3TestBucket) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        with raises(DeployError, "storage_unreachable", naming=endpoint):
            S3Repository(S3Address(storage.bucket, "a", endpoint)).read_manifest()


def test_without_boto3_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "inflight.deploy.publish.s3_errors", raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.setitem(sys.modules, "boto3.exceptions", None)
    with raises(DeployError, "package_missing", naming=("boto3", "[s3]")):
        S3Repository(S3Address("models", "a"))
