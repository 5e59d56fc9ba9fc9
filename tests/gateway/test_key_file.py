"""The file of API keys: what is refused, who may read it, and changes by several processes at once."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from inflight_client import InflightError

from inflight.gateway.key_editing import add_key, revoke_key
from inflight.gateway.key_file import (
    MAX_FILE_BYTES,
    PREFIX,
    ApiKey,
    KeyEntry,
    Quotas,
    default_key_file,
    key_digest,
    parse_time,
    read_key_file,
)
from tests.fixtures.errors import raises
from tests.fixtures.other_user import as_other_user
from tests.gateway.key_files import ENTRY, keys_json, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def entries(path: Path) -> tuple[KeyEntry, ...]:
    file = read_key_file(path)
    assert file is not None
    return file.entries


def names(path: Path) -> dict[str, str]:
    """The keys of a file with their states."""
    return {entry.key.name: entry.state for entry in entries(path)}


CALLS: list[Callable[[Path], Any]] = [
    read_key_file,
    lambda path: add_key(path, ApiKey.new("a")),
    lambda path: revoke_key(path, "shop"),
]


def test_a_key_is_read_as_it_was_added(path: Path) -> None:
    expires = datetime(2100, 1, 1, tzinfo=timezone.utc)
    options: dict[str, Any] = {"trusted": True, "weight": 1000, "max_priority": 1, "degrade": False, "cache": True}
    quotas = Quotas(tokens_per_day=9)
    key = ApiKey.new("shop", tenant="store", models=["a", "b", "a"], expires=expires, quotas=quotas, **options)
    token = add_key(path, key)
    (entry,) = entries(path)
    assert entry.key.options == options
    assert (entry.key, entry.sha256) == (key, key_digest(token).hex())
    assert (key.tenant, key.models, key.expires) == ("store", ("a", "b"), expires)


def test_keys_are_random_and_the_file_has_none_of_them(path: Path) -> None:
    tokens = {add_key(path, ApiKey.new(f"name-{number}")) for number in range(5)}
    assert len(tokens) == 5
    for token in tokens:
        assert token.startswith(PREFIX)
        assert len(token) - len(PREFIX) >= 43  # 256 bits in base64
        assert token.removeprefix(PREFIX) not in path.read_text()


def test_no_repr_has_a_key_or_its_hash(path: Path) -> None:
    token = add_key(path, ApiKey.new("shop"))
    (entry,) = entries(path)
    for text in (repr(read_key_file(path)), str(entry), repr(entry.key)):
        assert "shop" in text
        assert token not in text
        assert key_digest(token).hex() not in text
        assert repr(key_digest(token)) not in text


@pytest.mark.parametrize("name", ["shop", "a b", "x" * 128, "tenant:1/2"])
def test_the_tenant_is_the_name(name: str) -> None:
    assert ApiKey.new(name).tenant == name


@pytest.mark.parametrize("name", ["Köln", "東京", "отдел", "🦊"])
def test_a_name_may_be_unicode_with_a_tenant(path: Path, name: str) -> None:
    with raises(InflightError, "invalid_parameter", naming="--tenant"):
        ApiKey.new(name)
    add_key(path, ApiKey.new(name, tenant="t"))
    assert names(path) == {name: "valid"}


def test_a_name_is_the_same_composed_and_decomposed(path: Path) -> None:
    add_key(path, ApiKey.new("Ko\u0308ln", tenant="t"))
    with raises(InflightError, "invalid_parameter", naming="K\u00f6ln"):
        add_key(path, ApiKey.new("K\u00f6ln", tenant="t"))
    revoke_key(path, "Ko\u0308ln")
    assert names(path) == {"K\u00f6ln": "revoked"}


BAD_LABELS = ["", " ", " shop", "shop\n", "a\tb", "a\x00b", "\x1b[31m", "x" * 129, "\u202eevil", "\ud800"]


@pytest.mark.parametrize("label", BAD_LABELS)
def test_labels_that_are_refused(label: str) -> None:
    with raises(InflightError, "invalid_parameter", naming="the name"):
        ApiKey.new(label)
    with raises(InflightError, "invalid_parameter", naming="the tenant"):
        ApiKey.new("a", tenant=label)
    with raises(InflightError, "invalid_parameter", naming="a model"):
        ApiKey.new("a", models=[label])


def test_other_values_that_are_refused() -> None:
    with raises(InflightError, "invalid_parameter", naming="the tenant"):
        ApiKey.new("a", tenant="Köln")
    with raises(InflightError, "invalid_parameter", naming="key-0123456789ab"):
        ApiKey.new("key-0123456789ab")
    with raises(InflightError, "invalid_parameter", naming="in the future"):
        ApiKey.new("a", expires=datetime.now(timezone.utc) - timedelta(seconds=1))


def test_a_key_given_for_a_name_is_refused_and_not_repeated(path: Path) -> None:
    token = add_key(path, ApiKey.new("shop"))
    calls: list[Callable[[str], Any]] = [
        ApiKey.new,
        lambda token: ApiKey.new("a", tenant=token),
        lambda token: ApiKey.new("a", models=[token]),
        lambda token: revoke_key(path, token),
    ]
    for call in calls:
        with raises(InflightError, "invalid_parameter") as caught:
            call(token)
        assert token not in str(caught.value)
    assert names(path) == {"shop": "valid"}


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2027-01-01", datetime(2027, 1, 1, tzinfo=timezone.utc)),
        ("2027-01-01T02:00+02:00", datetime(2027, 1, 1, tzinfo=timezone.utc)),
        ("2027-01-01T00:00:00Z", datetime(2027, 1, 1, tzinfo=timezone.utc)),
    ],
)
def test_times(text: str, time: datetime) -> None:
    assert parse_time(text) == time


@pytest.mark.parametrize("text", ["", "soon", "2027-13-01", "0001-01-01T00:00+10:00"])
def test_times_that_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_time(text)


def test_a_name_is_free_again_once_its_key_is_revoked_or_expired(path: Path) -> None:
    write(path, keys_json({"expires": "2026-01-02T00:00:00Z"}))
    assert names(path) == {"shop": "expired"}
    key = ApiKey.new("shop")
    add_key(path, key)
    with raises(InflightError, "invalid_parameter", naming=("shop", key.id)):
        add_key(path, ApiKey.new("shop"))
    assert [each.id for each in revoke_key(path, key.id)] == [key.id]
    add_key(path, ApiKey.new("shop"))


def test_revoking_by_name_revokes_all_of_that_name_and_no_other(path: Path) -> None:
    other = {"id": "key-000000000001", "sha256": "cd" * 32}
    write(path, keys_json({}, other, {"id": "key-000000000002", "sha256": "ef" * 32, "name": "ci"}))
    assert [each.id for each in revoke_key(path, "shop")] == [ENTRY["id"], other["id"]]
    assert [entry.state for entry in entries(path)] == ["revoked", "revoked", "valid"]
    before = path.read_bytes()
    assert len(revoke_key(path, "shop")) == 2
    assert path.read_bytes() == before


@pytest.mark.parametrize(("wanted", "near"), [("shpo", "shop"), ("key-0123456789ac", "key-0123456789ab")])
def test_an_unknown_key_is_answered_with_the_nearest(path: Path, wanted: str, near: str) -> None:
    write(path, keys_json({}))
    with raises(InflightError, "invalid_parameter", naming=(wanted, near)):
        revoke_key(path, wanted)


def test_revoking_without_a_file_creates_nothing(tmp_path: Path) -> None:
    with raises(InflightError, "invalid_parameter", naming="--key-file"):
        revoke_key(tmp_path / "none" / "keys.json", "shop")
    assert not (tmp_path / "none").exists()


def test_processes_add_at_once_and_no_key_is_lost(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from inflight.gateway.key_editing import add_key\n"
        "from inflight.gateway.key_file import ApiKey\n"
        "for number in range(10): print(add_key(Path(sys.argv[1]), ApiKey.new(f'{sys.argv[2]}-{number}')))\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-P", "-c", program, path, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    tokens = [line for process in processes for line in process.communicate()[0].split()]
    assert [process.returncode for process in processes] == [0] * 4
    assert {entry.sha256 for entry in entries(path)} == {key_digest(token).hex() for token in tokens}
    assert len(tokens) == 40


def test_processes_that_add_the_same_name_make_one_key(path: Path) -> None:
    program = "import sys; from inflight import cli; cli.main(['key', 'add', 'shop', '--key-file', sys.argv[1]])"
    processes = [
        subprocess.Popen([sys.executable, "-P", "-c", program, path], stdout=-1, stderr=-1, text=True) for _ in range(3)
    ]
    outputs = [process.communicate() for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 1, 1]
    assert sum(bool(out) for out, _ in outputs) == 1
    assert names(path) == {"shop": "valid"}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_owner_may_read_it(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "new" / "deep" / "keys.json"
    before = os.umask(umask)
    try:
        add_key(path, ApiKey.new("shop"))
        revoke_key(path, "shop")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666, 0o611])
def test_a_file_that_others_may_use_is_refused(path: Path, mode: int) -> None:
    write(path, keys_json({}), mode)
    for call in CALLS:
        with raises(InflightError, "storage_denied", naming=f"chmod 600 {path}"):
            call(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_secret_of_kubernetes_is_read(path: Path) -> None:
    """It is root's, and readable by a group of the pod."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of root's")
    with tempfile.TemporaryDirectory() as name:  # other users may reach it
        secret = Path(name) / "keys.json"
        Path(name).chmod(0o755)
        write(secret, keys_json({}), 0o440)
        os.chown(secret, 0, os.getegid())
        with as_other_user():
            assert read_key_file(secret) is not None
        secret.chmod(0o444)
        with as_other_user(), raises(InflightError, "storage_denied"):
            read_key_file(secret)


