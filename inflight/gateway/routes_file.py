"""The routes file: names under which applications reach several targets. A gateway reads it again when it changes."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from inflight_client import Address, InflightError
from inflight_client.validation import shorten
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from inflight.common.schema.validation_errors import problem
from inflight.common.schema.yaml_values import load_values
from inflight.gateway.checks.specs import CheckSpec, check_list
from inflight.gateway.key_file import FileStamp
from inflight.gateway.ladder import LadderSpec

logger = logging.getLogger("inflight.gateway")

CHECK_SECONDS = 0.5
"""Between looks at the file."""
_MAX_BYTES = 1 << 20
_Share = Annotated[float, Field(gt=0, le=1)]
_Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^\S(.*\S)?$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetSpec(_Strict):
    """Where requests go: to a model, on every server that has it; to one server; or to a model of one server."""

    model: _Name | None = None
    server: _Name | None = None

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.model is None and self.server is None:
            raise ValueError("a target has a model, a server, or both; add one of them")
        if self.server is not None:
            Address.parse(self.server.partition(",metrics=")[0]).api_key()
        return self

    @property
    def name(self) -> str:
        return " at ".join(filter(None, (self.model, self.server)))


class WeightedTarget(TargetSpec):
    weight: float = Field(1.0, ge=0, le=1e6)


class Canary(TargetSpec):
    """Gets this share of a route's requests."""

    share: _Share


class Shadow(TargetSpec):
    """Gets copies of this share of a route's requests; its answers go to a file of JSON lines."""

    share: _Share = 1.0
    file: str = Field(min_length=1)


class Route(_Strict):
    """The targets of a name."""

    targets: tuple[WeightedTarget, ...] = Field(min_length=1, max_length=100)
    canary: Canary | None = None
    shadow: Shadow | None = None
    tiers: Mapping[Literal["priority", "flex"], TargetSpec] = Field(default_factory=dict)
    """Requests of a `service_tier` go there first."""
    ladder: LadderSpec | None = None
    """What requests get while the route is overloaded."""
    cache: bool = False
    """Whether the response cache answers its requests."""

    @model_validator(mode="after")
    def _has_weight(self) -> Self:
        if not any(each.weight for each in self.targets):
            raise ValueError("all weights are 0; give at least one target a greater one")
        names = [each.name for each in self.targets]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"the target {twice} is there twice; add its weights up")
        return self

    @property
    def specs(self) -> tuple[TargetSpec, ...]:
        """All targets."""
        return (*self.targets, *filter(None, (self.canary, self.shadow)), *self.tiers.values())

    def order(self, request_id: str, tier: str | None = None) -> list[TargetSpec]:
        """Return the targets in the order in which a request tries them, always the same for its id.

        Each is first for its share of the ids: that of its weight, or of the canary. Weight 0: after all others.
        """
        order: list[TargetSpec] = [*sorted(self.targets, key=lambda each: _rank(request_id, each))]
        if self.canary is not None and _fraction(request_id, "canary") < self.canary.share:
            order.insert(0, self.canary)
        if special := self.tiers.get(tier):  # type: ignore[call-overload]
            order.insert(0, special)
        return order

    def shadow_of(self, request_id: str) -> Shadow | None:
        """Return the shadow target if this request is one of its share."""
        return self.shadow if self.shadow and _fraction(request_id, "shadow") < self.shadow.share else None


class RoutesFile(_Strict):
    routes: dict[_Name, Route] = Field(default_factory=dict, max_length=1000)
    checks: tuple[CheckSpec, ...] = Field(default=(), max_length=100)
    """Of what models read and write."""

    @model_validator(mode="after")
    def _leads_to_models(self) -> Self:
        """A target is a model: a name that only a route has would lead in circles."""
        own = {name for name, route in self.routes.items() if name not in (each.model for each in route.specs)}
        for name, route in self.routes.items():
            named = [each.model for each in route.specs if each.server is None]
            named += [rung.model for rung in (route.ladder.rungs if route.ladder else ())]
            if wrong := next((each for each in named if each in own), None):
                raise ValueError(f"routes.{name} has the route {wrong} as a target; name models of servers instead")
        check_list(self.checks)
        return self


