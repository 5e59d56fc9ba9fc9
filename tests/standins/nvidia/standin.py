"""A stand-in for NVIDIA's programs in tests: what the scripts beside this file share. Nothing here computes a model.

Each script parses its arguments with the flag table of the program that it replaces, prints lines like that
program's, and writes files of the same names and configs of the same form. What is on the machine, and what goes
wrong, is in a JSON file that STANDIN_NVIDIA names.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

FLAGS = Path(__file__).resolve().parents[2] / "build_engines" / "tensorrt_llm" / "flags"
ENGINE_MAGIC = b"STAND-IN ENGINE "
_TYPES = {"str": str, "int": int, "float": float}
_KNOWN = ("action", "choices", "const", "default", "dest", "nargs", "required")


def settings() -> dict[str, Any]:
    """Return the test's wishes: `gpus`, `versions`, `fail` ("build:killed") and `image_of_docker`."""
    read: dict[str, Any] = json.loads(Path(os.environ["STANDIN_NVIDIA"]).read_text())
    return read


def parser_of(table: str) -> argparse.ArgumentParser:
    """Return upstream's parser as its flag table describes it; abbreviations are allowed, as upstream allows them."""
    parser = argparse.ArgumentParser(prog=table)
    for flag in json.loads((FLAGS / f"{table}.json").read_text())["flags"]:
        options = {name: flag[name] for name in _KNOWN if name in flag}
        if "type" in flag:
            options["type"] = _TYPES[flag["type"]]
        parser.add_argument(*flag["names"], **options)
    return parser


def arguments_of(table: str) -> argparse.Namespace:
    """Parse the script's arguments as upstream does, and end as it does where it asserts what they are."""
    read = parser_of(table).parse_args()
    for name, value in json.loads((FLAGS / f"{table}.json").read_text()).get("asserts", {}).items():
        if getattr(read, name) != value:
            sys.exit(f"AssertionError: {name} {getattr(read, name)} is not supported.")
    return read


def program_tables() -> dict[str, str]:
    """Return the table of each program, by the program's path in the examples ("trtllm-build" for itself)."""
    return {json.loads(path.read_text())["program"]: path.stem for path in sorted(FLAGS.glob("*.json"))}


def say(line: str) -> None:
    print(f"[11/21/2026-12:00:00] [TRT-LLM] [I] {line}", flush=True)


def warn(line: str) -> None:
    print(f"[11/21/2026-12:00:00] [TRT-LLM] [W] {line}", flush=True)


def warn_as_upstream(program: str) -> None:
    """Print what every program of the engine line prints since February 2026."""
    print(
        f"/app/tensorrt_llm/_deprecation.py:31: FutureWarning: LEGACY WARNING: {program} belongs to the TensorRT "
        "engine workflow, an Error-prone one that will be removed.\n  warnings.warn(message, FutureWarning)",
        file=sys.stderr,
        flush=True,
    )


def fail_if_asked(step: str, out: Path) -> str:
    """Do what the test wishes for this step: die, fill the disk or wait. Return the other wishes as they are."""
    wished, _, how = str(settings().get("fail", "")).partition(":")
    if wished != step:
        return ""
    if how == "exit":
        print("Traceback (most recent call last):\nRuntimeError: CUDA error: an illegal memory access", file=sys.stderr)
        sys.exit(1)
    if how == "killed":
        (out / "half").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "disk_full":
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"0" * 4096)
    if how == "slow":
        (out / "started").write_text(str(os.getpid()))
        time.sleep(600)
    return how


def write_checkpoint(
    out: Path, source: Path, dtype: str, algorithms: tuple[str | None, str | None], sizes: tuple[int, int]
) -> None:
    """Write a TensorRT-LLM checkpoint's config.json and one file for each rank; no weights are in them."""
    config = json.loads((source / "config.json").read_text())
    tensor_parallel, pipeline_parallel = sizes
    world = tensor_parallel * pipeline_parallel
    out.mkdir(parents=True, exist_ok=True)
    written = {
        "architecture": config["architectures"][0],
        "dtype": dtype,
        "num_hidden_layers": config.get("num_hidden_layers", config.get("n_layer")),
        "num_attention_heads": config.get("num_attention_heads", config.get("n_head")),
        "num_key_value_heads": config.get("num_key_value_heads"),
        "hidden_size": config.get("hidden_size", config.get("n_embd")),
        "vocab_size": config["vocab_size"],
        "max_position_embeddings": config.get("max_position_embeddings", config.get("n_positions")),
        "quantization": {"quant_algo": algorithms[0], "kv_cache_quant_algo": algorithms[1]},
        "mapping": {"world_size": world, "tp_size": tensor_parallel, "pp_size": pipeline_parallel},
    }
    (out / "config.json").write_text(json.dumps(written, indent=4))
    for rank in range(world):
        (out / f"rank{rank}.safetensors").write_bytes(b"no weights" * 100)


def read_engine(path: Path) -> dict[str, Any]:
    """Return the head of a stand-in's engine file: sm, tensorrt_llm, tensorrt and rank."""
    head = path.read_bytes().split(b"\n", 1)[0]
    if not head.startswith(ENGINE_MAGIC):
        raise ValueError(f"{path} was not written by the stand-in for trtllm-build")
    read: dict[str, Any] = json.loads(head.removeprefix(ENGINE_MAGIC))
    return read
