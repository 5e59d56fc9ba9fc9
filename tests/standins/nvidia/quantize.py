#!/usr/bin/env python3
"""A stand-in for TensorRT-LLM's examples/quantization/quantize.py; it quantizes nothing."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.standins.nvidia.standin import fail_if_asked, parser_of, say, settings, warn_as_upstream, write_checkpoint

ALGORITHMS = {
    "full_prec": None,
    "fp8": "FP8",
    "nvfp4": "NVFP4",
    "int8_sq": "W8A8_SQ_PER_CHANNEL",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
    "int8_wo": "W8A16",
    "int4_wo": "W4A16",
}
CACHES = {None: None, "fp8": "FP8", "int8": "INT8"}


def main() -> None:
    warn_as_upstream("quantize.py")
    arguments = parser_of("quantize").parse_args()
    if not settings()["gpus"]:
        sys.exit("OSError: GPU is required for inference.")
    if "cnn_dailymail" in arguments.calib_dataset and os.environ.get("HF_HUB_OFFLINE") == "1":
        sys.exit("OfflineModeIsEnabled: the calibration dataset can't be fetched")
    out = Path(arguments.output_dir)
    out.mkdir(parents=True, exist_ok=True)
    say(f"Initializing model from {arguments.model_dir}")
    say("Loading calibration dataset")
    say("Starting quantization...")
    fail_if_asked("quantize", out)
    say("Quantization done. Total time used: 1.00 s.")
    algorithms = (ALGORITHMS[arguments.qformat], CACHES[arguments.kv_cache_dtype])
    dtype = {"auto": "bfloat16"}.get(arguments.dtype, arguments.dtype)
    write_checkpoint(out, Path(arguments.model_dir), dtype, algorithms, (arguments.tp_size, arguments.pp_size))
    say(f"Quantized model exported to {out} \nTotal time used 1.00 s.")


main()
