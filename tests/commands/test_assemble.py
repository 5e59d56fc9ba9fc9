from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inflight import __version__
from inflight.cli import cli
from inflight.deploy.errors import DeployError
from inflight.deploy.repository import manifest, model_configs
from tests.fixtures.engines import TinyEngine
from tests.fixtures.s3_server import s3_server
from tests.fixtures.tensorrtllm import GpuEngine


@pytest.fixture(scope="module")
def engine(tiny_engine: TinyEngine) -> Path:
    return tiny_engine("llama")


def assemble(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["assemble", *map(str, arguments)], auto_envvar_prefix="INFLIGHT")


def test_it_says_what_it_wrote_and_that_a_second_time_nothing_is_to_do(engine: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = assemble(engine, "--out", out, "--max-queue-size", 7)
    assert first.exit_code == 0, first.output
    assert re.match(rf"Assembled {re.escape(str(out))} in \d+ s: tiny-llama, ", first.stdout)
    assert f"it requires the package inflight {__version__} in that Triton; --vendor includes it." in first.stderr
    assert model_configs.load(out)["tensorrt_llm"].parameters["max_queue_size"].string_value == "7"
    again = assemble(engine, "--out", out, "--max-queue-size", 7)
    assert again.stdout == f"{out} is up to date: same engine, options and version (--force writes it again).\n"
    assert assemble(engine, "--out", out, "--max-queue-size", 7, "--force").stdout.startswith("Assembled")


def test_a_script_reads_one_line_of_json(engine: Path, tmp_path: Path) -> None:
    done = assemble(engine, "--out", tmp_path / "out", "--vendor", "--json")
    line = json.loads(done.stdout)
    assert (line["repository"], line["updated"], line["model"]) == (str(tmp_path / "out"), True, "tiny-llama")
    assert (line["inflight_version"], line["vendored"]) == (__version__, True)
    assert "--vendor" not in done.stderr
    assert manifest.verify_repository(tmp_path / "out").vendored


def test_to_s3_with_an_endpoint_of_ones_own(engine: Path) -> None:
    with s3_server() as storage:
        done = assemble(engine, "--out", f"s3://{storage.bucket}/a/v1", "--endpoint-url", storage.endpoint, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["repository"] == storage.address("a/v1")
        assert manifest.MANIFEST_FILE in storage.names("a/v1")


def test_for_gpus_it_says_where_the_engine_runs_and_where_it_is_looked_for(
    gpu_engine: GpuEngine, tmp_path: Path
) -> None:
    engine, out = gpu_engine("llama", tensor_parallel=2), tmp_path / "out"
    done = assemble(engine, "--out", out, "--set", "kv_cache_free_gpu_mem_fraction=0.7")
    assert done.exit_code == 0, done.output
    assert "runs in the container nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3" in done.stderr
    assert "on GPUs of compute capability 9.0, 2 of them." in done.stderr
    assert f"tritonserver finds the engine at {out}/tensorrt_llm/1/engine only" in done.stderr
    parameters = model_configs.load(out)["tensorrt_llm"].parameters
    assert parameters["kv_cache_free_gpu_mem_fraction"].string_value == "0.7"
    moved = assemble(engine, "--out", out, "--repository-path", "/models/llama")
    assert "finds the engine at /models/llama/tensorrt_llm/1/engine only" in moved.stderr
    parameters = model_configs.load(out)["tensorrt_llm"].parameters
    assert parameters["gpt_model_path"].string_value == "/models/llama/tensorrt_llm/1/engine"
    elsewhere = assemble(engine, "--out", out, "--engine-path", "/engines/llama")
    assert "finds the engine at" not in elsewhere.stderr
    parameters = model_configs.load(out)["tensorrt_llm"].parameters
    assert parameters["gpt_model_path"].string_value == parameters["tokenizer_dir"].string_value == "/engines/llama"
    assert not list(out.rglob("*.engine"))


def test_what_can_not_be_is_one_sentence(engine: Path, tmp_path: Path) -> None:
    done = assemble(engine, "--out", tmp_path / "out", "--set", "invented=1")
    assert isinstance(done.exception, DeployError)
    assert "invented" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine-path", ""], "--engine-path is empty; give the absolute path"),
        (["--engine-path", "relative"], "--engine-path is 'relative'; give the absolute path"),
        (["--repository-path", "/models"], "--repository-path is for engines of target tensorrt-llm"),
        (["--endpoint-url", "http://127.0.0.1:9000"], "is for a place on S3, and"),
        (["--lora", "/tmp/a\udcff"], "holds bytes that are not UTF-8"),
    ],
)
def test_a_flag_that_could_not_be_meant_writes_nothing(
    engine: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = assemble(engine, "--out", tmp_path / "out", *arguments)
    assert isinstance(done.exception, DeployError), done.output
    assert said in str(done.exception)
    assert done.exception.code == "invalid_parameter"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["gs://models/a", "s3:/models/a", "out\udcff"])
def test_what_is_no_place_makes_no_directory(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = assemble(engine, "--out", out)
    assert isinstance(done.exception, DeployError), done.output
    assert done.exception.code == "invalid_parameter"
    assert list(tmp_path.iterdir()) == []