def test_a_file_of_another_user_is_refused(path: Path) -> None:
    write(path, keys_json({}))
    with as_other_user(), raises(InflightError, "storage_denied", naming=str(path)):
        read_key_file(path)
    os.chown(path, 65534, 65534)
    with raises(InflightError, "storage_denied", naming=f"chown {os.geteuid()} {path}"):
        read_key_file(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        b"\xff\xfe\x00",
        keys_json({})[:-1],
        keys_json({})[:40],
        "[" * 100_000,
        "[]",
        "null",
        "{}",
        '{"version": 1}',
        '{"version": 1, "keys": {}}',
        '{"version": 1, "keys": [], "more": 1}',
        '{"version": 1, "keys": [1]}',
        '{"version": 1, "keys": [{}]}',
        '{"version": 1, "keys": [], "keys": []}',
        keys_json(version=2),
        keys_json(version=True),
        keys_json(version="1"),
        keys_json({}).replace('"revoked": null', '"revoked": "2026-01-01T00:00:00Z", "revoked": null'),
        keys_json({"networks": ["10.0.0.0/8"]}),
        keys_json({}, {"id": "another"}),  # the same hash
        keys_json({}, {"sha256": "cd" * 32}),  # the same id
        pytest.param(" " * (MAX_FILE_BYTES + 1), id="huge"),
    ],
)
def test_a_damaged_file_is_refused_and_not_changed(path: Path, content: str | bytes) -> None:
    before = write(path, content).read_bytes()
    for call in CALLS:
        with raises(InflightError, "keys_invalid", naming=str(path)) as caught:
            call(path)
        assert str(ENTRY["sha256"]) not in str(caught.value)
        assert len(str(caught.value)) < 400
    assert path.read_bytes() == before


