"""Options of `inflight build --target llmapi`: arguments of `tensorrt_llm.LLM`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

TARGET = "llmapi"


def llmapi_options(command: Any) -> Any:
    """Add `--llm-arguments` and `--llm-argument` to a command; `llmapi_settings` reads them."""
    file = click.option(
        "--llm-arguments",
        type=click.Path(path_type=Path),
        help="llmapi: a YAML file with arguments of tensorrt_llm.LLM; see docs/llmapi.md.",
    )
    one = click.option(
        "--llm-argument",
        multiple=True,
        metavar="NAME=VALUE",
        help="llmapi: one such argument, which overrides the file (repeatable): kv_cache_config.max_tokens=65536.",
    )
    return file(one(command))


def llmapi_settings(target: str, llm_arguments: Path | None, llm_argument: tuple[str, ...]) -> object:
    """Return the target's settings from its options; None for another target.

    Raises click.UsageError for arguments that the target or the library does not have.
    """
    if target != TARGET:
        if llm_arguments is not None or llm_argument:
            raise click.UsageError(
                f"--llm-arguments and --llm-argument are for --target {TARGET}, not {target}; leave them out."
            )
        return None
    from build_engines.errors import BuildError
    from build_engines.llmapi.arguments_file import read_arguments

    try:
        return read_arguments(llm_arguments, llm_argument)
    except BuildError as error:
        raise click.UsageError(str(error)) from error
