"""Assembles a repository for any Triton: it contains everything that its models need.

Triton gives each model only its own folder; from S3, that is a copy in a directory of a random name. So a model's files
are in its version directory, and its parameters name them relative to its folder, where `inflight.runtime` resolves
them. TensorRT-LLM's C++ backend does not resolve `gpt_model_path`, so there the path is absolute (see
`engine_path_inside`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from build_engines.engine_files import hash_files
from build_engines.manifest import FILE_NAME as ENGINE_FILE
from build_engines.manifest import Manifest
from inflight import __version__
from inflight.deploy.errors import DeployError, invalid
from inflight.deploy.repository import kv_budget, model_configs
from inflight.deploy.repository.configure import (
    ENGINE_MODEL,
    DeploymentOptions,
    committed_repository,
    configure_repository,
)
from inflight.deploy.repository.engine_set import EngineSet
from inflight.deploy.repository.environment import required_environment
from inflight.deploy.repository.manifest import RepositoryManifest, path_inside
from inflight.deploy.repository.model_names import CPP_BACKEND, MODELS_WITH_ENGINE, Task
from inflight.deploy.repository.options import adapter_files, check_readable
from inflight.deploy.repository.tensorrt_llm.backend import XGRAMMAR_TOKENIZER_FILE

# Triton gives each model only its own folder (from S3: a copy of it in a random directory), so each Python model gets
# the runtime beside its `model.py`, which imports from there first: an installed inflight of any version is not used.
# The runtime is one zip file: for each file of a directory, Triton sends several requests to S3. The container
# provides what the runtime imports (numpy, tokenizers, the engine's library).


ARCHIVE = "inflight.zip"

_PACKAGE = Path(__file__).resolve().parents[2]
_PATH_PRELUDE = f'''\
import sys
from pathlib import Path

# This repository contains its runtime, which takes precedence over an installed one.
sys.path.insert(0, str(Path(__file__).resolve().with_name("{ARCHIVE}")))

'''


def vendor_runtime(version: Path) -> None:
    """Add the runtime to a model's version directory, and make its model.py import it from there."""
    with zipfile.ZipFile(version / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in vendored_files():
            # A constant date makes the same runtime the same file.
            entry = zipfile.ZipInfo(path.relative_to(_PACKAGE.parent).as_posix(), (1980, 1, 1, 0, 0, 0))
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    model = version / "model.py"
    docstring, _, code = model.read_text(encoding="utf-8").partition("\n\n")
    model.write_text(f"{docstring}\n\n{_PATH_PRELUDE}{code}", encoding="utf-8")


def vendored_files() -> list[Path]:
    """Return the files of the runtime."""
    return [
        _PACKAGE / "__init__.py",
        *sorted((_PACKAGE / "common").glob("*.py")),
        *sorted((_PACKAGE / "text").glob("*.py")),
        *sorted((_PACKAGE / "runtime").rglob("*.py")),
    ]


_VERSION = "1"
_KV_CACHE = "max_tokens_in_paged_kv_cache"
_ENGINE, _TOKENIZER, _DRAFT, _ADAPTERS = (f"{_VERSION}/{name}" for name in ("engine", "tokenizer", "draft", "adapters"))
# Files that the models around the engine's read.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    ENGINE_FILE,
)
_ADDITIONAL_TEMPLATES = "additional_chat_templates"
# The memory of the serving machine is unknown here, so the default cache suits a small machine.
_KV_CACHE_BYTES = 1 << 30
_KV_BUDGET_DIVISOR = 4  # kv_budget uses a quarter of the available memory
_PLACEHOLDER = (
    "keep.txt",
    "This version has no other files. S3 has no empty directories, and would not know of it without this one.\n",
)

PlaceFile = Callable[[Path, Path], Any]
"""Puts a file of the engine at a place in the repository: `shutil.copyfile`, or a link if it is only uploaded."""


