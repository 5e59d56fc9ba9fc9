"""Creates a deployable model repository from the committed one, an engine directory and options."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from build_engines.manifest import Manifest
from inflight import __version__
from inflight.deploy.errors import DeployError
from inflight.deploy.repository import model_configs, python_backend
from inflight.deploy.repository.model_names import BLS_MODEL, ENGINE_MODEL, TEXT_MODELS
from inflight.deploy.repository.options import DeploymentOptions
from inflight.deploy.repository.tensorrt_llm import backend

__all__ = [
    "BLS_MODEL",
    "ENGINE_MODEL",
    "TEXT_MODELS",
    "DeploymentOptions",
    "committed_repository",
    "configure_repository",
]

_MODEL_CODE = "model.py"
_IGNORED_FILES = ("__pycache__", ".gitkeep")


def committed_repository() -> Path:
    """Return the committed model repository: beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parents[1]
    for place in (here / "model_repository", here.parent.parent / "model_repository"):
        if (place / "ensemble" / "config.pbtxt").is_file():
            return place
    raise DeployError(f"The model repository is missing beside {here}; install inflight again.", "server_start_failed")


def build_id(manifest: Manifest) -> str:
    """Return a name of what answers: the same for the same engine, tokenizer and template in any location.

    A resumed job compares it to check that the same model answers.
    """
    parts = {
        "target": manifest.target,
        "precision": [manifest.precision, manifest.kv_cache_precision],
        "properties": manifest.properties,
        "source": manifest.source.model_dump(exclude={"checkpoint"}),
        "files": {name: file.sha256 for name, file in manifest.files.items()},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def served_model_info(name: str, manifest: Manifest, configs: model_configs.Configs, engine_dir: Path | None) -> str:
    """Return as JSON what a deployment serves: parameter `inflight_served` of its text models.

    `name` is the model's name for applications. With `engine_dir`, programs on the same machine find the tokenizer
    there; `tokenizer` is the hash of its file.
    """
    engine = configs[ENGINE_MODEL]
    most = engine.parameters["max_num_sequences"].string_value if "max_num_sequences" in engine.parameters else ""
    tokenizer = manifest.files.get("tokenizer.json")
    facts = {
        "model": name,
        "target": manifest.target,
        "precision": manifest.precision,
        "kv_cache_precision": manifest.kv_cache_precision,
        "max_sequences": int(most or engine.max_batch_size),
        "max_seq_len": manifest.max_seq_len,
        "tokenizer": tokenizer.sha256 if tokenizer else None,
        "engine_dir": None if engine_dir is None else str(engine_dir.resolve()),
    }
    return json.dumps({name: value for name, value in facts.items() if value is not None})


def configure_repository(
    engine: Path,
    manifest: Manifest,
    out: Path,
    options: DeploymentOptions,
    source: Path | None = None,
    engine_dir: Path | None = None,
) -> model_configs.Configs:
    """Write a deployable repository to `out`, which must not exist, and return its configurations.

    The options must have been checked. Clients can read `engine_dir`, the engine's path while it is served. Raises
    DeployError for an undeclared parameter, and for a repository whose ensemble does not match its models.
    """
    source = source or committed_repository()
    configs = model_configs.load(source)
    target = backend if manifest.target == "tensorrt-llm" else python_backend
    target.configure_models(configs, engine, manifest, options)
    for model in {ENGINE_MODEL, BLS_MODEL} & set(configs):
        model_configs.set_decoupled(configs[model], options.decoupled)
    if options.max_queue_size is not None:
        model_configs.set_max_queue_size(configs[ENGINE_MODEL], options.max_queue_size)
    versions = {"inflight_version": __version__, "inflight_engine_version": manifest.versions.get("inflight", "")}
    model_configs.add_parameters(configs, {**versions, "inflight_build": build_id(manifest)})
    texts = {name: configs[name] for name in TEXT_MODELS if name in configs}
    model_configs.add_parameters(
        texts,
        {
            "inflight_served": served_model_info(
                options.served_model_name or manifest.name, manifest, configs, engine_dir
            )
        },
    )
    model_configs.check(configs)
    for name, config in configs.items():
        left_out = _IGNORED_FILES if config.backend in ("", "python") else (*_IGNORED_FILES, _MODEL_CODE)
        shutil.copytree(source / name, out / name, ignore=shutil.ignore_patterns(*left_out))
    model_configs.write(configs, out)
    return configs
