from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from build_engines.openvino.tokenizer import OPENVINO_TOKENIZER_FILES, load_tokenizer, write_openvino_tokenizer
from tests.fixtures.engines import TinyCheckpoint, TinyEngine

TEXTS = ("Tea, 100%", "Grüße aus Köln", "東京 🍵")


def bytes_of(directory: Path, ids: list[int]) -> bytes:
    pieces = {number: piece for piece, number in load_tokenizer(directory).get_vocab().items()}
    return b"".join(pieces.get(number, b"") for number in ids)


def test_each_token_stands_for_the_bytes_that_it_stands_for(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint("llama"))
    assert write_openvino_tokenizer(tokenizer, tmp_path) == []
    for text in TEXTS:
        assert bytes_of(tmp_path, tokenizer.encode(text, add_special_tokens=False)).decode() == text
    assert bytes_of(tmp_path, tokenizer.all_special_ids) == b""


def test_so_it_does_where_rare_characters_are_spelled_as_bytes(tmp_path: Path) -> None:
    """As the tokenizers of Llama 2, Mistral and Gemma do, with a mark in the place of each space."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"Teaßüuskönr,%01", "▁T", "e"]
    model = models.BPE({word: number for number, word in enumerate(dict.fromkeys(words))}, [("▁", "T")])
    model.byte_fallback, model.unk_token, model.fuse_unk = True, "<unk>", True
    raw = Tokenizer(model)
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    tokenizer.save_pretrained(tmp_path)
    assert write_openvino_tokenizer(tokenizer, tmp_path) == []
    for text in TEXTS:
        assert bytes_of(tmp_path, tokenizer.encode(text)).decode() == f" {text}"


def test_a_tokenizer_that_cannot_be_converted_leaves_a_note_and_no_file(tmp_path: Path) -> None:
    (note,) = write_openvino_tokenizer(object(), tmp_path)
    assert "guided decoding" in note
    assert not [name for name in OPENVINO_TOKENIZER_FILES if (tmp_path / name).exists()]


def test_an_engine_holds_the_files(tiny_engine: TinyEngine) -> None:
    assert {path.name for path in tiny_engine("llama").iterdir()} >= set(OPENVINO_TOKENIZER_FILES)