@dataclass(frozen=True)
class AssemblyRequest:
    """What to assemble: verified engines and checked options.

    `engine_path` is the main engine's path on the serving machine; with it, the repository does not contain that
    engine. `repository_path` is the repository's path there, if known.
    """

    engines: EngineSet
    options: DeploymentOptions
    vendored: bool = False
    engine_path: str | None = None
    repository_path: Path | None = None

    def check(self) -> None:
        """Raise DeployError `invalid_parameter` for paths that can't be served from, or that have no effect."""
        check_readable(*self.engines.directories.values(), self.engine_path or "", self.repository_path or "")
        for name, path in (("--engine-path", self.engine_path), ("--repository-path", self.repository_path)):
            if path is not None and not os.path.isabs(path):
                shown = "empty" if str(path) in ("", ".") else f"{str(path)!r}"
                raise invalid(f"{name} is {shown}; give the absolute path on the serving machine.")
        if self.repository_path is not None and not self._is_for_cpp_backend:
            raise invalid(
                f"--repository-path is for engines of target tensorrt-llm, and this one is for"
                f" {self.engines.main.target}, which needs no path; leave it out."
            )
        if self.repository_path is not None and self.engine_path is not None:
            raise invalid("--repository-path and --engine-path both set the engine's path; leave one of them out.")

    @property
    def total_bytes(self) -> int:
        """Return the approximate size of the repository."""
        return sum(file.bytes for task in self.contained for file in self.engines.manifests[task].files.values())

    @property
    def contained(self) -> list[Task]:
        """Return the tasks of the engines that the repository contains."""
        return [task for task in self.engines.tasks if self.engine_path is None or task != self.engines.main.task]

    @property
    def _is_for_cpp_backend(self) -> bool:
        return self.engines.generator is not None and self.engines.generator.target == "tensorrt-llm"

    def notes(self, destination: object) -> list[str]:
        """Return notes for the operator of the Triton server."""
        places = {manifest.name: place for manifest in self.engines.all if (place := required_environment(manifest))}
        notes = [f"the engine {name} runs in {place}." for name, place in places.items()]
        if self._is_for_cpp_backend and self.engine_path is None:
            if isinstance(destination, Path):
                notes.append(
                    f"tritonserver finds the engine at {engine_path_inside(self.repository_path or destination)}"
                    " only; pass the repository's path on the serving machine as --repository-path, or the engine's as"
                    " --engine-path. `inflight serve` finds it in any place."
                )
            else:
                notes.append(
                    "only `inflight serve` finds an engine of TensorRT-LLM on S3; for tritonserver pass its path as"
                    " --engine-path."
                )
        if not self.vendored:
            notes.append(f"it requires the package inflight {__version__} in that Triton; --vendor includes it.")
        return notes

    def options_digest(self) -> str:
        """Return a hash of everything that affects the repository: the same options give the same repository."""
        digest = hashlib.sha256()
        # Only TensorRT-LLM's repositories depend on their path.
        home = str(self.repository_path) if self._is_for_cpp_backend else None
        manifests = [manifest.model_dump_json() for manifest in self.engines.all]
        asked = [__version__, self.vendored, self.engine_path, home, *manifests]
        digest.update(json.dumps([*asked, repr(self.options)]).encode())
        files = [*_files_below(committed_repository()), *(vendored_files() if self.vendored else [])]
        if self.options.draft_engine is not None:
            files.append(self.options.draft_engine / ENGINE_FILE)
        guides = self.engines.directories[self.engines.main.task] / XGRAMMAR_TOKENIZER_FILE
        if guides.is_file():
            files.append(guides)
        files += [path for adapter in self.options.adapters for path in adapter_files(adapter).values()]
        for path in files:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()


def assemble_repository(
    request: AssemblyRequest, out: Path, place_file: PlaceFile = shutil.copyfile
) -> RepositoryManifest:
    """Write the repository into the empty directory `out`, its manifest last. Raises OSError and DeployError."""
    out.rmdir()
    configs = configure_repository(request.engines, out, _with_kv_cache_tokens(request))
    for model, config in configs.items():
        folder = out / model
        _place_model_files(request, model, config, folder, place_file)
        version = folder / _VERSION
        if request.vendored and (version / "model.py").is_file():
            vendor_runtime(version)
        version.mkdir(exist_ok=True)
        if not any(version.iterdir()):
            (version / _PLACEHOLDER[0]).write_text(_PLACEHOLDER[1])
    model_configs.write(configs, out)
    files = hash_files(out)
    _check_engine_files(request, files)
    card = RepositoryManifest(
        inflight_version=__version__,
        vendored=request.vendored,
        engine=request.engines.generator,
        encoders=request.engines.encoders,
        engine_path=request.engine_path,
        kv_cache_tokens=kv_cache_tokens(configs),
        options_digest=request.options_digest(),
        served_model_name=request.engines.served_model_name,
        files=files,
    )
    card.write(out)
    return card


def kv_cache_tokens(configs: model_configs.Configs) -> int | None:
    """Return the tokens of the KV cache; None if the engine sizes it by the free memory, or is an encoder."""
    if ENGINE_MODEL not in configs:
        return None
    parameters = configs[ENGINE_MODEL].parameters
    # Reading a missing key of a protobuf map would create it.
    text = parameters[_KV_CACHE].string_value if _KV_CACHE in parameters else ""
    return int(text) if text else None


def engine_path_inside(repository: Path) -> Path:
    """Return the path of the engine in a repository that contains it."""
    return repository.absolute() / ENGINE_MODEL / _ENGINE


