"""What the parts of a job's specification have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from inflight.batch.storage.addresses import absolute_address
from inflight.batch.storage.secret_address import masked

Address = Annotated[str, AfterValidator(absolute_address)]
"""A path, an address of fsspec, or a database URL; made absolute."""


class StrictModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Addressed(StrictModel):
    address: Address

    @property
    def shown(self) -> str:
        """The address for messages, without secrets."""
        return masked(self.address)


def setting(default: Any, description: str, **bounds: Any) -> Any:
    return Field(default=default, description=description, **bounds)
