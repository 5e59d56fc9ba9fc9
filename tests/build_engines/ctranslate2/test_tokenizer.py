"""A tokenizer from a vocabulary alone."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from build_engines.ctranslate2.tokenizer import END, write_tokenizer
from build_engines.errors import BuildError
from tests.fixtures.errors import raises

TEXTS = [path.read_text("utf-8") for path in sorted(Path(__file__).parents[3].glob("docs/*.md"))[:12]]
SPECIAL = [END, "<|startoftranscript|>", "<|en|>", "<|0.00|>"]


def trained() -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=1500, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def test_the_merges_of_a_trained_tokenizer_are_found(tmp_path: Path) -> None:
    original = trained()
    tokens = [original.id_to_token(number) for number in range(original.get_vocab_size())]
    write_tokenizer(tokens, tmp_path / "tokenizer.json")
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    merges = [json.loads(each.to_str())["model"]["merges"] for each in (made, original)]
    assert merges[0] == merges[1]
    for text in (*TEXTS, "Grüße, 東京 🎉", "".join(SPECIAL) + " and words"):
        ids = original.encode(text).ids
        assert made.encode(text).ids == ids
        assert made.decode(ids) == original.decode(ids)


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    with raises(BuildError, "not_a_checkpoint", naming=str(tmp_path)):
        write_tokenizer(["▁the", END], tmp_path / "tokenizer.json")
    assert not list(tmp_path.iterdir())
