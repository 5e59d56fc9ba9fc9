"""What a workload is made of, as it is asked for."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class WorkloadSpec(BaseModel):
    """Where prompts come from, and how long they and their answers are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input_tokens: str = "128"
    output_tokens: str = "64"
