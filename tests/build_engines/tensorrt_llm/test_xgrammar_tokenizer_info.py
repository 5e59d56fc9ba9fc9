from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from build_engines.checkpoints.tokenizer_files import read_fast_tokenizer
from build_engines.tensorrt_llm.target import FILE_NAME, write_xgrammar_tokenizer_info
from inflight.deploy.repository.tensorrt_llm.backend import XGRAMMAR_TOKENIZER_FILE
from tests.fixtures.engines import TinyCheckpoint


def test_every_token_stands_at_its_id(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    tokenizer = read_fast_tokenizer(tiny_checkpoint("llama"))
    write_xgrammar_tokenizer_info(tokenizer, [1, 5], tmp_path)
    info = json.loads((tmp_path / FILE_NAME).read_text())
    assert {token: number for number, token in enumerate(info["encoded_vocab"])} == tokenizer.get_vocab()
    assert json.loads(info["tokenizer_str"])["model"]["type"] == "BPE"
    assert info["stop_token_ids"] == [1, 5]


def test_also_where_ids_have_gaps(tmp_path: Path) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 3}, unk_token="a")))
    write_xgrammar_tokenizer_info(tokenizer, [3], tmp_path)
    assert json.loads((tmp_path / FILE_NAME).read_text())["encoded_vocab"] == ["a", "", "", "b"]


def test_deploying_looks_for_it_by_that_name() -> None:
    assert FILE_NAME == XGRAMMAR_TOKENIZER_FILE
