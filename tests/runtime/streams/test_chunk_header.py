"""What goes with a chunk from the engine to postprocessing, packed and unpacked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.common.request_error import RequestError
from inflight.runtime.streams.chunk_header import ChunkHeader
from tests.fixtures.errors import raises

NUMBERS = st.integers(0, 2**31 - 1)


@given(st.integers(0, 2**64 - 1), NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=8))
def test_what_is_packed_comes_out_again(key: int, following: int, dropped: int, context_ids: list[int]) -> None:
    context = ChunkHeader(key, following, dropped, context_ids)
    tensor = context.to_tensor()
    assert (tensor.dtype, tensor.shape) == (np.int32, (1, 4 + len(context_ids)))
    assert ChunkHeader.from_row(tensor[0]) == context


@pytest.mark.parametrize("values", [[], [1], [0, 0, 0], [1, 2, -1, 0], [1, 2, 0, -5], [1, 2, 0, 0, -7], [0] * 65])
def test_what_the_engine_never_sends_is_refused(values: list[int]) -> None:
    with raises(RequestError, "invalid_request", naming="CHUNK_HEADER"):
        ChunkHeader.from_row(np.array(values, np.int32))
