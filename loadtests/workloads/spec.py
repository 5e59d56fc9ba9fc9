"""What a workload is made of, as it is asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Scale = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]


class WorkloadSpec(BaseModel):
    """Where prompts come from, and how long they and their answers are.

    Prompts are made, of drawn lengths, unless `prompts` or `trace` names a file. A file is a path, or `sample:NAME` for
    one of those in `loadtests/samples`. Lengths, turns and times are numbers or distributions, as
    `loadtests.workloads.distributions` reads them. All fields, with examples, stand in docs/workloads.md.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    input_tokens: str = "128"
    """Tokens per synthetic prompt, without the shared prefix: 128 or normal:128,32; exact only with a tokenizer."""
    output_tokens: str = "64"
    """Tokens of an answer at most, where no file says it: a number or a distribution."""
    max_input_tokens: Count | None = None
    """Made prompts are cut to so many tokens, and conversations end before they get longer."""
    max_output_tokens: Count | None = None
    """No answer may be longer, whatever a file or a distribution says."""
    tokenizer: str | None = None
    """The model's checkpoint's or engine's directory, or tokenizer.json: made prompts have exactly their tokens."""
    tokens_per_word: Annotated[float, Field(ge=0.1, le=20.0, allow_inf_nan=False)] = 1.0
    """Without a tokenizer: how many tokens a word is taken for: 1, or 2 to 4 where the vocabulary is small."""
    prompt_format: Literal["auto", "text", "messages"] = "auto"
    """Send plain text, or chat messages; auto: as the file has them, and made prompts as text."""

    prefix_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Tokens that made prompts have in common, before their own."""
    prefix_count: Count = 1
    """How many different prefixes there are; each is as likely as the others."""
    prefix_fraction: Fraction = 1.0
    """The share of sessions that begin with a prefix."""

    turns: str = "1"
    """Turns of a made conversation: a number or a distribution. Each turn holds those before, answers included."""
    turn_tokens: str | None = None
    """Tokens that the user adds in each turn after the first; unset: as input_tokens."""
    think_time: str = "0"
    """Seconds from the end of an answer to the next turn: a number or a distribution."""

    cancel_fraction: Fraction = 0.0
    """The share of requests whose client goes away before the end."""
    cancel_after: str = "1"
    """After how many seconds it goes away: a number or a distribution."""

    prompts: str | None = None
    """A file of prompts or conversations, JSON Lines."""
    order: Literal["file", "shuffled"] = "file"
    """The prompts as they stand in the file, or shuffled, in each round anew."""
    repeat: bool | None = None
    """Begin again when the file is through; unset: prompts are repeated, a trace is not."""

    trace: str | None = None
    """A file of a public trace: moments, and lengths of inputs and outputs."""
    trace_format: Literal["auto", "mooncake", "azure", "burstgpt"] = "auto"
    """How the trace is written; auto: seen by its first line."""
    trace_start: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Leave out so many seconds of the trace's beginning."""
    input_scale: Scale = 1.0
    """The trace's input lengths times so much."""
    output_scale: Scale = 1.0
    """The trace's output lengths times so much."""
    block_tokens: Count = 512
    """How many tokens each of a Mooncake trace's hash ids stands for."""
