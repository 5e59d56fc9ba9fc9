"""What images ask pip for: run by the interpreter whose packages it looks at, as in an image."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import tomllib

from tests.docker.dockerfile import stages
from tests.fixtures.engines import ROOT

SCRIPT = ROOT / "docker" / "image_requirements.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SERVE = PROJECT["optional-dependencies"]["serve"]


def asked(*arguments: str, python: Path = Path(sys.executable)) -> list[str]:
    command = [str(python), str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_cpu_image_gets_the_base_and_the_extra() -> None:
    wanted = asked("--extras", "serve")
    assert set(SERVE) <= set(wanted)
    assert "click>=8.5" in wanted
    assert not any(line.startswith(("torch", "transformers", "optimum", "nncf", "hatchling")) for line in wanted)


def test_the_gpu_image_gets_all_but_another_triton() -> None:
    (step,) = [
        step.rest for step in stages(ROOT / "docker" / "gpu.Dockerfile")[-1].named("RUN") if "--lock" in step.rest
    ]
    without = re.findall(r"--without (\S+)", step)
    assert without == ["nvidia-pytriton"]
    wanted = asked("--extras", "serve", *(word for name in without for word in ("--without", name)))
    assert {line for line in asked("--extras", "serve") if line not in wanted} == {
        line for line in SERVE if line.startswith(tuple(without))
    }


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_extras_of_an_image_exist_and_it_can_serve_from_s3(kind: str) -> None:
    arguments = [step.rest for stage in stages(ROOT / "docker" / f"{kind}.Dockerfile") for step in stage.named("ARG")]
    (extras,) = [argument.removeprefix("EXTRAS=") for argument in arguments if argument.startswith("EXTRAS=")]
    assert any(line.startswith("boto3") for line in asked("--extras", extras))


def test_the_lock_holds_for_what_is_not_installed(tmp_path: Path) -> None:
    """However its name is written."""
    lock = tmp_path / "requirements.lock"
    lock.write_text("# versions\nNumPy==2.3.4\nmarkdown_it_py==0.0.1\n\nabsent-package==1.2.3\n")
    assert asked("--lock", str(lock)) == ["absent-package==1.2.3"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """An environment that has some of what an image asks for: click, at a version that will do, and an old protobuf."""
    python = environment(tmp_path / "base")
    for name, version in (("click", "8.1.7"), ("protobuf", "3.0.0")):
        installed = packages(python) / f"{name}-{version}.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (installed / "INSTALLER").write_text("pip\n")
    return python


def test_an_environment_over_the_bases_uses_what_will_do_and_touches_nothing(base: Path, tmp_path: Path) -> None:
    """As gpu.Dockerfile lays one. What is to be installed is made here, since no registry can be asked."""
    ours = environment(tmp_path / "ours")
    (packages(ours) / "base.pth").write_text(f"{packages(base)}\n")
    before = sorted(packages(base).iterdir())
    wheels = tmp_path / "wheels"
    wheel(wheels, "click", "8.5.1")
    wheel(wheels, "protobuf", "6.33.6")
    pip = [sys.executable, "-m", "pip", "--python", str(ours), "--disable-pip-version-check", "install", "--no-index"]
    lock = subprocess.run(
        [base, SCRIPT, "--lock", ROOT / "requirements.lock"], check=True, capture_output=True, text=True
    )
    assert not re.search("^(click|protobuf)==", lock.stdout, re.MULTILINE)
    (tmp_path / "constraints.txt").write_text(lock.stdout)
    options = ["--find-links", str(wheels), "--constraint", str(tmp_path / "constraints.txt")]
    subprocess.run([*pip, *options, "click>=8.1", "protobuf>=6.30"], check=True, capture_output=True)
    code = "import importlib.metadata as m; print(m.version('click'), m.version('protobuf'))"
    assert subprocess.run([ours, "-c", code], capture_output=True, text=True).stdout.split() == ["8.1.7", "6.33.6"]
    assert sorted(packages(base).iterdir()) == before


def environment(place: Path) -> Path:
    """A virtual environment without pip; its Python."""
    venv.create(place, with_pip=False)
    return place / "bin" / "python"


def packages(python: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python.parent.parent / "lib" / version / "site-packages"


def wheel(into: Path, name: str, version: str) -> None:
    """Write a wheel that holds nothing but its metadata."""
    into.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(into / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--extras", "steam"], "there is no extra 'steam'; there are"),
        (["--extras", "serve", "--without", "torch"], "torch is not required, so it can't be left out"),
    ],
)
def test_a_wrong_name_ends_the_build(arguments: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert said in done.stderr
