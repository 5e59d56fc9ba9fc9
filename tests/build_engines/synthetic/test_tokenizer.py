from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from build_engines.synthetic.shapes import KNOWN, SHAPES, TINY
from build_engines.synthetic.tokenizer import write_tokenizer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    out = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(TINY["tiny-llama"], out)
    return Tokenizer.from_file(str(out / "tokenizer.json"))


@given(text=st.text())
def test_any_text_survives(tiny: Tokenizer, text: str) -> None:
    ids = tiny.encode(text, add_special_tokens=False).ids
    assert tiny.decode(ids, skip_special_tokens=False) == text


def test_characters_of_several_tokens_occur(tiny: Tokenizer) -> None:
    # Else no test of streaming would ever see a character cut in two.
    assert len(tiny.encode("龘", add_special_tokens=False).ids) == 3


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "tinyllama-1.1b", "gemma-2-2b", "phi-3-mini", "gpt2", "tiny-gpt2"])
def test_every_id_of_the_models_vocabulary_decodes_to_text(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    write_tokenizer(shape, tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == shape.vocab_size
    ids = [*range(0, shape.vocab_size, 17), shape.vocab_size - 1, *shape.end_ids]
    assert all(tokenizer.decode([number], skip_special_tokens=False) for number in ids)
    assert tokenizer.decode(list(shape.end_ids), skip_special_tokens=True) == ""


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.vocab_size < 60000])
def test_transformers_reads_it_with_the_configs_special_tokens(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    write_tokenizer(shape, tmp_path)
    # The requested class is in tokenizer_config.json, so no config.json is needed.
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.eos_token_id == shape.end_ids[0]
    assert tokenizer.bos_token_id == shape.start_id
    assert tokenizer.pad_token_id == shape.pad_id
    starts = tokenizer("x")["input_ids"][0] == shape.start_id
    assert starts == shape.adds_start
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True)
    assert chat == "<|im_start|>user\nx\n<|im_start|>assistant\n"


def test_the_known_shapes_are_those_of_the_published_configs(tmp_path: Path) -> None:
    sizes = {name: (shape.vocab_size, shape.end_ids) for name, shape in KNOWN.items()}
    assert sizes["qwen2.5-0.5b"] == (151936, (151645, 151643))
    assert sizes["gpt2"] == (50257, (50256,))
    write_tokenizer(KNOWN["gpt2"], tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 1024
