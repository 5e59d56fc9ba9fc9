"""The inputs of an encoder's graph."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.runtime.backends.openvino.encoder import OpenVinoEncoder
from inflight.runtime.encoders.encoder import EncoderInput
from inflight.runtime.encoders.manifest import EncoderDescription
from inflight.runtime.encoders.padding import model_inputs


def description(padding_side: str) -> EncoderDescription:
    return EncoderDescription(
        target="openvino",
        task="embed",
        inputs=("input_ids", "attention_mask", "position_ids"),
        max_seq_len=62,
        vocabulary_size=100,
        dimensions=2,
        pad_id=9,
        padding_side=padding_side,
        normalize=False,
        matryoshka=None,
        prompts={},
        default_prompt=None,
        activation="none",
        labels=(),
        properties={},
    )


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("longest", [1, 5, 61, 62])
def test_texts_are_padded_to_the_length_that_is_counted(side: str, longest: int) -> None:
    texts = [EncoderInput(np.arange(1, length + 1, dtype=np.int32)) for length in (longest, 1)]
    found = model_inputs(texts, description(side))
    width = OpenVinoEncoder(None, description(side)).padded_length(longest)
    assert width <= 62
    assert {array.shape for array in found.values()} == {(2, width)}
    for row, text in enumerate(texts):
        real = found["attention_mask"][row] == 1
        assert found["input_ids"][row][real].tolist() == text.token_ids.tolist()
        assert (found["input_ids"][row][~real] == 9).all()
        assert found["position_ids"][row][real].tolist() == list(range(len(text.token_ids)))
        assert real[-1 if side == "left" else 0]
