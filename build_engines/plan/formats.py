"""The formats of weights and of the KV cache: their sizes, and the GPUs that support them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from build_engines.errors import BuildError, invalid
from build_engines.plan.parameters import ParameterCounts


@dataclass(frozen=True)
class WeightFormat:
    """Bytes per parameter: of the layers' matrices (`linear`), embedding and output (`tables`), and the `rest`.

    `linear` includes the scales of groups; `channel` is the bytes of scales per row of a matrix. `min_sm`: the lowest
    compute capability of GPUs that support the format (89 is 8.9).
    """

    name: str
    linear: float
    channel: float = 0.0
    tables: float = 2.0
    rest: float = 2.0
    min_sm: int = 80

    def layers_bytes(self, parameters: ParameterCounts) -> int:
        """Return the bytes of all weights except embedding and output."""
        return int(parameters.linear * self.linear + parameters.channels * self.channel + parameters.other * self.rest)

    def table_bytes(self, numbers: int) -> int:
        return int(numbers * self.tables)

    def checkpoint_bytes(self, parameters: ParameterCounts) -> int:
        """Return the bytes of all weights in the files."""
        return self.layers_bytes(parameters) + self.table_bytes(parameters.embedding + parameters.output)

    def of_file(self, size: int, parameters: ParameterCounts) -> WeightFormat:
        """Return the format in proportion, so that all weights are a file of `size` bytes."""
        scale = size / self.checkpoint_bytes(parameters)
        names = ("linear", "channel", "tables", "rest")
        return replace(self, **{name: getattr(self, name) * scale for name in names})


@dataclass(frozen=True)
class KvFormat:
    """`number` is the bytes per number of a key or value. On GPUs, fp8 and int8 have one scale per layer."""

    name: str
    number: int
    min_sm: int = 80


# TensorRT-LLM (docs/source/reference/precision.md): embedding, output matrix and normalizations stay in 16 bits
# (the exporter logs "Disable lm_head quantization for TRT-LLM export"). Weight-only formats have a 16-bit
# scale for each channel, SmoothQuant a 32-bit one; AWQ one of 16 bits for each group of 128 (`--awq_block_size 128`);
# NVFP4 one of 8 bits for each 16 numbers. Compute capabilities: Transformer Engine's support matrix.
GPU_WEIGHTS = {
    fmt.name: fmt
    for fmt in (
        WeightFormat("bf16", 2.0),
        WeightFormat("fp16", 2.0),
        WeightFormat("fp8", 1.0, min_sm=89),
        WeightFormat("int8_sq", 1.0, channel=4.0),
        WeightFormat("int8_wo", 1.0, channel=2.0),
        WeightFormat("int4_wo", 0.5, channel=2.0),
        WeightFormat("int4_awq", 0.5 + 2 / 128),
        WeightFormat("w4a8_awq", 0.5 + 2 / 128, min_sm=89),
        WeightFormat("nvfp4", 0.5 + 1 / 16, min_sm=100),
    )
}
GPU_KV = {
    fmt.name: fmt for fmt in (KvFormat("bf16", 2), KvFormat("fp16", 2), KvFormat("fp8", 1, 89), KvFormat("int8", 1))
}

# NNCF, as build_engines.openvino.export calls it: int8 applies to all matrices, with a 16-bit scale and an 8-bit zero
# point per row; int4 has these per group of 128, and leaves embedding and output at int8.
OPENVINO_WEIGHTS = {
    fmt.name: fmt
    for fmt in (
        WeightFormat("fp32", 4.0, tables=4.0, rest=4.0),
        WeightFormat("bf16", 2.0),
        WeightFormat("fp16", 2.0),
        WeightFormat("int8", 1.0, channel=3.0, tables=1.0),
        WeightFormat("int4", 0.5 + 2.5 / 128, tables=1.0),
    )
}
OPENVINO_KV = {
    fmt.name: fmt for fmt in (KvFormat("u8", 1), KvFormat("f16", 2), KvFormat("bf16", 2), KvFormat("f32", 4))
}

_ALIASES = {"int8": "int8_wo", "int4": "int4_awq", "awq": "int4_awq", "float16": "fp16", "bfloat16": "bf16"}


def weight_format(name: str, *, openvino: bool) -> WeightFormat:
    """Return the format `name` ("int4-awq" is "int4_awq"); raise BuildError (`invalid_parameter`) if unknown."""
    formats = OPENVINO_WEIGHTS if openvino else GPU_WEIGHTS
    plain = name.strip().lower().replace("-", "_")
    if plain not in formats and not openvino:
        plain = _ALIASES.get(plain, plain)
    if plain not in formats:
        raise _unknown("precision", name, formats, openvino)
    return formats[plain]


def kv_format(name: str, *, openvino: bool) -> KvFormat:
    """Return the KV cache format `name`; raise BuildError (`invalid_parameter`) if unknown."""
    formats = OPENVINO_KV if openvino else GPU_KV
    plain = name.strip().lower()
    if plain not in formats:
        raise _unknown("kv-cache-precision", name, formats, openvino)
    return formats[plain]


def _unknown(option: str, name: str, choices: Iterable[str], openvino: bool) -> BuildError:
    target = "the target openvino" if openvino else "GPUs"
    return invalid(f"--{option} {name!r} is not known for {target}; choose one of {', '.join(choices)}.")