WRONG_VALUES: dict[str, list[Any]] = {
    **{field: [None, 1, "", [], {}, "a\nb", "x" * 129] for field in ("id", "name", "tenant")},
    "sha256": [None, 1, "", "ab", "AB" * 32, "zz" * 32, "ab" * 33, [1]],
    "models": [None, "llama", [1], [None], [""], {"llama": 1}, [["a"]]],
    **{field: [1, False, "", "soon", [], {}, 1e300] for field in ("expires", "revoked")},
    "created": [None, 1, "soon"],
    "weight": [None, 0, 1001, True, "1"],
    "max_priority": [-1, 1001, 0.5],
    "degrade": [None, 1],
    "quotas": [None, [], {"tokens_per_day": 0}, {"tokens_per_day": True}, {"tokens_per_year": 5}],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field, values in WRONG_VALUES.items() for value in values),
        ("tenant", "Köln"),
        ("name", "sk-inflight-abc"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_and_not_quoted(path: Path, field: str, value: Any) -> None:
    write(path, keys_json({"id": "first", "sha256": "cd" * 32}, {field: value}))
    with raises(InflightError, "keys_invalid", naming=("keys[1]", field)) as caught:
        read_key_file(path)
    assert "sk-inflight-abc" not in str(caught.value)


def test_a_file_of_the_size_limit_takes_no_more_keys(path: Path) -> None:
    write(path, keys_json({}).ljust(MAX_FILE_BYTES))
    assert names(path) == {"shop": "valid"}
    models = [f"{number:0128}" for number in range(MAX_FILE_BYTES // 128)]
    with raises(InflightError, "output_unwritable", naming=str(path)):
        add_key(path, ApiKey.new("a", models=models))
    assert names(path) == {"shop": "valid"}


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_what_is_no_file_is_refused(path: Path, kind: str) -> None:
    path.mkdir(0o700) if kind == "directory" else os.mkfifo(path, 0o600)
    for call in CALLS:
        with raises(InflightError, "keys_invalid", naming=str(path)):
            call(path)


def test_a_symbolic_link_remains_one(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "real.json"
    path.symlink_to(real)
    with raises(InflightError, "keys_invalid", naming=str(path)):
        read_key_file(path)
    add_key(path, ApiKey.new("shop"))
    revoke_key(path, "shop")
    assert path.is_symlink()
    assert names(real) == names(path) == {"shop": "revoked"}


def test_a_circle_of_links_is_refused(path: Path) -> None:
    path.symlink_to(path)
    with raises(InflightError, "storage_denied", naming=str(path)):
        read_key_file(path)
    with pytest.raises(InflightError):
        add_key(path, ApiKey.new("a"))


def test_a_directory_that_may_not_be_written() -> None:
    with tempfile.TemporaryDirectory() as name:  # another user does not reach tmp_path
        folder = Path(name)
        folder.chmod(0o755)
        with as_other_user():
            for path in (folder / "keys.json", folder / "new" / "keys.json"):
                with raises(InflightError, "output_unwritable", naming=str(path)):
                    add_key(path, ApiKey.new("a"))
        assert not list(folder.iterdir())


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with raises(InflightError, "output_unwritable", naming="keys.json"):
        add_key(tmp_path / "file" / "keys.json", ApiKey.new("a"))


@pytest.mark.parametrize(("variable", "folder"), [("/x", "/x"), ("", "/home/me/.config"), ("x", "/home/me/.config")])
def test_the_default_path(monkeypatch: pytest.MonkeyPatch, variable: str, folder: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", variable)
    monkeypatch.setenv("HOME", "/home/me")
    assert default_key_file() == Path(folder) / "inflight" / "keys.json"
