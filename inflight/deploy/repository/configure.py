"""Creates a deployable model repository from the committed one, engine directories and options."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from build_engines.manifest import EncoderManifest, Manifest, Seq2SeqManifest
from inflight import __version__
from inflight.deploy.errors import DeployError, invalid
from inflight.deploy.repository import model_configs, python_backend
from inflight.deploy.repository.engine_set import AnyManifest, BatchedManifest, EngineSet
from inflight.deploy.repository.model_names import ENCODER_MODELS, ENGINE_MODEL, PROCESSOR_TARGETS, TEXT_MODELS
from inflight.deploy.repository.options import DeploymentOptions, adapter_digests, adapter_names
from inflight.deploy.repository.tensorrt_llm import backend

_FILE = "generation_config.json"
_NAMES = ("temperature", "top_k", "top_p", "repetition_penalty")
_SAMPLES = _NAMES[:3]
_REPRODUCIBLE = "-reproducible"
"""Behind the build of such a deployment: its answers are not those of another one to the last bit."""


def model_sampling(engine: Path) -> dict[str, Any]:
    """Return the sampling parameters of the model; greedy decoding if it names none, as transformers has it.

    A file that can't be read, or values that are no numbers, count as absent.
    """
    try:
        config = json.loads((engine / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    sampling = {
        name: config[name]
        for name in _NAMES
        if isinstance(config, dict) and type(config.get(name)) in (int, float) and config[name] >= 0
    }
    samples = config.get("do_sample", any(name in sampling for name in _SAMPLES)) if isinstance(config, dict) else False
    if not samples:
        return {"temperature": 0.0} | {name: value for name, value in sampling.items() if name not in _SAMPLES}
    return {"temperature": 1.0} | sampling


def has_chat_template(engine: Path) -> bool:
    """Return whether preprocessing can render messages for the engine."""
    if (engine / "chat_template.jinja").is_file() or any((engine / "additional_chat_templates").glob("*.jinja")):
        return True
    try:
        return bool(json.loads((engine / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False


def configure_encoder(config: Any, engine: Path, manifest: BatchedManifest, options: DeploymentOptions) -> None:
    """Apply an encoder's directory, the limits of its engine and the options to its committed configuration.

    Raises DeployError `invalid_parameter` for micro-batches that the engine was not built for.
    """
    asked = options.encoders
    option_values = {
        "max_batch_tokens": asked.max_batch_tokens if "max_batch_tokens" in config.parameters else None,
        "max_batch_texts": asked.max_batch_texts,
        "max_queue_texts": asked.max_queue_texts,
        "max_wait_ms": asked.max_wait_ms,
        "num_requests": asked.num_requests,
        "threads": asked.encoder_threads if manifest.target in PROCESSOR_TARGETS else None,
    }
    values = {name: str(value) for name, value in option_values.items() if value is not None}
    own = options.parameters.get(config.name, {})
    limits = manifest.limits.model_dump() if isinstance(manifest, EncoderManifest) and manifest.limits else {}
    built = {name: str(value) for name, value in limits.items()}
    model_configs.set_parameters(config, {"engine_dir": str(engine.resolve()), **built, **values, **own})
    for name, most in limits.items():
        text = config.parameters[name].string_value
        if text.isdecimal() and int(text) > most:
            raise invalid(
                f"The parameter {name} of {config.name} is {text}, and {manifest.name} was built for {most} at most;"
                " lower it, or build the engine again."
            )


__all__ = [
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


def build_id(manifest: AnyManifest) -> str:
    """Return a name of what answers: the same for the same engine, tokenizer and template in any location.

    A resumed job compares it to check that the same model answers.
    """
    precisions = [manifest.precision, manifest.kv_cache_precision] if isinstance(manifest, Manifest) else []
    parts = {
        "target": manifest.target,
        "precision": precisions or manifest.precision,
        "properties": manifest.properties,
        "source": manifest.source.model_dump(exclude={"checkpoint"}),
        "files": {name: file.sha256 for name, file in manifest.files.items()},
    }
    # What an encoder answers depends on these too.
    own = ("task", "prompts", "default_prompt", "activation", "labels", "max_seq_len", "padding_side")
    if isinstance(manifest, EncoderManifest):
        parts |= manifest.model_dump(include=set(own))
    elif isinstance(manifest, Seq2SeqManifest):
        parts |= manifest.model_dump(include={"task", "max_seq_len", "max_source_len", "languages", "text"})
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def served_model_info(name: str, manifest: Manifest, configs: model_configs.Configs, engine_dir: Path | None) -> str:
    """Return as JSON what a deployment serves: parameter `inflight_served` of its text models.

    `name` is the model's name for applications. With `engine_dir`, programs on the same machine find the tokenizer
    there; `tokenizer` is the hash of its file.
    """
    engine = configs[ENGINE_MODEL]
    most = engine.parameters["max_num_sequences"].string_value if "max_num_sequences" in engine.parameters else ""
    facts = {
        "model": name,
        "target": manifest.target,
        "precision": manifest.precision,
        "kv_cache_precision": manifest.kv_cache_precision,
        "max_sequences": int(most or engine.max_batch_size),
        "max_seq_len": manifest.max_seq_len,
        "stream_interval": int(engine.parameters["stream_interval"].string_value or 1)
        if "stream_interval" in engine.parameters
        else 1,
        **_text_flags(configs),
        **_tokenizer_info(manifest, engine_dir),
    }
    return json.dumps(facts)


def _text_flags(configs: model_configs.Configs) -> dict[str, bool]:
    """Return how the models of text convert it, for programs that do it themselves."""
    places = {
        "add_special_tokens": "preprocessing",
        "special_tokens_in_messages": "preprocessing",
        "skip_special_tokens": "postprocessing",
    }
    return {name: configs[model].parameters[name].string_value == "true" for name, model in places.items()}


def served_encoder_info(name: str, manifest: BatchedManifest, config: Any, engine_dir: Path | None) -> str:
    """Return as JSON what an encoder's model serves, as `served_model_info` does."""
    facts = {
        "model": name,
        "task": manifest.task,
        "max_seq_len": manifest.max_seq_len,
        **_encoder_facts(manifest),
        "precision": manifest.precision,
        "target": manifest.target,
        "max_batch_texts": int(config.parameters["max_batch_texts"].string_value),
        **_tokenizer_info(manifest, engine_dir),
    }
    return json.dumps(facts)


