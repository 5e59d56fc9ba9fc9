"""What a server serves: a repository made from engine directories, or an assembled one in a directory or on S3."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_engines.manifest import verify_engine
from inflight.deploy.errors import DeployError, invalid
from inflight.deploy.publish.s3_address import S3Address, parse_location
from inflight.deploy.publish.s3_repository import S3Repository
from inflight.deploy.repository import manifest as cards
from inflight.deploy.repository import model_configs
from inflight.deploy.repository.assemble import kv_cache_tokens, relocate_engine
from inflight.deploy.repository.configure import ENGINE_MODEL, DeploymentOptions, configure_repository
from inflight.deploy.repository.engine_set import EngineSet
from inflight.deploy.repository.manifest import RepositoryManifest, is_repository
from inflight.deploy.repository.model_names import option_name
from inflight.deploy.repository.option_checks import check_options
from inflight.deploy.repository.options import given_options
from inflight.deploy.repository.tensorrt_llm.rules import check_paths

_MOUNT_VARIABLE = "TRITON_AWS_MOUNT_DIRECTORY"
"""Where Triton copies the models of a repository on S3; by default below /tmp, where a killed server's copies remain.
"""


@dataclass(frozen=True)
class ServingSource:
    """Verified engines, or with a manifest an assembled repository of them, in a directory or on S3."""

    location: Path | S3Address
    engines: EngineSet
    repository_manifest: RepositoryManifest | None = None

    @property
    def model_name(self) -> str:
        """The main engine's name for applications."""
        return self.engines.model_names[self.engines.main.task]


@dataclass(frozen=True)
class PreparedRepository:
    """`repository` in Triton's form, environment variables, and the directory that a new start empties.

    `kv_cache_tokens` is None if the engine sizes its cache, or if no engine generates. `parameters` are those of the
    model `tensorrt_llm`.
    """

    repository: str
    kv_cache_tokens: int | None
    parameters: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    download_directory: Path | None = None

    def clear_downloads(self) -> None:
        """Remove the copies of an earlier instance."""
        if self.download_directory is not None:
            for left in self.download_directory.iterdir():
                shutil.rmtree(left, ignore_errors=True)


def find_source(location: str | Path, options: DeploymentOptions) -> ServingSource:
    """Check that what is to be served exists, is complete, and matches this version.

    Raises BuildError as `verify_engine` does, and DeployError `engine_damaged`, `engine_incompatible`,
    `invalid_parameter` (also for options to an assembled repository, which includes its options) and `storage_*`.
    """
    where = parse_location(location)
    if isinstance(where, Path) and not is_repository(where):
        engines = EngineSet.find(where, options)
        check_options(options, engines)
        return ServingSource(where, engines)
    _refuse_options(where, options)
    card = S3Repository(where).read_manifest() if isinstance(where, S3Address) else cards.verify_repository(where)
    card.check_version(str(where))
    engines = card.engines
    if card.engine_path is not None and verify_engine(Path(card.engine_path)) != engines.main:
        raise DeployError(
            f"{where} was assembled for the engine {engines.main.name} of {engines.main.created}, and"
            f" {card.engine_path} holds another one; put that engine there, or assemble the repository again.",
            "engine_incompatible",
        )
    return ServingSource(where, engines, card)


def prepare_repository(
    source: ServingSource, options: DeploymentOptions, run_directory: Path, on_message: Callable[[str], None]
) -> PreparedRepository:
    """Create the repository that Triton reads in the run directory, unless it exists elsewhere.

    Raises DeployError `disk_full` and `storage_*`, and `invalid_parameter` for a path that is not on this machine.
    """
    repository = run_directory / "repository"
    if source.repository_manifest is None:
        configs = configure_repository(source.engines, repository, options, show_directories=True)
        return _with_parameters(repository, kv_cache_tokens(configs), configs)
    tokens = source.repository_manifest.kv_cache_tokens
    if isinstance(source.location, Path):
        return _from_directory(relocate_engine(source.location.absolute(), repository), tokens)
    copies = Path(os.environ.get(_MOUNT_VARIABLE) or run_directory / "models").absolute()
    copies.mkdir(parents=True, exist_ok=True)
    _check_space(source.location, source.repository_manifest, copies)
    generator = source.engines.generator
    if generator and generator.target == "tensorrt-llm" and source.repository_manifest.engine_path is None:
        # TensorRT-LLM's backend needs an absolute path, and Triton's own download directory is unknown.
        fetched = copies / f"{run_directory.name}-repository"
        S3Repository(source.location).download(fetched, source.repository_manifest, on_message)
        return _from_directory(relocate_engine(fetched, repository), tokens)
    own = _MOUNT_VARIABLE not in os.environ
    variables = {_MOUNT_VARIABLE: str(copies)}
    parameters = engine_parameters(source)
    check_paths(parameters)
    return PreparedRepository(str(source.location), tokens, parameters, variables, copies if own else None)


def engine_parameters(source: ServingSource) -> dict[str, str]:
    """Return the parameters of `tensorrt_llm` in an assembled repository; empty for engine directories and encoders.

    Paths in them are those of the place for which it was assembled. Raises DeployError for an unreadable repository.
    """
    if source.repository_manifest is None or source.engines.generator is None:
        return {}
    if isinstance(source.location, Path):
        return _parameters(model_configs.load(source.location)[ENGINE_MODEL])
    name = f"{ENGINE_MODEL}/config.pbtxt"
    content = S3Repository(source.location).read(name)
    return _parameters(model_configs.parse(content, f"{source.location}/{name}"))


def _from_directory(repository: Path, tokens: int | None) -> PreparedRepository:
    return _with_parameters(repository, tokens, model_configs.load(repository))


def _with_parameters(repository: Path, tokens: int | None, configs: model_configs.Configs) -> PreparedRepository:
    parameters = _parameters(configs[ENGINE_MODEL]) if ENGINE_MODEL in configs else {}
    check_paths(parameters)
    return PreparedRepository(str(repository), tokens, parameters)


def _parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def _refuse_options(where: Path | S3Address, options: DeploymentOptions) -> None:
    names = [*(name for name in given_options(options) if name != "encoders"), *given_options(options.encoders)]
    if unused := [option_name(name) for name in names]:
        raise invalid(
            f"{where} is an assembled repository, which has its options already; leave {', '.join(unused)} out, or"
            " assemble it again."
        )


def _check_space(where: S3Address, card: RepositoryManifest, copies: Path) -> None:
    free = shutil.disk_usage(copies).free
    if card.total_bytes > free:
        with contextlib.suppress(OSError):
            copies.rmdir()
        raise DeployError(
            f"{where} takes {card.total_bytes / 1e9:.3g} GB and the disk of {copies} has {free / 1e9:.3g} GB left; name"
            f" a larger place with {_MOUNT_VARIABLE}.",
            "disk_full",
        )