def _fraction(request_id: str, salt: str) -> float:
    """Return a number from 0 to 1, the same for every process, evenly spread over request ids."""
    digest = hashlib.blake2b(f"{salt}\0{request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def _rank(request_id: str, target: WeightedTarget) -> float:
    """Weighted rendezvous hashing: without a target, only the requests go elsewhere that were its own."""
    return -math.log(_fraction(request_id, target.name) or 1e-300) / target.weight if target.weight else math.inf


def read_routes(path: Path) -> RoutesFile:
    """Return what a file has. Raises InflightError (`invalid_parameter`) with one sentence."""
    return _read(path)[0]


def _read(path: Path) -> tuple[RoutesFile, str]:
    """Return what a file has, and its SHA-256."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _invalid(f"the routes file {path} has more than {_MAX_BYTES} bytes; shorten it")
        content = path.read_bytes()
        values = load_values(content.decode())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise _invalid(f"the routes file {path} can't be read ({why}); check the path") from None
    except (yaml.YAMLError, ValueError) as error:
        raise _invalid(f"the routes file {path} is not valid YAML: {' '.join(str(error).split())}") from None
    try:
        return RoutesFile.model_validate(values), hashlib.sha256(content).hexdigest()
    except (ValidationError, InflightError) as error:
        raise _invalid(f"in the routes file {path}, {_sentence(error)}") from None


def _sentence(error: ValidationError | InflightError) -> str:
    if isinstance(error, InflightError):
        return str(error)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{where} is unknown; remove it, or see docs/routes.md for the fields that there are"
    if first["type"].startswith("union_tag"):
        return f"{where} must have a kind: deny, pii, size, classifier or hook"
    if first["type"] == "missing":
        return f"{where} is missing; add it"
    if first["type"] == "value_error":
        return f"{where}: {problem(first)}" if where else problem(first)
    value: Any = first["input"]
    return f"{where or 'the file'} is {shorten(value)}; {problem(first)}"


def _invalid(message: str) -> InflightError:
    return InflightError(message, "invalid_parameter")


class Routes:
    """The routes of a running gateway. A changed file that is wrong is logged once, and the old routes stay."""

    def __init__(self, path: Path | None) -> None:
        """Read the file; None: no routes. Raises InflightError."""
        self.path = path
        self._file = RoutesFile()
        self.sha256: str | None = None
        """Of the file that has the current routes."""
        if path:
            self._file, self.sha256 = _read(path)
        self._stamp = self._stamp_of_file()
        self._next_check = time.monotonic() + CHECK_SECONDS

    @property
    def current(self) -> Mapping[str, Route]:
        """The routes by their names."""
        if self.path is not None and time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + CHECK_SECONDS
            if (stamp := self._stamp_of_file()) != self._stamp:
                self._stamp = stamp
                self._read(self.path)
        return self._file.routes

    def checks(self) -> Sequence[CheckSpec]:
        """Return the checks, the same object as long as they are the same."""
        return self._file.checks if self.current is not None else ()

    def located(self, file: str) -> Path:
        """Return the path of a file that a route names: a relative one starts at the folder of the routes."""
        return (self.path.absolute().parent if self.path else Path()) / Path(file).expanduser()

    def _read(self, path: Path) -> None:
        try:
            self._file, self.sha256 = _read(path)
            logger.info("%s was read again: %d routes.", path, len(self._file.routes))
        except InflightError as error:
            logger.error("The routes stay as they were: %s", error)

    def _stamp_of_file(self) -> FileStamp | None:
        try:
            return FileStamp.of(self.path.stat()) if self.path else None
        except OSError:
            return None