def _encoder_facts(manifest: BatchedManifest) -> dict[str, Any]:
    if isinstance(manifest, EncoderManifest):
        return {"dimensions": manifest.dimensions, "labels": list(manifest.labels)}
    return {"languages": list(manifest.languages)}


def _tokenizer_info(manifest: AnyManifest, engine_dir: Path | None) -> dict[str, str]:
    tokenizer = manifest.files.get("tokenizer.json")
    place = {} if engine_dir is None else {"engine_dir": str(engine_dir.resolve())}
    return ({"tokenizer": tokenizer.sha256} if tokenizer else {}) | place


def configure_repository(
    engines: EngineSet,
    out: Path,
    options: DeploymentOptions,
    source: Path | None = None,
    *,
    show_directories: bool = False,
) -> model_configs.Configs:
    """Write a deployable repository to `out`, which must not exist, and return its configurations.

    The options must have been checked. With `show_directories`, clients can read where the engines are. Raises
    DeployError for an undeclared parameter, and for a repository whose ensemble does not match its models.
    """
    source = source or committed_repository()
    committed = model_configs.load(source)
    encoders = {ENCODER_MODELS[task]: (task, manifest) for task, manifest in engines.encoders.items()}
    names = committed.keys() - set(ENCODER_MODELS.values()) if engines.generator else set()
    configs = {name: config for name, config in committed.items() if name in names or name in encoders}
    for model in options.parameters:
        if model not in configs:
            raise invalid(f"There is no model {model!r}; choose one of {', '.join(configs)}.")
    if engines.generator is not None:
        of_generator = {name: config for name, config in configs.items() if name in names}
        _configure_generator(of_generator, engines, options, show_directories)
    for model, (task, manifest) in encoders.items():
        directory = engines.directories[task]
        configure_encoder(configs[model], directory, manifest, options)
        shown = directory if show_directories else None
        info = served_encoder_info(engines.model_names[task], manifest, configs[model], shown)
        _add_identity({model: configs[model]}, manifest, {model: configs[model]}, info)
    model_configs.check(configs)
    for name, config in configs.items():
        left_out = _IGNORED_FILES if config.backend in ("", "python") else (*_IGNORED_FILES, _MODEL_CODE)
        shutil.copytree(source / name, out / name, ignore=shutil.ignore_patterns(*left_out))
    model_configs.write(configs, out)
    return configs


