"""Brings an assembled repository where it shall stand, a directory or S3: whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.manifest import FILE_NAME as ENGINE_FILE
from build_engines.whole_directory import refuse_foreign, whole_directory, writing
from inflight.deploy import card as cards
from inflight.deploy.assembly import Order, write_repository
from inflight.deploy.card import Card, is_repository
from inflight.deploy.errors import DeployError
from inflight.deploy.s3 import S3Repository
from inflight.deploy.s3_address import S3Address

_SAID = "repository"


@dataclass(frozen=True)
class Shipped:
    """The repository's card, and whether anything had to be written."""

    card: Card
    fresh: bool


def ship(order: Order, to: Path | S3Address, report: Callable[[str], None], *, force: bool = False) -> Shipped:
    """Write the repository to `to`, where one of inflight may stand already.

    One that was made of the same order and is whole is kept, unless `force`. A directory holds the old one until the
    new one is whole; on S3 whoever reads meanwhile is told that it is being written. Nothing goes but what the old one
    consists of. Raises BuildError and DeployError: `output_exists` for what is not ours, `invalid_parameter`,
    `disk_full`, `engine_damaged` and `storage_*`.
    """
    order.check()
    if isinstance(to, S3Address):
        return _to_s3(order, to, report, force)
    return _to_directory(replace(order, home=order.home or to.resolve()), to, report, force)


def _to_directory(order: Order, out: Path, report: Callable[[str], None], force: bool) -> Shipped:
    refuse_foreign(out, is_repository, _SAID)
    _refuse_inside(out)
    with writing(out, report):
        _refuse_strangers(out)
        if not force and is_repository(out) and (card := _unchanged(order, out, report)):
            return Shipped(card, fresh=False)
        _check_space(order, out)
        report(f"Copying {order.total_bytes / 1e6:,.1f} MB to {out}")
        with whole_directory(out, ours=is_repository, said=_SAID) as partial:
            card = write_repository(order, partial)
            _refuse_strangers(out)
        return Shipped(card, fresh=True)


def _to_s3(order: Order, to: S3Address, report: Callable[[str], None], force: bool) -> Shipped:
    repository = S3Repository(to)
    repository.refuse_foreign()
    try:
        with tempfile.TemporaryDirectory(prefix="inflight-assemble-") as stage:
            staged = Path(stage) / _SAID
            staged.mkdir()
            # The engine is only sent on, so links to it will do.
            card = write_repository(order, staged, put=os.symlink)
            sent = repository.upload(staged, card, report, force=force)
    except OSError as error:
        raise DeployError(
            f"The repository can't be made up in {tempfile.gettempdir()} ({error.strerror or error}); free space there,"
            " or name another place with TMPDIR.",
            "disk_full",
        ) from error
    return Shipped(card, fresh=sent > 0)


def _refuse_strangers(out: Path) -> None:
    """What people have put into a repository does not go with it."""
    found = cards.strangers(out) if is_repository(out) else []
    if found:
        raise DeployError(
            f"{out} holds {found[0]}, which its {cards.FILE_NAME} does not list; choose another --out, or take that"
            " away.",
            "output_exists",
        )


def _refuse_inside(out: Path) -> None:
    """Whoever replaces a repository or an engine must not come upon one inside it."""
    for place in out.resolve().parents:
        for name, said in ((cards.FILE_NAME, "the repository"), (ENGINE_FILE, "the engine directory")):
            if (place / name).is_file():
                raise DeployError(f"{out} lies inside {said} {place}; choose another --out.", "output_exists")


def _unchanged(order: Order, out: Path, report: Callable[[str], None]) -> Card | None:
    try:
        card = cards.verify(out, hashes=True)
    except DeployError as error:
        report(f"The repository that stands there can't be kept: {error}")
        return None
    return card if card.asked == order.digest() else None


def _check_space(order: Order, out: Path) -> None:
    free = shutil.disk_usage(out.resolve().parent).free
    if order.total_bytes > free:
        raise BuildError(
            f"The repository needs {order.total_bytes / 1e9:.3g} GB and the disk of {out} has {free / 1e9:.3g} GB left;"
            " free space or choose another --out.",
            "disk_full",
        )
