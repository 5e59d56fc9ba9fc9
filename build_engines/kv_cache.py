"""The size of the paged KV cache, for the plan and for serving."""

from __future__ import annotations

from typing import Protocol

BLOCK = 32
"""Tokens of one block of the paged KV cache: TensorRT-LLM's default (`--tokens_per_block 32`) and OpenVINO's on
CPUs."""

_NUMBER_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "u8": 1, "fp8": 1, "int8": 1}


class ModelSizes(Protocol):
    """The sizes on which the cache depends."""

    @property
    def layers(self) -> int: ...
    @property
    def conv_layers(self) -> int: ...
    @property
    def conv_state(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def token_bytes(model: ModelSizes, precision: str) -> int:
    """Return the bytes of one token in the KV cache of all layers: a key and a value per layer and KV head.

    A layer that is a convolution (`conv_layers` of `layers`) has a state of `conv_state` numbers in 32 bits for each
    block instead.

    u8 has a scale and a zero point, 4 bytes each: for values by head and token, for keys by channel and block of 32
    tokens (openvinotoolkit/openvino#29023 lays a block out as [block size + 2 * sizeof(float), head size], #30166 makes
    it the default).
    """
    head = 2 * model.head_dim * _NUMBER_BYTES[precision]
    if precision == "u8":
        head += model.head_dim * 8 // BLOCK + 8
    states = model.conv_layers * model.conv_state * 4
    return (model.layers - model.conv_layers) * model.kv_heads * head + -(-states // BLOCK)


def round_up_to_blocks(tokens: int) -> int:
    """Return the tokens rounded up to whole blocks."""
    return -(-tokens // BLOCK) * BLOCK
