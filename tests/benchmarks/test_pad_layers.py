from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.pad_layers import pad_layers
from build_engines.checkpoints.checkpoint import read_checkpoint
from build_engines.errors import BuildError
from tests.fixtures.engines import ARCHITECTURES, TinyCheckpoint
from tests.fixtures.errors import raises


def load(checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_added_layers_change_no_logit(tmp_path: Path, tiny_checkpoint: TinyCheckpoint, architecture: str) -> None:
    shallow = tiny_checkpoint(architecture)
    pad_layers(shallow, tmp_path, 3)
    prompt = torch.randint(3, 1500, (1, 300), generator=torch.Generator().manual_seed(1))
    before, after = load(shallow), load(tmp_path)
    assert after.config.num_hidden_layers == before.config.num_hidden_layers + 3
    with torch.inference_mode():
        assert torch.equal(after(prompt).logits, before(prompt).logits)
    added = read_checkpoint(tmp_path).parameters - read_checkpoint(shallow).parameters
    assert added > 3 * 64 * 64


def test_a_deepened_checkpoint_can_be_deepened(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    pad_layers(tiny_checkpoint("llama"), tmp_path / "once", 2)
    pad_layers(tmp_path / "once", tmp_path / "twice", 2)
    assert load(tmp_path / "twice").config.num_hidden_layers == 6


def test_layers_of_another_kind_are_refused(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    strange = Path(shutil.copytree(tiny_checkpoint("llama"), tmp_path / "strange"))
    config = (strange / "config.json").read_text()
    (strange / "config.json").write_text(config.replace("num_hidden_layers", "blocks"))
    with raises(BuildError, "unsupported_architecture", naming="LlamaForCausalLM"):
        pad_layers(strange, tmp_path / "out", 1)