def publish(repository: Path, facts: Mapping[str, Any]) -> None:
    """Add facts to what the models of a written repository tell clients."""
    configs = model_configs.load(repository)
    for config in configs.values():
        if "inflight_served" in config.parameters:
            parameter = config.parameters["inflight_served"]
            parameter.string_value = json.dumps(json.loads(parameter.string_value) | facts)
    model_configs.write(configs, repository)


def _configure_generator(
    configs: model_configs.Configs, engines: EngineSet, options: DeploymentOptions, show_directories: bool
) -> None:
    """Configure the models of the engine that generates."""
    manifest, engine = engines.generator, engines.directories["generate"]
    assert manifest is not None
    own = {model: values for model, values in options.parameters.items() if model in configs}
    target = backend if manifest.target == "tensorrt-llm" else python_backend
    target.configure_models(configs, engine, manifest, replace(options, parameters=own))
    configs[ENGINE_MODEL].model_transaction_policy.decoupled = options.decoupled
    shown = engine if show_directories else None
    name = engines.model_names["generate"]
    about = json.loads(served_model_info(name, manifest, configs, shown)) | _model_defaults(engine, manifest, options)
    about["settings_sha256"] = _settings_digest(configs)
    if options.adapters:
        about["adapters"] = adapter_names(options.adapters, name)
        about["adapters_sha256"] = adapter_digests(options.adapters, name)
    if options.adapter_directory is not None:
        about["loads_adapters"] = True
    if options.reproducible:
        about["reproducible"] = True
    info = json.dumps(about)
    texts = {name: configs[name] for name in TEXT_MODELS if name in configs}
    _add_identity(configs, manifest, texts, info, _REPRODUCIBLE if options.reproducible else "")


def _settings_digest(configs: model_configs.Configs) -> str:
    """Return the SHA-256 of the engine's parameters: some of them, such as windows, decide on its answers. Paths do not
    count, and neither does the size of the KV cache, which follows from the memory that is free at the start."""
    parameters = sorted((name, each.string_value) for name, each in configs[ENGINE_MODEL].parameters.items())
    others = ("_path", "_dir", "_directory", "_adapters", "_kv_cache")
    kept = [(name, value) for name, value in parameters if not name.endswith(others)]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()


def _model_defaults(engine: Path, manifest: Manifest, options: DeploymentOptions) -> dict[str, Any]:
    """Return what applications and commands do unless they are asked for something else, and the build's notes."""
    ignored = options.generation_config == "ignore"
    return {
        "sampling": {"temperature": 1.0} if ignored else model_sampling(engine),
        "chat_template": has_chat_template(engine),
        "notes": list(manifest.notes),
    }


def _add_identity(
    configs: model_configs.Configs,
    manifest: AnyManifest,
    texts: model_configs.Configs,
    info: str,
    mode: str = "",
) -> None:
    """Add what clients read: the versions and the build to all models of an engine, and `info` to those for texts."""
    versions = {"inflight_version": __version__, "inflight_engine_version": manifest.versions.get("inflight", "")}
    model_configs.add_parameters(configs, {**versions, "inflight_build": build_id(manifest) + mode})
    model_configs.add_parameters(texts, {"inflight_served": info})
