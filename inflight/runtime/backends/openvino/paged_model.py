"""A model on OpenVINO with paged attention: one forward pass for any mix of prompts' chunks and single tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino.opset13 as ops
from numpy.typing import NDArray
from openvino._offline_transformations import paged_attention_transformation

from inflight.runtime.backends.openvino.lora import MASK, add_adapters, read_adapter

BLOCK_TOKENS = 32
"""Tokens of a KV block on the CPU device."""

_MODEL = "openvino_model.xml"
_SAMPLED = "sampled_tokens"
_STATES = "_state_table."
"""In the names of inputs that hold the states of convolutions, a row for each KV block: that behind its last token."""


@dataclass(frozen=True)
class Chunk:
    """Tokens of one sequence to compute: its next ones behind `past` computed tokens, and its KV blocks."""

    tokens: Sequence[int]
    past: int
    blocks: Sequence[int]
    sampled: int = 1
    """Behind how many of its last tokens to return logits."""
    adapter: int = 0
    """The number of its LoRA adapter; 0 for none."""


class PagedModel:
    """An engine directory's model with `blocks` KV blocks. Not thread-safe.

    Raises ValueError for an adapter that can't be read or doesn't fit the model.
    """

    def __init__(
        self,
        engine_dir: str,
        blocks: int,
        properties: Mapping[str, Any],
        adapters: Sequence[str] = (),
        caches: Sequence[Any] = (),
        *,
        reproducible: bool = False,
    ) -> None:
        """`caches` are those of the same model with other adapters, which goes on in it.

        With `reproducible`, what is computed for a chunk does not depend on the others: two more tokens, in a block of
        their own, keep the library from the kernels that it has for single tokens and for few sequences.
        """
        self._company = (Chunk((0, 0), 0, (blocks,), 2),) if reproducible else ()
        blocks += len(self._company)
        core = openvino.Core()
        model = core.read_model(f"{engine_dir}/{_MODEL}")
        paged_attention_transformation(model)
        head, sampled = _gather_sampled(model)
        self._masks = None
        if adapters:
            read = {path: read_adapter(Path(path)) for path in adapters}
            rows = add_adapters(model, read, head, sampled)
            self._masks = rows[[0, *(1 + list(read).index(path) for path in adapters)]]  # one may be given twice
        model.validate_nodes_and_infer_types()
        compiled = core.compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY", **properties})
        self._request = compiled.create_infer_request()
        self._inputs = {name for port in compiled.inputs for name in port.get_names()}
        self.caches = list(caches)
        names = []
        self._beginning = blocks  # behind the rows of the blocks is one for the state before any token
        for port in compiled.inputs:
            name = port.get_any_name()
            if "_cache." in name or _STATES in name:
                names.append(name)
                if not caches:  # the plugin chooses type and shape, with room for scales in u8
                    shape = [blocks + 1, *(dimension.get_length() for dimension in list(port.partial_shape)[1:])]
                    shape[0] -= _STATES not in name
                    self.caches.append(openvino.Tensor(port.element_type, openvino.Shape(shape)))
                    self.caches[-1].data[blocks:] = 0
        self.has_states = any(_STATES in name for name in names)
        for name, cache in zip(names, self.caches, strict=True):
            self._request.set_tensor(name, cache)

    def copy_block(self, source: int, target: int) -> None:
        """Copy the keys and values of a block."""
        for cache in self.caches:
            cache.data[target] = cache.data[source]

    def forward(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        """Compute the chunks; return the logits [sampled tokens, vocabulary], which the next call overwrites."""
        wanted = sum(chunk.sampled for chunk in chunks)
        chunks = [*chunks, *self._company]
        lengths = np.array([len(chunk.tokens) for chunk in chunks])
        past = np.array([chunk.past for chunk in chunks])
        ends = np.cumsum(lengths)
        used = -(-(past + lengths) // BLOCK_TOKENS)
        tokens = np.fromiter((token for chunk in chunks for token in chunk.tokens), np.int64, ends[-1])
        blocks = [block for chunk, count in zip(chunks, used.tolist(), strict=True) for block in chunk.blocks[:count]]
        begins = np.concatenate([[0], ends])
        sampled = [range(end - chunk.sampled, end) for chunk, end in zip(chunks, ends.tolist(), strict=True)]
        values = {
            "input_ids": tokens,
            "position_ids": np.arange(ends[-1]) - np.repeat(begins[:-1] - past, lengths),
            "past_lens": past.astype(np.int32),
            "subsequence_begins": begins.astype(np.int32),
            "block_indices": np.array(blocks, np.int32),
            "block_indices_begins": np.concatenate([[0], np.cumsum(used)]).astype(np.int32),
            "max_context_len": np.array((past + lengths).max(), np.int32),
            _SAMPLED: np.array([place for places in sampled for place in places], np.int64),
        }
        if self.has_states:
            values |= self._state_places(chunks, used.tolist(), values["past_lens"])
        if self._masks is not None:
            values[MASK] = self._masks[np.repeat([chunk.adapter for chunk in chunks], lengths)]
        for name, value in values.items():
            if name in self._inputs:
                self._request.set_tensor(name, openvino.Tensor(value))
        self._request.infer()
        logits: NDArray[np.float32] = self._request.get_output_tensor(0).data
        return logits.reshape(-1, logits.shape[-1])[:wanted]

    def _state_places(
        self, chunks: Sequence[Chunk], used: Sequence[int], past: NDArray[np.int32]
    ) -> dict[str, NDArray[np.int32]]:
        """Return from which row each chunk reads its state, and the rows behind, one for each block it reaches."""
        rows = [
            [
                chunk.blocks[(chunk.past - 1) // BLOCK_TOKENS] if chunk.past else self._beginning,
                *chunk.blocks[chunk.past // BLOCK_TOKENS : count],
            ]
            for chunk, count in zip(chunks, used, strict=True)
        ]
        return {
            "la.block_indices": np.array([row for own in rows for row in own], np.int32),
            "la.block_indices_begins": np.cumsum([0, *map(len, rows)], dtype=np.int32),
            "la.past_lens": past,
            "la.cache_interval": np.full(len(rows), BLOCK_TOKENS, np.int32),
        }


def _gather_sampled(model: Any) -> tuple[Any, Any]:
    """Compute logits for the chosen tokens alone; return the head, which takes longer than a layer, and the input."""
    node = model.get_results()[0].input_value(0).get_node()
    while node.get_type_name() != "MatMul":  # behind the head may be a soft cap
        node = node.input_value(0).get_node()
    sampled = ops.parameter([-1], openvino.Type.i64, name=_SAMPLED)
    sampled.output(0).get_tensor().set_names({_SAMPLED})
    chosen = ops.gather(node.input_value(0), sampled, ops.constant(np.int64(0)))
    node.input(0).replace_source_output(chosen.output(0))
    model.add_parameters([sampled])
    return node, sampled
