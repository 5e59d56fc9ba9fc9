from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

import pytest

from inflight.deploy.errors import DeployError
from inflight.deploy.server import triton
from inflight.deploy.server.ports import ListenHosts, ListenPorts
from tests.fixtures.errors import raises


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_server_on_path_goes_before_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = program(tmp_path / "opt" / "bin" / "tritonserver")
    program(tmp_path / "opt" / "backends" / "python" / triton.STUB_NAME)
    monkeypatch.setenv("PATH", f"{own.parent}:/usr/bin")
    installation = triton.find_triton()
    assert (installation.program, installation.root, installation.wheel) == (own, tmp_path / "opt", False)
    assert triton.mirror_wheel(installation, tmp_path / "mirror") == installation
    assert not (tmp_path / "mirror").exists()


def test_the_containers_server_is_found_where_it_always_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = program(tmp_path / "bin" / "tritonserver")
    program(tmp_path / "backends" / "python" / triton.STUB_NAME)
    monkeypatch.setattr(triton, "CONTAINER_ROOT", tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert triton.find_triton().program == own


def test_a_container_without_the_python_backend_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = program(tmp_path / "opt" / "bin" / "tritonserver")
    monkeypatch.setenv("PATH", f"{own.parent}:/usr/bin")
    with raises(DeployError, "server_not_found", naming="python backend"):
        triton.find_triton()


def test_a_machine_without_any_server_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with raises(DeployError, "server_not_found", naming=("make setup", "'.[serve]'")):
        triton.find_triton()


def test_a_python_without_a_shared_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: "libpython3.11.a" if name == "INSTSONAME" else "/usr")
    with raises(DeployError, "server_not_found", naming="--enable-shared"):
        triton.shared_python()


def test_a_stub_for_another_python_is_said(tmp_path: Path) -> None:
    root = tmp_path / "opt"
    stub = root / "backends" / "python" / triton.STUB_NAME
    stub.parent.mkdir(parents=True)
    stub.write_bytes(b"\x7fELF libpython3.7.so.1.0")
    with raises(DeployError, "server_not_found", naming="3.7"):
        triton.stub_path(triton.TritonInstallation(root / "bin" / "tritonserver", root, wheel=False))


def test_the_mirror_leaves_the_wheel_as_it_is(tmp_path: Path) -> None:
    wheel = triton.find_triton()
    before = sorted(path for path in wheel.root.rglob("*") if "__pycache__" not in str(path))
    mirrored = triton.mirror_wheel(wheel, tmp_path / "mirror")
    assert mirrored.program.resolve() == wheel.program
    assert (mirrored.root / "backends" / "python" / triton.STUB_NAME).is_file()
    assert (mirrored.root / "backends" / "python" / "libtriton_python.so").resolve().is_relative_to(wheel.root)
    assert sorted(path for path in wheel.root.rglob("*") if "__pycache__" not in str(path)) == before


def test_stubs_run_this_environments_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/somewhere/else")
    variables = triton.server_environment(triton.find_triton())
    assert variables["PATH"] == f"{Path(sys.executable).parent}:/somewhere/else"
    assert variables["INFLIGHT_SUPERVISED"] == "1"
    assert variables["INFLIGHT_SERVER_ID"] != triton.server_environment(triton.find_triton())["INFLIGHT_SERVER_ID"]


@pytest.mark.parametrize(
    ("hosts", "addresses"),
    [
        (ListenHosts("127.0.0.1", "127.0.0.2", "127.0.0.3"), ("127.0.0.1", "127.0.0.2", "127.0.0.3")),
        (ListenHosts("::1", "::2", "::3"), ("ipv6:::1", "[::2]", "ipv6:::3")),
    ],
)
def test_the_servers_answer_only_where_they_are_told_to(
    tmp_path: Path, hosts: ListenHosts, addresses: tuple[str, str, str]
) -> None:
    arguments = triton.server_command(
        triton.find_triton(),
        tmp_path,
        hosts=hosts,
        ports=ListenPorts(1, 2, 3),
        shm_prefix="inflight-0123456789ab-",
        admin_key="secret",
        exit_seconds=5,
    )
    for service, host in zip(("http", "grpc", "metrics"), addresses, strict=True):
        assert f"--{service}-address={host}" in arguments
    restricted = "model-repository,logging,trace,shared-memory:inflight-admin-key=secret"
    assert f"--http-restricted-api={restricted}" in arguments
    assert f"--grpc-restricted-protocol={restricted}" in arguments
