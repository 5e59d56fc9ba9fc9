"""Engines against transformers, alone and in batches with padding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from build_engines.encoders.graph import EmbeddingHead, pool
from build_engines.manifest import EncoderManifest, EncoderTask, Pooling
from tests.fixtures.encoders import MinilmEngine, TinyEncoder, tiny_encoder_checkpoint

LENGTHS = (1, 2, 3, 15, 16, 17, 31, 33, 64, 100, 129, 257, 511, 512)
# Each family as an embedder, and each head with the families that differ in it.
CASES = (
    ("embed", "bert"),
    pytest.param("embed", "xlm-roberta", marks=pytest.mark.slow),  # RoBERTa's layers
    ("embed", "modernbert"),
    ("embed", "qwen3"),
    ("rerank", "bert"),
    ("rerank", "qwen3"),
    ("classify", "roberta"),
    ("classify", "modernbert"),
)


@dataclass(frozen=True)
class Engine:
    """A compiled graph and what its manifest says of it."""

    compiled: Any
    inputs: tuple[str, ...]
    pad_id: int | None
    padding_side: str
    vocabulary: int
    pooling: Pooling | None

    @classmethod
    def read(cls, directory: Path) -> Engine:
        read = EncoderManifest.read(directory)
        compiled = openvino.Core().compile_model(directory / "openvino_model.xml", "CPU", read.properties)
        return cls(compiled, read.inputs, read.pad_id, read.padding_side, read.vocab_size, read.pooling)

    def __call__(
        self, texts: list[list[int]], *, tokens: int | None = None, types: list[list[int]] | None = None, side: str = ""
    ) -> np.ndarray[Any, Any]:
        """Compute the texts as one batch, padded to `tokens` on `side`."""
        shape = (len(texts), tokens or max(map(len, texts)))
        arrays = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
        arrays["input_ids"][:] = self.pad_id or 0
        for row, ids in enumerate(texts):
            left = (side or self.padding_side) == "left"
            place = slice(shape[1] - len(ids), None) if left else slice(len(ids))
            arrays["input_ids"][row, place] = ids
            arrays["attention_mask"][row, place] = 1
            arrays["token_type_ids"][row, place] = types[row] if types else 0
        outputs = self.compiled({name: arrays[name] for name in self.inputs})[0]
        assert outputs.dtype == np.float32
        return np.array(outputs)


def random_texts(vocabulary: int) -> list[list[int]]:
    generator = np.random.default_rng(3)
    return [generator.integers(10, vocabulary - 8, length).tolist() for length in LENGTHS]


def expected(
    checkpoint: Path, task: EncoderTask, pooling: Pooling | None, texts: list[list[int]], types: list[list[int]] | None
) -> np.ndarray[Any, Any]:
    kind = AutoModel if task == "embed" else AutoModelForSequenceClassification
    model = kind.from_pretrained(checkpoint, dtype=torch.float32).eval()
    rows = []
    with torch.no_grad():
        for row, ids in enumerate(texts):
            more = {"token_type_ids": torch.tensor([types[row]])} if types else {}
            outputs = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **more)
            if task != "embed":
                rows.append(outputs.logits[0])
                continue
            hidden = outputs.last_hidden_state[0]
            rows.append(
                torch.nn.functional.normalize(hidden[-1] if pooling == "last_token" else hidden.mean(0), dim=-1)
            )
    return np.array(torch.stack(rows))


def assert_close(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any], task: EncoderTask, cosine: float) -> None:
    if task == "embed":
        assert np.linalg.norm(ours, axis=1) == pytest.approx(1, abs=1e-5)
        assert (ours * theirs).sum(1).min() >= cosine
    else:
        assert np.abs(ours - theirs).max() < 1e-4


# torch warns of its own code when ModernBERT is imported.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("task", "family"), CASES)
def test_an_engine_computes_what_transformers_does_in_any_batch(
    tiny_encoder: TinyEncoder, task: EncoderTask, family: str
) -> None:
    engine = Engine.read(tiny_encoder(task, family))
    texts = random_texts(engine.vocabulary)
    paired = "token_type_ids" in engine.inputs
    types = [[0] * (len(ids) // 2) + [1] * (len(ids) - len(ids) // 2) for ids in texts] if paired else None
    alone = np.concatenate([engine([ids], types=types and [types[row]]) for row, ids in enumerate(texts)])
    assert_close(
        alone,
        expected(tiny_encoder_checkpoint(task, family), task, engine.pooling, texts, types),
        task,
        0.9999,
    )
    assert_close(engine(texts, types=types), alone, task, 0.99999)
    # Some rows are padding alone, as in a batch that is filled up to a size.
    filled = engine(
        [*texts, []], types=types and [*types, []], tokens=600 if family in ("modernbert", "qwen3") else 512
    )
    assert np.isfinite(filled).all()
    assert_close(filled[:-1], alone, task, 0.99999)
    # Different texts differ, so that a wrong mask would show.
    assert np.abs(alone[4] - alone[5]).max() > 1e-3


def test_a_decoder_accepts_padding_on_either_side(tiny_encoder: TinyEncoder) -> None:
    engine = Engine.read(tiny_encoder("embed", "qwen3"))
    assert engine.padding_side == "left"
    texts = random_texts(engine.vocabulary)
    assert_close(engine(texts, side="right"), engine(texts, side="left"), "embed", 0.99999)


def test_a_decoder_scores_the_last_token_that_is_no_padding_by_its_id(tiny_encoder: TinyEncoder) -> None:
    engine = Engine.read(tiny_encoder("rerank", "qwen3"))
    pad = engine.pad_id
    assert pad is not None
    texts = [[20, 30, pad], [20, 30], [40, pad, 50, pad, pad], [pad], [pad, pad, pad]]
    reference = expected(tiny_encoder_checkpoint("rerank", "qwen3"), "rerank", None, texts, None)
    for side in ("left", "right"):
        assert_close(engine(texts, tokens=8, side=side), reference, "rerank", 0)
    assert np.abs(reference[0] - reference[2]).max() > 1e-3


def test_minilm_embeds_like_transformers(minilm_checkpoint: Path, minilm_engine: MinilmEngine) -> None:
    engine = Engine.read(minilm_engine())
    assert EncoderManifest.read(minilm_engine()).max_seq_len == 256
    texts = [ids for ids in random_texts(engine.vocabulary) if len(ids) <= 256]
    alone = np.concatenate([engine([ids]) for ids in texts])
    assert_close(alone, expected(minilm_checkpoint, "embed", "mean", texts, None), "embed", 0.9999)
    assert_close(engine(texts, tokens=300), alone, "embed", 0.99999)


def test_numbers_are_cut_after_the_normalization() -> None:
    head = EmbeddingHead("mean", [], normalize=True, truncate_dim=1)
    vector = head(torch.tensor([[[3.0, 4.0]]]), torch.ones(1, 1), torch.ones(1, 1))
    assert vector.tolist() == [[pytest.approx(0.6)]]


@pytest.mark.parametrize(
    ("pooling", "vector"),
    [("cls", [1.0, 8.0]), ("mean", [2.0, 6.0]), ("max", [3.0, 8.0]), ("last_token", [3.0, 4.0])],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_pooling_leaves_padding_out(pooling: Pooling, vector: list[float], side: str) -> None:
    text, padding = [[1.0, 8.0], [3.0, 4.0]], [[90.0, 90.0]] * 2
    rows = [*padding, *text] if side == "left" else [*text, *padding]
    mask = [0, 0, 1, 1] if side == "left" else [1, 1, 0, 0]
    assert pool(torch.tensor([rows]), torch.tensor([mask]), pooling)[0].tolist() == pytest.approx(vector)
