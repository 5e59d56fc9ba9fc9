from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import speculation
from build_engines.build import BuildOptions, build_engine
from tests.fixtures.engines import TinyCheckpoint, TinyEngine


@pytest.mark.slow
def test_a_single_stream_is_three_times_as_fast(
    tmp_path: Path, tiny_checkpoint: TinyCheckpoint, tiny_engine: TinyEngine
) -> None:
    """On a target that costs many times its draft; the ratio of the two, measured in turns, not their times."""
    deep = tmp_path / "deep"
    speculation.pad_layers(tiny_checkpoint("llama"), deep, speculation.PADDED_LAYERS)
    build_engine(str(deep), tmp_path / "engine", BuildOptions(precision="bf16"))
    gains = speculation.measure(tmp_path / "engine", tiny_engine("llama", "bf16"), rounds=2)
    drafted, looked_up, _ = gains.values()
    assert drafted.times > 3, gains
    assert drafted.acceptance > 0.9
    assert looked_up.times > 3, gains
    assert looked_up.acceptance > 0.7
