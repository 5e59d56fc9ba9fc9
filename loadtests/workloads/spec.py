"""What a workload is made of, as it is asked for."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class WorkloadSpec(BaseModel):
    """Where prompts come from, and how long they and their answers are."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    input_tokens: str = "128"
    """Tokens of a prompt: a number or a distribution, such as normal:128,32."""
    output_tokens: str = "64"
    """Tokens of an answer at most: a number or a distribution."""
    tokens_per_word: Annotated[float, Field(ge=0.1, le=20.0)] = 1.3
    """How many tokens a word of a made prompt is taken for, where no tokenizer is given."""
