"""The specification of a workload."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Scale = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Task = Literal["generate", "embed", "rerank", "classify", "transcribe"]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
TEXT_LENGTHS = "lognormal:40,1.256,3..512"
"""Tokens of the texts of a corpus: median 40, 90th percentile 200."""


class WorkloadSpec(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """The task, the source of prompts or texts, and their lengths.

    Prompts are generated with random lengths unless `prompts` or `trace` names a file. A file is a path, or
    `sample:NAME` for one in `loadtests/samples`. Lengths, turns and times are numbers or distributions, in the syntax
    of `loadtests.workloads.distributions`. docs/workloads.md describes all fields, with examples.
    """

    task: Task = "generate"
    """What is asked of the server: an answer, a result for each of a request's texts, or an audio file's text."""
    texts_per_request: str = "1"
    """Texts to embed or classify, or documents to rerank, in a request: a number or a distribution."""
    text_tokens: str = TEXT_LENGTHS
    """Tokens per synthetic text, special tokens included: a number or a distribution."""
    query_tokens: str = "12"
    """Tokens of the synthetic query of a request to rerank: a number or a distribution."""

    input_tokens: str = "128"
    """Tokens per synthetic prompt, without the shared prefix: 128 or normal:128,32; exact only with a tokenizer."""
    output_tokens: str = "64"
    """Maximum tokens of an answer, unless a file sets it: a number or a distribution."""
    max_input_tokens: Count | None = None
    """Maximum prompt length: generated prompts are cut, and conversations end before they get longer."""
    max_output_tokens: Count | None = None
    """Maximum answer length, whatever a file or a distribution says."""
    tokenizer: str | None = None
    """Directory of the model's checkpoint or engine, or tokenizer.json: makes synthetic prompt lengths exact."""
    tokens_per_word: Annotated[float, Field(ge=0.1, le=20.0, allow_inf_nan=False)] = 1.0
    """Without a tokenizer: tokens per word; 1, or 2 to 4 for a small vocabulary."""
    prompt_format: Literal["auto", "text", "messages"] = "auto"
    """Send plain text or chat messages; auto: as in the file, and synthetic prompts as text."""

    prefix_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Tokens of a prefix that synthetic prompts share, before their own."""
    prefix_count: Count = 1
    """Number of different prefixes, each equally likely."""
    prefix_fraction: Fraction = 1.0
    """Fraction of sessions that begin with a prefix."""

    turns: str = "1"
    """Turns of a synthetic conversation: a number or a distribution. Each turn contains all earlier ones."""
    turn_tokens: str | None = None
    """Tokens that the user adds in each turn after the first; default: as input_tokens."""
    think_time: str = "0"
    """Think time: seconds from the end of an answer to the next turn, a number or a distribution."""

    cancel_fraction: Fraction = 0.0
    """Fraction of requests whose client disconnects before the end."""
    cancel_after: str = "1"
    """Seconds until such a client disconnects: a number or a distribution."""

    prompts: str | None = None
    """File of prompts or conversations, of texts for an encoder, or of paths of audio (JSON Lines)."""
    order: Literal["file", "shuffled"] = "file"
    """Send prompts in file order, or shuffled again in each round."""
    repeat: bool | None = None
    """Start again at the end of the file; default: prompts are repeated, a trace is not."""

    trace: str | None = None
    """File of a public trace: times, and lengths of inputs and outputs."""
    trace_format: Literal["auto", "mooncake", "azure", "burstgpt"] = "auto"
    """Format of the trace; auto: detected from its first line."""
    trace_start: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Seconds to skip at the start of the trace."""
    input_scale: Scale = 1.0
    """Factor for the trace's input lengths."""
    output_scale: Scale = 1.0
    """Factor for the trace's output lengths."""
    block_tokens: Count = 512
    """Tokens per hash id of a Mooncake trace."""
