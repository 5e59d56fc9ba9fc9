#!/usr/bin/env python3
"""A stand-in for TensorRT-LLM's convert_checkpoint.py of every family; it converts nothing.

Which family's it is says the folder in which it is called: examples/models/core/llama, for instance.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.standins.nvidia.standin import (
    arguments_of,
    fail_if_asked,
    program_tables,
    settings,
    warn_as_upstream,
    write_checkpoint,
)

WEIGHT_ONLY = {"int8": "W8A16", "int4": "W4A16"}


def main() -> None:
    warn_as_upstream("convert_checkpoint.py")
    print(settings()["versions"]["tensorrt_llm"], flush=True)
    called = Path(sys.argv[0]).absolute()
    program = "/".join(called.parts[called.parts.index("examples") :])
    read = vars(arguments_of(program_tables()[program]))
    source, out = Path(read["model_dir"]), Path(read.get("output_dir") or read["output_model_dir"])
    out.mkdir(parents=True, exist_ok=True)
    how = fail_if_asked("convert", out)
    for name in ("medusa_model_dir", "eagle_model_dir", "drafter_model_dir"):
        if read.get(name) and not (Path(read[name]) / "config.json").is_file():
            sys.exit(f"OSError: {read[name]} has no config.json")
    algorithm = WEIGHT_ONLY[read["weight_only_precision"]] if read.get("use_weight_only") else None
    sizes = (read.get("tp_size") or read.get("world_size") or 1, read.get("pp_size", 1))
    dtype = {"auto": "bfloat16"}.get(read["dtype"], read["dtype"])
    write_checkpoint(out, source, dtype, (algorithm, None), sizes)
    if how == "no_ranks":
        (out / "rank0.safetensors").unlink()
    print("Weights loaded. Total time: 00:00:01\nTotal time of converting checkpoints: 00:00:02", flush=True)


main()
