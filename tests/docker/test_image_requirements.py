"""What images ask pip for: run by the interpreter whose packages it looks at, as in an image."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from tests.docker.dockerfile import stages
from tests.fixtures.engines import ROOT

SCRIPT = ROOT / "docker" / "image_requirements.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SERVE = PROJECT["optional-dependencies"]["serve"]


def asked(*arguments: str) -> list[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_cpu_image_gets_the_base_and_the_extra() -> None:
    wanted = asked("--extras", "serve")
    assert set(SERVE) <= set(wanted)
    assert "click>=8.1" in wanted
    assert not any(line.startswith(("torch", "transformers", "optimum", "nncf", "hatchling")) for line in wanted)


def test_the_gpu_image_gets_all_but_another_triton_and_the_embedded_engine() -> None:
    (step,) = [step.rest for step in stages(ROOT / "docker" / "gpu.Dockerfile")[-1].of("RUN") if "--lock" in step.rest]
    without = re.findall(r"--without (\S+)", step)
    assert without == ["nvidia-pytriton", "openvino-genai"]
    wanted = asked("--extras", "serve", *(word for name in without for word in ("--without", name)))
    assert {line for line in asked("--extras", "serve") if line not in wanted} == {
        line for line in SERVE if line.startswith(tuple(without))
    }


def test_constraints_keep_what_is_installed_and_pin_the_rest(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("# versions\nNumPy==2.3.4\nmarkdown_it_py==0.0.1\nabsent-package==1.2.3\n")
    lines = asked("--lock", str(lock))
    installed = importlib.metadata.version("numpy")
    assert f"numpy=={installed}" in lines
    assert f"markdown-it-py=={importlib.metadata.version('markdown-it-py')}" in lines
    assert "absent-package==1.2.3" in lines
    assert not {"NumPy==2.3.4", "markdown_it_py==0.0.1"} & set(lines)
    names = [line.partition("==")[0] for line in lines]
    assert len(names) == len(set(names))


def test_pip_takes_the_constraints(tmp_path: Path) -> None:
    """And with them it changes nothing here, where all is installed that an image asks for."""
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(asked("--lock", "requirements.lock")))
    wanted = tmp_path / "wanted.txt"
    wanted.write_text("\n".join(asked("--extras", "serve")))
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--requirement", str(wanted), "--constraint", str(constraints)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Would install" not in done.stdout


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
