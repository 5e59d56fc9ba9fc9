"""Assembles a repository for somebody else's Triton: all that its models need lies inside it.

Triton hands each model its own folder alone; from S3 that is a copy in a directory of a random name. So whatever a
model needs lies in its own version directory, and its parameters name it relative to its folder, where
`inflight.runtime` resolves them. TensorRT-LLM's C++ backend resolves nothing: it takes `gpt_model_path` as it stands,
so there the path is absolute (see `engine_home`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from build_engines.manifest import FILE_NAME as ENGINE_FILE
from build_engines.manifest import Manifest
from inflight import __version__
from inflight.deploy import kv_budget, model_configs
from inflight.deploy.card import Card, inventory, place_in
from inflight.deploy.errors import DeployError
from inflight.deploy.options import check_readable
from inflight.deploy.preflight import serving_place
from inflight.deploy.repository import ENGINE_MODEL, DeploymentOptions, assemble, committed_repository
from inflight.deploy.tensorrtllm_models import BACKEND, GUIDES_FILE
from inflight.deploy.typed_parameters import invalid
from inflight.deploy.vendor import vendor, vendored_files

_VERSION = "1"
_KV_CACHE = "max_tokens_in_paged_kv_cache"
_ENGINE, _TOKENIZER, _DRAFT, _ADAPTERS = (f"{_VERSION}/{name}" for name in ("engine", "tokenizer", "draft", "adapters"))
# What the models beside the engine's read.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    ENGINE_FILE,
)
_FURTHER_TEMPLATES = "additional_chat_templates"
# How much memory the machine that will serve has is not known here, so the cache's default takes what a small one has.
_KV_CACHE_BYTES = 1 << 30
_SHARE = 4  # of the memory that kv_budget is told of, it takes a quarter
_KEEP = (
    "keep.txt",
    "This version has no other files. S3 has no empty directories, and would not know of it without this one.\n",
)

Put = Callable[[Path, Path], Any]
"""Puts a file of the engine at a place in the repository: `shutil.copyfile`, or a link for what is only sent on."""


@dataclass(frozen=True)
class Order:
    """What to assemble: an engine that was verified, and options that were checked.

    `engine_path` is where the engine lies on the serving machine; with it, the repository holds none. `home` is where
    the repository itself will stand there, as far as it is known.
    """

    engine: Path
    manifest: Manifest
    options: DeploymentOptions
    vendored: bool = False
    engine_path: str | None = None
    home: Path | None = None

    def check(self) -> None:
        """Refuse paths that nobody could serve from, and those that change nothing. DeployError `invalid_parameter`."""
        check_readable(self.engine, self.engine_path or "", self.home or "")
        for name, given in (("--engine-path", self.engine_path), ("--home", self.home)):
            if given is not None and not os.path.isabs(given):
                shown = "empty" if str(given) in ("", ".") else f"{str(given)!r}"
                raise invalid(f"{name} is {shown}; give an absolute path, as it is on the machine that will serve.")
        if self.home is not None and self.manifest.target != "tensorrt-llm":
            raise invalid(
                f"--home is for engines of target tensorrt-llm, and this one is for {self.manifest.target}, which is"
                " found wherever the repository stands; leave it out."
            )
        if self.home is not None and self.engine_path is not None:
            raise invalid("--home and --engine-path both say where the engine will lie; leave one of them out.")

    @property
    def total_bytes(self) -> int:
        """About what the repository takes."""
        return 0 if self.engine_path is not None else sum(file.bytes for file in self.manifest.files.values())

    def notes(self, to: object) -> list[str]:
        """What whoever serves it has to know."""
        place = serving_place(self.manifest)
        found = [f"the engine runs in {place}."] if place else []
        if self.manifest.target == "tensorrt-llm" and self.engine_path is None:
            if isinstance(to, Path):
                found.append(
                    f"tritonserver finds the engine at {engine_home(self.home or to)} alone; say with --home where the"
                    " repository will stand, or with --engine-path where the engine will lie. `inflight serve` finds it"
                    " wherever the repository is."
                )
            else:
                found.append(
                    "only `inflight serve` finds an engine of TensorRT-LLM on S3; for tritonserver say with"
                    " --engine-path where it will lie."
                )
        if not self.vendored:
            found.append(f"it takes the package inflight {__version__} beside that Triton; --vendor brings it along.")
        return found

    def digest(self) -> str:
        """A hash of all that shapes the repository: the same order gives the same repository."""
        digest = hashlib.sha256()
        # Elsewhere the place makes no difference.
        home = str(self.home) if self.manifest.target == "tensorrt-llm" else None
        asked = [__version__, self.vendored, self.engine_path, home, self.manifest.model_dump_json()]
        digest.update(json.dumps([*asked, repr(self.options)]).encode())
        files = [*_files_below(committed_repository()), *(vendored_files() if self.vendored else [])]
        if self.options.draft_engine is not None:
            files.append(self.options.draft_engine / ENGINE_FILE)
        if (self.engine / GUIDES_FILE).is_file():
            files.append(self.engine / GUIDES_FILE)
        for path in [*files, *self.options.adapters]:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()


def write_repository(order: Order, out: Path, put: Put = shutil.copyfile) -> Card:
    """Write the repository into the empty directory `out`; its card comes last. Raises OSError and DeployError."""
    out.rmdir()
    configs = assemble(order.engine, order.manifest, out, _settled(order))
    for model, config in configs.items():
        folder = out / model
        _bring(order, model, config, folder, put)
        version = folder / _VERSION
        if order.vendored and (version / "model.py").is_file():
            vendor(version)
        version.mkdir(exist_ok=True)
        if not any(version.iterdir()):
            (version / _KEEP[0]).write_text(_KEEP[1])
    model_configs.write(configs, out)
    files = inventory(out)
    _compare(order, files)
    card = Card(
        inflight=__version__,
        vendored=order.vendored,
        engine=order.manifest,
        engine_path=order.engine_path,
        kv_cache_tokens=kv_cache_tokens(configs),
        asked=order.digest(),
        files=files,
    )
    card.write(out)
    return card


def kv_cache_tokens(configs: model_configs.Configs) -> int | None:
    """How many tokens the KV cache holds; None where the engine decides that itself, by the memory it finds."""
    parameters = configs[ENGINE_MODEL].parameters
    # Asking a message for what it does not hold would put it there.
    said = parameters[_KV_CACHE].string_value if _KV_CACHE in parameters else ""
    return int(said) if said else None


def engine_home(repository: Path) -> Path:
    """Where the engine lies in a repository that holds it."""
    return repository.absolute() / ENGINE_MODEL / _ENGINE


def place_engine(repository: Path, into: Path) -> Path:
    """A repository whose C++ engine is found: `repository` itself, or one of links to it in `into`.

    It may have been moved since it was assembled, or have come from S3, and the path of its engine is absolute.
    """
    configs = model_configs.load(repository)
    parameters = configs[ENGINE_MODEL].parameters
    written, here = parameters["gpt_model_path"].string_value, str(engine_home(repository))
    if configs[ENGINE_MODEL].backend != BACKEND or not written.endswith(_ENGINE) or written == here:
        return repository
    for key in parameters:
        parameters[key].string_value = _moved(parameters[key].string_value, written, here)
    into.mkdir(parents=True)
    for model in configs:
        (into / model).mkdir()
        (into / model / _VERSION).symlink_to((repository / model / _VERSION).absolute())
    model_configs.write(configs, into)
    return into


def _settled(order: Order) -> DeploymentOptions:
    """The options, where one that depends on the memory of this machine is settled."""
    options = order.options
    if order.manifest.target != "openvino" or options.kv_cache_tokens is not None:
        return options
    committed = model_configs.load(committed_repository())[ENGINE_MODEL].parameters["max_num_sequences"]
    sequences = options.max_num_sequences or int(committed.string_value)
    draft = None if options.draft_engine is None else Manifest.read(options.draft_engine)
    tokens = kv_budget.default_tokens(order.manifest, sequences, _SHARE * _KV_CACHE_BYTES, draft)
    return replace(options, kv_cache_tokens=tokens)


def _bring(order: Order, model: str, config: Any, folder: Path, put: Put) -> None:
    """Bring what a model's parameters name into its folder, and have them name it there."""
    parameters = config.parameters
    engine = str(order.engine.resolve())
    inside = _ENGINE if model == ENGINE_MODEL else _TOKENIZER
    below = [parameters[key].string_value for key in parameters if _below(parameters[key].string_value, engine)]
    if below:
        if inside == _TOKENIZER:
            further = (order.engine / _FURTHER_TEMPLATES).glob("*.jinja")
            templates = sorted(path.relative_to(order.engine).as_posix() for path in further)
            names = [*(name for name in _TOKENIZER_FILES if (order.engine / name).is_file()), *templates]
        elif order.engine_path is not None:
            names = []
        else:
            # Beside what was built, what a parameter names there: guides are put there later.
            named = {value[len(engine) + 1 :] for value in below if value != engine}
            names = [*order.manifest.files, ENGINE_FILE, *sorted(named - {*order.manifest.files, ENGINE_FILE})]
        for name in names:
            _put(order.engine / name, folder, f"{inside}/{name}", put)
    place = inside
    if model == ENGINE_MODEL:
        place = inside if order.engine_path is None else order.engine_path
        if config.backend == BACKEND and order.engine_path is None and order.home is not None:
            place = str(engine_home(order.home))
    for key in parameters:
        parameters[key].string_value = _moved(parameters[key].string_value, engine, place)
    if model == ENGINE_MODEL:
        _bring_companions(order, parameters, folder, put)


