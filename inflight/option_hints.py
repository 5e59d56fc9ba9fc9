"""What options of vLLM, Ollama, TGI and llama.cpp are called here."""

from __future__ import annotations

import re

import click

from inflight.common.suggestions import nearest

_OPTION = re.compile(r"--[a-z][a-z-]*(?:=\S+)?")
_LEAST_SIMILARITY = 0.8
_LENGTH = "--max-seq-len of `inflight build`, which sets the longest sequence of an engine"
_PRECISION = "--precision"
_GPUS = "--tensor-parallel of `inflight build --target tensorrt-llm`"
_MEMORY = "--kv-cache-tokens, or on GPUs `--set kv_cache_free_gpu_mem_fraction=0.9`"

OPTION_HINTS = {
    **dict.fromkeys(("--model", "--model-id", "--model-path", "--hf-repo"), "the argument MODEL, without an option"),
    **dict.fromkeys(("--max-model-len", "--ctx-size", "--num-ctx", "--max-total-tokens", "--context-length"), _LENGTH),
    **dict.fromkeys(("--tensor-parallel-size", "--num-shard"), _GPUS),
    "--pipeline-parallel-size": "--pipeline-parallel of `inflight build --target tensorrt-llm`",
    **dict.fromkeys(("--gpu-memory-utilization", "--cuda-memory-fraction", "--mem-fraction-static"), _MEMORY),
    **dict.fromkeys(("--dtype", "--quantization", "--quantize"), _PRECISION),
    "--kv-cache-dtype": "--kv-cache-precision of `inflight build`",
    **dict.fromkeys(("--max-num-seqs", "--max-concurrent-requests", "--parallel"), "--max-num-sequences"),
    **dict.fromkeys(("--max-num-batched-tokens", "--max-batch-prefill-tokens", "--batch-size"), "--max-num-tokens"),
    "--enable-prefix-caching": "nothing: prefixes are cached unless you pass --no-kv-cache-reuse",
    "--no-enable-prefix-caching": "--no-kv-cache-reuse",
    "--enable-chunked-prefill": "nothing: long prompts are always computed in parts of --max-num-tokens",
    "--enable-auto-tool-choice": "nothing: tools work where the format is known; --tool-call-parser names another one",
    "--api-key": "`inflight key add NAME`, which makes API keys",
    "--allowed-origins": "--cors-origin",
    "--chat-template": "the checkpoint's own template, which is part of the engine",
    "--enable-lora": "--lora ADAPTER, or --lora-dir DIRECTORY",
    "--lora-modules": "--lora ADAPTER",
    "--speculative-config": "--draft-engine or --prompt-lookup",
    "--enforce-eager": "nothing: there are no graphs to leave out",
    "--trust-remote-code": "no code of checkpoints: it is never run",
    "--max-logprobs": "nothing: requests may ask for 20 alternatives",
    "--hostname": "--host, and --gateway-host for the OpenAI API",
    "--download-dir": "the variable HF_HOME",
    "--disable-log-requests": "nothing: requests are logged only with --log-requests",
}
"""By the option that users of those know; "nothing" where there is nothing to set."""


def table() -> str:
    """Return the hints as a table in Markdown, options with the same one together."""
    names: dict[str, list[str]] = {}
    for name, hint in OPTION_HINTS.items():
        names.setdefault(hint, []).append(f"`{name}`")
    rows = (f"| {', '.join(options)} | {_as_code(hint)} |" for hint, options in names.items())
    return "\n".join(["| there | here |", "|---|---|", *rows])


def _as_code(hint: str) -> str:
    """Return a hint with its options as code, unless they are within a command."""
    parts = hint.split("`")
    parts[::2] = [_OPTION.sub(r"`\g<0>`", part) for part in parts[::2]]
    return "".join(part if place % 2 == 0 else f"`{part}`" for place, part in enumerate(parts))


def with_suggestion(error: click.NoSuchOption) -> click.NoSuchOption:
    """Return the error with the option to use here; of similar names only with a near one."""
    params = [] if error.ctx is None else error.ctx.command.params
    options = [name for each in params for name in each.opts if "-" in name]
    begun = [name for name in options if len(error.option_name) > 4 and name.startswith(error.option_name)]
    near = begun[0] if len(begun) == 1 else nearest(error.option_name, options, _LEAST_SIMILARITY)
    serves = any(isinstance(each, click.Argument) and each.name in ("model", "models", "checkpoint") for each in params)
    message, hint = error.message, OPTION_HINTS.get(error.option_name) if serves or near is None else None
    if hint is not None:
        option = hint.partition(" ")[0].rstrip(",")
        elsewhere = (
            " of `inflight serve`" if option.startswith("--") and option == hint and option not in options else ""
        )
        message, near = f"{message} Use {hint}{elsewhere}.", None
    return click.NoSuchOption(error.option_name, message, [near] if near else None, error.ctx)
