"""What a server is started with: a repository made of an engine directory, or one that stands assembled somewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from build_engines import manifest as engines
from build_engines.manifest import Manifest
from inflight.deploy import card as cards
from inflight.deploy import model_configs
from inflight.deploy.assembly import kv_cache_tokens, place_engine
from inflight.deploy.card import Card, is_repository
from inflight.deploy.errors import DeployError
from inflight.deploy.models import option
from inflight.deploy.repository import ENGINE_MODEL, DeploymentOptions, assemble
from inflight.deploy.s3 import S3Repository
from inflight.deploy.s3_address import S3Address, place_of
from inflight.deploy.tensorrtllm_rules import check_places

_MOUNT = "TRITON_AWS_MOUNT_DIRECTORY"
"""Where Triton copies the models of a repository on S3; without it, below /tmp, and a killed server's stay there."""


@dataclass(frozen=True)
class Source:
    """An engine directory, or with a `card` an assembled repository, in a directory or on S3; all of it was checked."""

    where: Path | S3Address
    manifest: Manifest
    card: Card | None = None


@dataclass(frozen=True)
class Deployment:
    """`repository` as Triton takes it, what goes into its environment, and the directory that a new start empties.

    `kv_cache_tokens` is None where the engine decides that itself. `parameters` are those of the engine's model.
    """

    repository: str
    kv_cache_tokens: int | None
    parameters: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    copies: Path | None = None

    def refresh(self) -> None:
        """Forget what an earlier life has copied."""
        if self.copies is not None:
            for left in self.copies.iterdir():
                shutil.rmtree(left, ignore_errors=True)


def find_source(place: str | Path, options: DeploymentOptions) -> Source:
    """Look at what shall be served: it is there, whole, and for this version.

    Raises BuildError as `build_engines.manifest.verify` does, and DeployError `engine_damaged`, `engine_foreign`,
    `invalid_parameter` (also for options to a repository, which has its own) and `storage_*`.
    """
    where = place_of(place)
    if isinstance(where, Path) and not is_repository(where):
        manifest = engines.verify(where)
        options.check(where, manifest)
        return Source(where, manifest)
    _refuse_options(where, options)
    card = S3Repository(where).card() if isinstance(where, S3Address) else cards.verify(where)
    card.check_version(str(where))
    if card.engine_path is not None and engines.verify(Path(card.engine_path)) != card.engine:
        raise DeployError(
            f"{where} was assembled for the engine {card.engine.name} of {card.engine.created}, and at"
            f" {card.engine_path} lies another one; put that engine there, or assemble the repository again.",
            "engine_foreign",
        )
    return Source(where, card.engine, card)


def lay_out(source: Source, options: DeploymentOptions, run: Path, report: Callable[[str], None]) -> Deployment:
    """Make the repository that Triton reads, in the run directory where it does not stand elsewhere.

    Raises DeployError `disk_full` and `storage_*`, and `invalid_parameter` for a path that is not on this machine.
    """
    repository = run / "repository"
    if source.card is None:
        assert isinstance(source.where, Path)
        configs = assemble(source.where, source.manifest, repository, options, engine_dir=source.where)
        return _with_parameters(repository, kv_cache_tokens(configs), configs)
    tokens = source.card.kv_cache_tokens
    if isinstance(source.where, Path):
        return _placed(place_engine(source.where.absolute(), repository), tokens)
    copies = Path(os.environ.get(_MOUNT) or run / "models").absolute()
    copies.mkdir(parents=True, exist_ok=True)
    _check_space(source.where, source.card, copies)
    if source.manifest.target == "tensorrt-llm" and source.card.engine_path is None:
        # Its backend takes no relative path, and nobody knows where Triton would copy the engine to.
        fetched = copies / f"{run.name}-repository"
        S3Repository(source.where).download(fetched, source.card, report)
        return _placed(place_engine(fetched, repository), tokens)
    own = _MOUNT not in os.environ
    variables = {_MOUNT: str(copies)}
    parameters = engine_parameters(source)
    check_places(parameters)
    return Deployment(str(source.where), tokens, parameters, variables, copies if own else None)


def engine_parameters(source: Source) -> dict[str, str]:
    """The parameters of the engine's model in an assembled repository; none of an engine directory.

    Paths among them are those of the place that it was assembled for. Raises DeployError as reading a repository does.
    """
    if source.card is None:
        return {}
    if isinstance(source.where, Path):
        return _parameters(model_configs.load(source.where)[ENGINE_MODEL])
    name = f"{ENGINE_MODEL}/config.pbtxt"
    content = S3Repository(source.where).read(name)
    return _parameters(model_configs.parse(content, f"{source.where}/{name}"))


def _placed(repository: Path, tokens: int | None) -> Deployment:
    return _with_parameters(repository, tokens, model_configs.load(repository))


def _with_parameters(repository: Path, tokens: int | None, configs: model_configs.Configs) -> Deployment:
    parameters = _parameters(configs[ENGINE_MODEL])
    check_places(parameters)
    return Deployment(str(repository), tokens, parameters)


def _parameters(config: Any) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def _refuse_options(where: Path | S3Address, options: DeploymentOptions) -> None:
    usual = DeploymentOptions()
    given = [option(one.name) for one in fields(options) if getattr(options, one.name) != getattr(usual, one.name)]
    if given:
        raise DeployError(
            f"{where} is an assembled repository, which has its options already; leave {', '.join(given)} out, or"
            " assemble it again.",
            "invalid_parameter",
        )


def _check_space(where: S3Address, card: Card, copies: Path) -> None:
    free = shutil.disk_usage(copies).free
    if card.total_bytes > free:
        with contextlib.suppress(OSError):
            copies.rmdir()
        raise DeployError(
            f"{where} takes {card.total_bytes / 1e9:.3g} GB and the disk of {copies} has {free / 1e9:.3g} GB left; name"
            f" a larger place with {_MOUNT}.",
            "disk_full",
        )
