"""pyproject.toml declares what the code imports, and nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
distributions_by_module = cache(packages_distributions)
OURS = {"inflight", "inflight_client", "build_engines", "loadtests", "tests", "benchmarks"}
# In Triton's stubs or in NVIDIA's containers alone; types alone; and what the demo shows where it is installed.
ABSENT = {"openai", "triton_python_backend_utils", "c_python_backend_utils", "mypy_boto3_s3"}
ABSENT |= {"tensorrt_llm", "tensorrt", "cuda"}
# Never imported: Triton itself, and drivers and parsers that libraries look for.
INDIRECT = {"httptools", "nvidia-pytriton", "onnx", "psycopg", "s3fs", "sentencepiece", "tiktoken"}
# Loaded by Python's start in a virtual environment.
STARTUP = {"_distutils_hack"}
# Loaded by asyncio libraries where something else has installed it.
OPTIONAL = {"sniffio"}
# Parts of the code, and the extras with which they run.
PARTS = {
    "client/inflight_client": ("audio",),
    "inflight/commands": ("build", "serve", "load", "batch"),
    "build_engines": ("build", "speech"),
    "inflight/runtime": ("serve", "speech"),
    "inflight/deploy": ("serve", "s3", "build"),
    "inflight/openai_api": ("gateway",),
    "inflight/gateway": ("gateway", "batch", "otlp"),
    "inflight/batch": ("batch", "postgresql", "queues", "ray"),
    "inflight/evaluate": ("batch", "evaluate"),
    "loadtests": ("load",),
}


def imports(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names | OURS | ABSENT:
                    yield top, str(path.relative_to(ROOT))


def declared(*extras: str) -> set[str]:
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return {re.split(r"[\[<>=!;~ ]", line)[0].lower().replace("_", "-") for line in lines}


def distributions(module: str) -> set[str]:
    return {name.lower().replace("_", "-") for name in distributions_by_module().get(module, [module])}


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    found = {part: set(imports(ROOT / part)) for part in PARTS}
    for part, extras_of_part in PARTS.items():
        known = declared(*extras_of_part)
        missing = {(module, path) for module, path in found[part] if not distributions(module) & known}
        assert not missing, part
    extras = {extra for extras in PARTS.values() for extra in extras}
    modules = {module for imported in found.values() for module, _ in imported}
    used = set().union(*(distributions(module) for module in modules))
    assert declared(*extras) - used <= INDIRECT


def installed_with(extra: str | None) -> set[str]:
    """Return the distributions that `pip install inflight[EXTRA]` installs."""
    found: set[str] = set()
    lines = [*PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] if extra else ())]
    pending = [Requirement(line) for line in lines]
    while pending:
        wanted = pending.pop()
        name = canonicalize_name(wanted.name)
        found.add(name)
        try:
            lines = requires(wanted.name) or []
        except PackageNotFoundError:  # what `make lock` leaves out
            continue
        for line in lines:
            inner = Requirement(line)
            if any(inner.marker is None or inner.marker.evaluate({"extra": e}) for e in ("", *wanted.extras)):
                pending.append(inner) if canonicalize_name(inner.name) not in found or inner.extras else None
    return found


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("inflight.commands.generate", None),
        ("inflight.commands.status.command", None),
        ("inflight.commands.key.add", None),
        ("inflight.gateway.key_ring", None),
        ("inflight.commands.build.command", "build"),
        ("inflight.commands.assemble", "serve"),
        ("inflight.deploy.server.server", "serve"),
        ("inflight.commands.serve", "serve"),
        ("inflight.batch.runner", "batch"),
        ("inflight.gateway.server", "gateway"),
        ("inflight.commands.load.run", "load"),
    ],
)
def test_a_part_starts_with_its_extra_alone(module: str, extra: str | None) -> None:
    known = installed_with(extra)
    code = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, module], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()} & distributions_by_module().keys() - OURS
    assert {
        name for name in loaded if not {canonicalize_name(one) for one in distributions_by_module()[name]} & known
    } <= STARTUP | OPTIONAL
