"""The wording of a deployment's errors; INFLIGHT_UPDATE_GOLDEN=1 writes messages.txt again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from inflight.deploy.publish.s3_address import S3Address, parse_location
from inflight.deploy.repository.configure import committed_repository
from inflight.deploy.repository.model_configs import load, set_parameters
from inflight.deploy.repository.option_checks import check_options
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.server.grpc_tls import GrpcTls
from inflight.deploy.server.preflight import request_log_environment
from inflight.deploy.server.process_layout import choose_layout
from inflight.deploy.server.run_directory import ServerRunDirectory
from tests.deploy.repository.tensorrt_llm.example_engines import gpu_manifest
from tests.deploy.repository.test_model_configs import BROKEN_WIRING, check_broken
from tests.fixtures.errors import Cause, check_messages
from tests.fixtures.manifests import engine_set, manifest

ENGINE = Path("/engines/demo")


def test_sentences(tmp_path: Path) -> None:
    def options(**given: Any) -> Cause:
        return partial(check_options, DeploymentOptions(**given), engine_set(ENGINE))

    def gpu_options(**given: Any) -> Cause:
        return partial(check_options, DeploymentOptions(**given), engine_set(ENGINE, gpu_manifest()))

    (tmp_path / "file").touch()
    (tmp_path / "models/one").mkdir(parents=True)
    (tmp_path / "models/one/config.pbtxt").write_text('name: "other"')
    (tmp_path / "empty").mkdir()
    causes: list[Cause] = [
        partial(S3Address.parse, "s3://"),
        partial(S3Address.parse, "s3://UPPER/a"),
        partial(S3Address.parse, "s3://http://host/models/a"),
        partial(S3Address.parse, "s3://models/a b"),
        partial(S3Address.parse, "s3://models/a", "ftp://host"),
        partial(parse_location, "s3://http://b:9000/models/a", "http://a:9000"),
        partial(parse_location, "models/a", "http://a:9000"),
        partial(parse_location, "gs://models/a"),
        partial(parse_location, tmp_path / "a\udcff"),
        options(draft_engine=Path("draft"), prompt_lookup=True),
        options(num_draft_tokens=4),
        options(reproducible=True),
        options(adapters=(Path("nothing.safetensors"),)),
        options(draft_engine=tmp_path / "draft"),
        gpu_options(draft_engine=Path("draft")),
        gpu_options(prompt_lookup=True),
        gpu_options(wrap_token_ids=True),
        gpu_options(max_num_sequences=8),
        gpu_options(kv_cache_reuse=False, settings={"enable_kv_cache_reuse": True}),
        partial(set_parameters, load(committed_repository())["preprocessing"], {"tokenizer": "x"}),
        partial(load, tmp_path / "models"),
        partial(load, tmp_path / "empty"),
        *(partial(check_broken, break_it) for break_it in BROKEN_WIRING),
        partial(GrpcTls.from_options, tmp_path / "server.pem", None, None),
        partial(GrpcTls.from_options, None, None, tmp_path / "ca.pem"),
        partial(GrpcTls.from_options, tmp_path / "server.pem", tmp_path / "server.key", None),
        partial(choose_layout, manifest(), {}, "orchestrator"),
        partial(request_log_environment, tmp_path / "nowhere/log", manifest()),
        partial(request_log_environment, tmp_path / "log", gpu_manifest()),
        partial(ServerRunDirectory.create, tmp_path / "file/home"),
        partial(ServerRunDirectory.create, tmp_path / "a $(b)"),
    ]
    check_messages(Path(__file__).with_name("messages.txt"), causes, tmp_path)
