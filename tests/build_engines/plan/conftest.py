"""An engine that is large where memory is measured (weights, KV cache) and small where time goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from build_engines.manifest import Precision
from build_engines.synthetic.shapes import CheckpointShape
from build_engines.synthetic.write import ALL_SHAPES
from tests.fixtures.engines import _cached_engine, cached_checkpoint

WIDE = CheckpointShape(
    "llama",
    {
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "intermediate_size": 16384,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    },
    vocab_size=16384,
    end_ids=(1,),
    start_id=2,
    pad_id=0,
    adds_start=True,
)

WideEngine = Callable[[Precision], Path]


@pytest.fixture
def wide_checkpoint(monkeypatch: pytest.MonkeyPatch) -> Path:
    """134 million random parameters; a token of the KV cache takes 16 heads of 128 in 4 layers."""
    from build_engines.synthetic.write import write_synthetic_checkpoint

    monkeypatch.setitem(ALL_SHAPES, "plan-wide", WIDE)
    return cached_checkpoint("plan-wide", lambda out: write_synthetic_checkpoint("plan-wide", out))


@pytest.fixture
def wide_engine(wide_checkpoint: Path) -> WideEngine:
    """`wide_engine("bf16")`: the engine of that checkpoint."""
    return lambda precision: _cached_engine(wide_checkpoint, precision)
