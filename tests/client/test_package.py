"""What `import inflight_client` costs the program that imports it, and what it gets: types, and no extras needed."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

from tests.fixtures.engines import CACHE

ROOT = Path(__file__).resolve().parents[2]
# Of these the client needs some, but not before a client is made.
LATE = {"grpc", "httpcore2", "jinja2", "numpy", "prometheus_client", "tenacity", "tritonclient"}
NEVER = {"torch", "transformers", "openvino", "optimum", "tokenizers", "pydantic", "yaml", "psutil"}
OURS = {"inflight", "build_engines"}


def python(program: str, *arguments: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_importing_the_client_takes_nothing_that_can_wait() -> None:
    names = LATE | NEVER | OURS
    assert python(f"import sys, inflight_client; print(*sorted({names!r} & set(sys.modules)))") == "\n"


@pytest.mark.alone
def test_importing_takes_under_three_tenths_of_a_second() -> None:
    """Processor time, which a busy machine changes little; the best of several, after files are in the page cache."""
    program = "import time; t = time.process_time(); import inflight_client; print(time.process_time() - t)"
    assert min(float(python(program)) for _ in range(5)) < 0.3


def test_what_the_package_offers_is_there() -> None:
    import inflight_client

    for name in inflight_client.__all__:
        assert getattr(inflight_client, name)


BASE_ONLY = """
import importlib.abc, json, sys

class Refusal(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in json.loads(sys.argv[1]):
            raise ModuleNotFoundError(f"no module named {name}", name=name)

sys.meta_path.insert(0, Refusal())
import importlib, pkgutil, inflight_client
for module in pkgutil.walk_packages(inflight_client.__path__, "inflight_client."):
    importlib.import_module(module.name)
for command in ("chat.command", "generate", "status.command"):
    importlib.import_module(f"inflight.commands.{command}")
for scheme in ("grpc", "http"):
    inflight_client.Client(f"{scheme}://127.0.0.1:9").close()
print("imported")
"""


def test_the_base_install_is_enough() -> None:
    """Every module of the client, and the commands on top of it, with nothing there that only the extras bring."""
    missing = sorted((_imports_of("build") | _imports_of("serve")) - _imports_of(""))
    assert NEVER - {"optimum"} <= set(missing)
    assert python(BASE_ONLY, json.dumps(missing)) == "imported\n"


def _imports_of(extra: str) -> set[str]:
    """Top-level modules of what is installed with `pip install inflight[extra]`, or with none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"].get(extra, ())]
    return _closure([Requirement(line) for line in lines])


def _closure(wanted: list[Requirement]) -> set[str]:
    """Top-level modules of these distributions and all that they need."""
    seen: set[tuple[str, frozenset[str]]] = set()
    modules: set[str] = set()
    while wanted:
        one = wanted.pop()
        key = (one.name.lower(), frozenset(one.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            found = distribution(one.name)
        except PackageNotFoundError:
            continue
        modules |= {file.parts[0].removesuffix(".py") for file in found.files or () if file.suffix in (".py", ".so")}
        for line in found.requires or ():
            further = Requirement(line)
            extras = ["", *one.extras]
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                wanted.append(further)
    return {module for module in modules if module.isidentifier()}


TYPED = """
from collections.abc import Iterator
from contextlib import aclosing, closing

import inflight_client
from inflight_client import AsyncClient, Client, Delta, Generation, InflightError, Metrics, Outcome, Sampling, Usage
from inflight_client.call import CallOptions

with Client("127.0.0.1:8001") as client:
    whole: Generation = client.generate("tea", max_tokens=3, sampling=Sampling(top_k=5), timeout=None)
    usage: Usage | None = whole.usage
    for delta in client.stream([{"role": "user", "content": "tea"}], first_token_timeout=1.5):
        one: Delta = delta
    many: Iterator[Generation] = client.generate_many(["a", "b"], concurrency=2)
    with closing(client.generate_many(["a"], return_errors=True)) as outcomes:
        for outcome in outcomes:
            both: Outcome = outcome
    perhaps = bool(whole.text)
    for either in client.generate_many(["a"], as_completed=perhaps, return_errors=perhaps):
        each: Outcome | tuple[int, Outcome] = either
    page: Metrics = client.metrics()
    options: CallOptions = {"tenant": "me"}
    client.generate("tea", **options)
    client.generate("tea", max_token=3)
    client.generate("tea", max_tokens="3")
    client.generate(7)
    whole.txt
    inflight_client.Metric


async def later() -> str:
    async with AsyncClient() as client:
        async for delta in client.stream("tea"):
            delta.text.upper()
        async with aclosing(client.generate_many(["a"], as_completed=True)) as pairs:
            async for place, answer in pairs:
                answer.text.upper()
        return await client.generate("tea")
"""

WRONG = {
    "max_token=3": 'Unexpected keyword argument "max_token" for "generate" of "Client"',
    'max_tokens="3"': 'Argument "max_tokens" to "generate" of "Client" has incompatible type "str"',
    "generate(7)": 'Argument 1 to "generate" of "Client" has incompatible type "int"',
    "whole.txt": '"Generation" has no attribute "txt"',
    "inflight_client.Metric": 'Module has no attribute "Metric"',
    "return await": 'Incompatible return value type (got "Generation", expected "str")',
}


def test_mistakes_in_options_and_results_are_found_by_a_type_checker(tmp_path: Path) -> None:
    from mypy import api

    path = tmp_path / "application.py"
    path.write_text(TYPED)
    told, failure, _ = api.run([str(path), "--strict", "--no-error-summary", "--cache-dir", str(CACHE / "mypy")])
    assert failure == ""
    lines = TYPED.splitlines()
    wrong = {next(at for at, line in enumerate(lines, 1) if part in line): words for part, words in WRONG.items()}
    errors = {int(line.split(":")[1]): line for line in told.splitlines() if ": error:" in line}
    assert errors.keys() == wrong.keys(), told
    for number, words in wrong.items():
        assert words in errors[number]


@pytest.mark.slow
def test_the_wheel_says_that_it_is_typed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "inflight_client/py.typed" in names
    assert {
        path.relative_to(ROOT / "client").as_posix() for path in (ROOT / "client/inflight_client").rglob("*.py")
    } <= set(names)