def _bring_companions(order: Order, parameters: Any, folder: Path, put: Put) -> None:
    """The draft engine and the adapters."""
    draft = order.options.draft_engine
    if draft is not None:
        for name in [*Manifest.read(draft).files, ENGINE_FILE]:
            _put(draft / name, folder, f"{_DRAFT}/{name}", put)
        parameters["draft_model_path"].string_value = _DRAFT
    places = [f"{_ADAPTERS}/{number}.safetensors" for number in range(1, len(order.options.adapters) + 1)]
    for adapter, place in zip(order.options.adapters, places, strict=True):
        _put(adapter, folder, place, put)
    if places:
        parameters["lora_adapters"].string_value = json.dumps(places)


def _put(source: Path, folder: Path, place: str, put: Put) -> None:
    put(source.resolve(), place_in(folder, place))


def _moved(value: str, old: str, new: str) -> str:
    """A parameter's value; if it is the path `old` or one below it, the same below `new`."""
    return new + value[len(old) :] if _below(value, old) else value


def _below(value: str, place: str) -> bool:
    return value == place or value.startswith(place + os.sep)


def _compare(order: Order, files: dict[str, Any]) -> None:
    """What was put there must be what the engine's manifest says, whatever happened to it on the way."""
    for name, expected in {} if order.engine_path is not None else order.manifest.files.items():
        if files.get(f"{ENGINE_MODEL}/{_ENGINE}/{name}") != expected:
            raise DeployError(
                f"{order.engine / name} changed while it was copied, or is damaged; build the engine again.",
                "engine_damaged",
            )


def _files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