def relocate_engine(repository: Path, into: Path) -> Path:
    """Return a repository with the right engine path: `repository` itself, or one of links to it in `into`.

    The path is absolute, and the repository may have been moved or downloaded from S3 since it was assembled.
    """
    configs = model_configs.load(repository)
    if ENGINE_MODEL not in configs:
        return repository
    parameters = configs[ENGINE_MODEL].parameters
    written, here = parameters["gpt_model_path"].string_value, str(engine_path_inside(repository))
    if configs[ENGINE_MODEL].backend != CPP_BACKEND or not written.endswith(_ENGINE) or written == here:
        return repository
    for key in parameters:
        parameters[key].string_value = _relocated(parameters[key].string_value, written, here)
    into.mkdir(parents=True)
    for model in configs:
        (into / model).mkdir()
        (into / model / _VERSION).symlink_to((repository / model / _VERSION).absolute())
    model_configs.write(configs, into)
    return into


def _with_kv_cache_tokens(request: AssemblyRequest) -> DeploymentOptions:
    """Return the options with the KV cache size, which otherwise depends on the memory of this machine."""
    options, manifest = request.options, request.engines.generator
    if manifest is None or manifest.target != "openvino" or options.kv_cache_tokens is not None:
        return options
    committed = model_configs.load(committed_repository())[ENGINE_MODEL].parameters["max_num_sequences"]
    sequences = options.max_num_sequences or int(committed.string_value)
    draft = None if options.draft_engine is None else Manifest.read(options.draft_engine)
    tokens = kv_budget.default_kv_cache_tokens(manifest, sequences, _KV_BUDGET_DIVISOR * _KV_CACHE_BYTES, draft)
    return replace(options, kv_cache_tokens=tokens)


def _place_model_files(request: AssemblyRequest, model: str, config: Any, folder: Path, place_file: PlaceFile) -> None:
    """Copy the files of a model's parameters into its folder, and set the parameters to their new paths."""
    parameters = config.parameters
    runs_engine = model in MODELS_WITH_ENGINE.values()
    task: Task = next((task for task, name in MODELS_WITH_ENGINE.items() if name == model), "generate")
    directory, files = request.engines.directories[task], request.engines.manifests[task].files
    engine = str(directory.resolve())
    inside = _ENGINE if runs_engine else _TOKENIZER
    below = [parameters[key].string_value for key in parameters if _is_below(parameters[key].string_value, engine)]
    if below:
        if not runs_engine:
            further = (directory / _ADDITIONAL_TEMPLATES).glob("*.jinja")
            templates = sorted(path.relative_to(directory).as_posix() for path in further)
            names = [*(name for name in _TOKENIZER_FILES if (directory / name).is_file()), *templates]
        elif task not in request.contained:
            names = []
        else:
            # Besides the built files, those in parameters: guides are added to an engine later.
            named = {value[len(engine) + 1 :] for value in below if value != engine}
            names = [*files, ENGINE_FILE, *sorted(named - {*files, ENGINE_FILE})]
        for name in names:
            _place(directory / name, folder, f"{inside}/{name}", place_file)
    place = inside
    if runs_engine:
        if task not in request.contained:
            assert request.engine_path is not None
            place = request.engine_path
        elif config.backend == CPP_BACKEND and request.repository_path is not None:
            place = str(engine_path_inside(request.repository_path))
    for key in parameters:
        parameters[key].string_value = _relocated(parameters[key].string_value, engine, place)
    if model == ENGINE_MODEL:
        _place_companions(request, parameters, folder, place_file)


def _place_companions(request: AssemblyRequest, parameters: Any, folder: Path, place_file: PlaceFile) -> None:
    """Copy the draft engine and the adapters."""
    draft = request.options.draft_engine
    if draft is not None:
        for name in [*Manifest.read(draft).files, ENGINE_FILE]:
            _place(draft / name, folder, f"{_DRAFT}/{name}", place_file)
        parameters["draft_model_path"].string_value = _DRAFT
    places = [f"{_ADAPTERS}/{number}" for number in range(1, len(request.options.adapters) + 1)]
    for adapter, place in zip(request.options.adapters, places, strict=True):
        for name, source in adapter_files(adapter).items():
            _place(source, folder, f"{place}/{name}", place_file)
    if places:
        parameters["lora_adapters"].string_value = json.dumps(places)


def _place(source: Path, folder: Path, place: str, place_file: PlaceFile) -> None:
    place_file(source.resolve(), path_inside(folder, place))


def _relocated(value: str, old: str, new: str) -> str:
    """Return a parameter's value; if it is the path `old` or one below it, return the path below `new`."""
    return new + value[len(old) :] if _is_below(value, old) else value


def _is_below(value: str, place: str) -> bool:
    return value == place or value.startswith(place + os.sep)


def _check_engine_files(request: AssemblyRequest, files: dict[str, Any]) -> None:
    """Raise DeployError if a copied file differs from the engine's manifest."""
    for task in request.contained:
        for name, expected in request.engines.manifests[task].files.items():
            if files.get(f"{MODELS_WITH_ENGINE[task]}/{_ENGINE}/{name}") != expected:
                raise DeployError(
                    f"{request.engines.directories[task] / name} changed while it was copied, or is damaged; build the"
                    " engine again.",
                    "engine_damaged",
                )


def _files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
