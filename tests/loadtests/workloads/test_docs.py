"""docs/workloads.md: its examples can be made, and no field is missing."""

import re
import shlex
from itertools import islice
from pathlib import Path

import pytest

from inflight.commands.load.options import plan_from_command, worker_spec_from_options
from inflight.commands.load.run import command
from loadtests.arrivals.profile import Profile
from loadtests.arrivals.schedule import due_times
from loadtests.plan import Arrivals
from loadtests.workloads.factory import make_workload
from loadtests.workloads.files import load_files
from loadtests.workloads.spec import WorkloadSpec
from tests.loadtests.workloads.tokenizers import tokenizer
from tests.loadtests.workloads.workload_requests import asked

PAGE = (Path(__file__).parents[3] / "docs/workloads.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w.-]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [line for block in BLOCKS for line in block.splitlines()]
PROFILES = re.findall(r"^\| `([^`]+)` \| .*\|$", PAGE.split("## Levels over time")[1].split("`--arrivals`")[0], re.M)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that the page shows, and an engine's tokenizer."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "my-engine").mkdir()
    (tmp_path / "my-engine" / "tokenizer.json").write_text(tokenizer("bytes").to_str(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_asks_for_what_can_be_made(example: str) -> None:
    words = shlex.split(example)
    assert words[:3] == ["inflight", "load", "run"]
    options = dict(command.make_context("run", words[3:]).params)
    worker_spec_from_options(options)
    plan = plan_from_command(options)
    workload = make_workload(plan.workload, load_files(plan.workload), plan.seed)
    for number in range(5):
        session = workload.session(number)
        assert session is not None
        assert asked(session) if plan.task == "generate" else next(session.requests())
    if plan.arrivals.kind == "rate":
        assert len(list(islice(due_times(plan.arrivals, plan.seed, plan.end), 5))) == 5


def test_the_page_has_examples_files_and_profiles() -> None:
    assert EXAMPLES
    assert set(FILES) == {"my-times.csv", "my-prompts.jsonl", "my-pairs.jsonl"}
    assert PROFILES


@pytest.mark.parametrize("text", PROFILES)
def test_the_profiles_of_the_page_can_be_read(text: str) -> None:
    assert max(stage.last for stage in Profile.parse(text).stages) > 0


@pytest.mark.parametrize(
    "name", [*WorkloadSpec.model_fields, *sorted(set(Arrivals.model_fields) - {"kind", "profile", "process"})]
)
def test_every_field_stands_on_the_page(name: str) -> None:
    assert f"--{name.replace('_', '-')}`" in PAGE
