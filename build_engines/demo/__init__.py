"""A small trained checkpoint for trying `inflight` without access to the hub.

Importing the package does not import torch, so clients can use its prompts.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable

from build_engines.demo.corpus import (
    Attributes,
    describe,
    example_prompts,
    format_prompt,
    unseen_attribute_sets,
)

__all__ = [
    "Attributes",
    "describe",
    "example_prompts",
    "format_prompt",
    "make_demo_checkpoint",
    "unseen_attribute_sets",
]


def make_demo_checkpoint(
    out: pathlib.Path, *, seed: int = 0, report: Callable[[str], None] = lambda line: None
) -> None:
    """Train a small Llama on the demo corpus and write it into the empty directory `out` as a checkpoint.

    This takes about a minute on two cores. `report` gets a line of text every few seconds; the last one is the quality
    on unseen attribute sets. The same seed on the same machine gives the same checkpoint.

    Raises OSError if `out` can't be written; files written until then stay.
    """
    from build_engines.demo.quality import greedy_answers, measure_quality
    from build_engines.demo.tokenizer import load_tokenizer
    from build_engines.demo.training import train_checkpoint

    train_checkpoint(out, seed=seed, report=report)
    report(str(measure_quality(lambda prompts: greedy_answers(out, prompts), load_tokenizer(out), seed=seed)))
