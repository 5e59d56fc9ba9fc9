"""Options of an engine to build, shared by `build`, `serve`, `pull` and `rm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import click

from build_engines.manifest import TARGETS
from build_engines.target import (
    ENCODER_PRECISIONS,
    PRECISIONS,
    SEQ2SEQ_PRECISIONS,
    BuildOptions,
    check_precisions,
)
from inflight.commands.options.usage import usage_errors

AUTO = "auto"
"""The target's choice, as without the option."""
Option = Callable[[Any], Any]
PRECISION_HELP = (
    "Weight precision. openvino: auto (bf16 on a processor with AMX, otherwise int8; for encoders fp32), bf16, fp16, "
    "fp32 (same tokens as transformers), int8, int4. tensorrt-llm: bf16, fp16, fp32, and fp8 and the others after it. "
    "tensorrt: fp16 (default), bf16, fp32. ctranslate2: auto (that of the weights), fp32, bf16, int8."
)


class TargetPrecision(click.Choice[str]):
    """A precision of any target in `precisions`; the error for a wrong one lists those of the chosen target."""

    def __init__(self, precisions: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(list(dict.fromkeys(chain.from_iterable(precisions.values()))))
        self._precisions = precisions

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        target = ctx.params.get("target") if ctx is not None else None
        choices = self._precisions.get(target or "", self.choices)
        return f"{value!r} is not one of {', '.join(choices)}" + (f" for --target {target}." if target else ".")


TARGET_HELP = (
    "Target of the engine to build.  [default: openvino; ctranslate2 for models with an encoder and a decoder]"
)


def target_option(help: str = TARGET_HELP) -> Option:
    return click.option("--target", type=click.Choice(TARGETS), is_eager=True, help=help)


def precision_option(help: str) -> Option:
    of_targets = SEQ2SEQ_PRECISIONS | ENCODER_PRECISIONS | PRECISIONS
    precisions = {target: (AUTO, *names) for target, names in of_targets.items()}
    return click.option(
        "--precision",
        type=TargetPrecision(precisions),
        help=f"{help}  [default: {AUTO}]",
        callback=lambda ctx, param, value: None if value == AUTO else value,
    )


def revision_option(help: str = "Branch, tag or commit of a model of the hub.  [default: main]") -> Option:
    return click.option("--revision", help=help)


def check_precision(options: BuildOptions) -> None:
    """Refuse, as a usage error, a precision that the target does not support."""
    with usage_errors():
        check_precisions(options)
