"""The Python of the README, the quickstart and the client's page runs against a real server, each block by itself."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path

import pytest

from inflight.deploy.server.server import Server
from tests.client.support.encoder_server import EncoderServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.python_blocks import python_blocks, run_block

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = ("README.md", "docs/quickstart.md", "docs/client.md")
BLOCKS = [(name, line, code) for name in DOCUMENTS for line, code in python_blocks(ROOT / name)]


def test_there_are_such_blocks() -> None:
    assert {name for name, _, _ in BLOCKS} == set(DOCUMENTS)
    for example in ("InvalidRequest", "timeout=0.001", "client.cancel"):
        assert any(example in code for _, _, code in BLOCKS), example


@pytest.mark.parametrize(("name", "line", "code"), BLOCKS, ids=[f"{name}:{line}" for name, line, _ in BLOCKS])
def test_a_block_of_python_runs(
    request: pytest.FixtureRequest,
    server: Server,
    certificates: Certificates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    line: int,
    code: str,
) -> None:
    for there, told in (
        (certificates.ca, "ca.pem"),
        (certificates.client.certificate, "me.pem"),
        (certificates.client.key, "me.key"),
    ):
        shutil.copy(there, tmp_path / told)
    monkeypatch.chdir(tmp_path)
    if "client.cancel" in code:  # an answer that is sure to last until then
        server = request.getfixturevalue("paced_server")
    encoders: EncoderServer | None = request.getfixturevalue("scripted_encoders") if ".embed(" in code else None
    if "openai" in code:
        gateway = request.getfixturevalue("model_gateway")
        code = code.replace("http://127.0.0.1:8080/v1", gateway.url).replace("my-checkpoint", server.model_name)
    with warnings.catch_warnings():
        names = run_block(code, ROOT / name, line, encoders or server)
    shown = capsys.readouterr().out
    assert "error" not in names, "an error that the example expects is caught there"
    if "print(" in code:
        assert shown.strip()
    if "InvalidRequest" in code:
        assert shown.startswith("mine to fix: ")
        assert "prompt_too_long" in shown
    if "timeout=0.001" in code:
        assert "0.001 seconds" in shown
    if "client.cancel" in code:
        assert shown.endswith("cancelled\n")


def test_links_of_the_clients_pages_lead_somewhere() -> None:
    for name in ("docs/client.md", "docs/command-line.md", "docs/errors.md"):
        page = ROOT / name
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{name}: {target}"
