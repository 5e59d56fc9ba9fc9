"""Checkpoints of transformers as engines of CTranslate2: the same tokens, and what the manifest says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.build import BuildOptions, build_engine
from build_engines.checkpoints.ctranslate2_model import CTranslate2Facts, read_ctranslate2
from build_engines.ctranslate2.convert import Conversion, Converted, export
from build_engines.ctranslate2.describe import START, describe_speech, describe_text, find_languages
from build_engines.ctranslate2.tokenizer import END, read_vocabulary, write_tokenizer
from build_engines.errors import BuildError
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.errors import raises

TEXTS = ("A server takes many requests at once.", "42", "Grüße aus Köln!", "東京は日本の首都です。" * 4)
TOKENS = 12

ctranslate2: Any = pytest.importorskip("ctranslate2")


def convert(checkpoint: Path, out: Path, *, speech: bool = False) -> tuple[list[str], Converted]:
    converted = export(Conversion(str(checkpoint), str(out), None, speech), lambda sentence: None)
    return read_vocabulary(out), converted


@pytest.mark.parametrize("family", ["t5", "bart", pytest.param("marian", marks=pytest.mark.slow)])
def test_texts_give_the_tokens_of_transformers(family: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    checkpoint = tiny_checkpoint(family)
    tokens, converted = convert(checkpoint, tmp_path)
    config = json.loads((checkpoint / "config.json").read_text())
    fields = describe_text(tmp_path, read_ctranslate2(tmp_path), tokens, config, converted, None)
    text, ids = fields["text"], {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    translator = ctranslate2.Translator(str(tmp_path), compute_type="float32")
    model, reference = AutoModelForSeq2SeqLM.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    for beams in (1, 4):
        for each in TEXTS:
            source = [*text.before, *tokenizer.encode(each, add_special_tokens=False).tokens, *text.after]
            inputs = reference(each, return_tensors="pt")
            assert [ids[token] for token in source] == inputs["input_ids"][0].tolist()
            wanted = model.generate(
                input_ids=inputs["input_ids"], num_beams=beams, max_new_tokens=TOKENS, early_stopping=beams > 1
            )
            found = translator.translate_batch(
                [source],
                beam_size=beams,
                max_decoding_length=TOKENS,
                no_repeat_ngram_size=text.defaults.get("no_repeat_ngram_size", 0),
                target_prefix=[list(text.prefix)] if text.prefix else None,
            )
            answer = [ids[token] for token in found[0].hypotheses[0]][: TOKENS - 1]  # the last one may be forced
            assert answer == wanted[0].tolist()[1 : 1 + len(answer)]


def test_what_the_manifest_says_of_the_settings_of_bart(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    tokens, converted = convert(tiny_checkpoint("bart"), tmp_path)
    fields = describe_text(tmp_path, read_ctranslate2(tmp_path), tokens, {}, converted, 100)
    assert (fields["max_source_len"], fields["max_seq_len"]) == (100, 100)
    assert fields["text"].prefix == fields["text"].before == ("<|startoftext|>",)
    assert fields["text"].defaults == {"beam_size": 4, "no_repeat_ngram_size": 3}
    with raises(BuildError, "invalid_parameter", naming="257"):
        describe_text(tmp_path, read_ctranslate2(tmp_path), tokens, {}, converted, 257)


def test_whisper_keeps_its_times(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    tokens, _ = convert(tiny_checkpoint("whisper"), tmp_path, speech=True)
    fields = describe_speech(read_ctranslate2(tmp_path), tokens)
    assert fields["languages"] == ()
    assert (fields["mels"], fields["max_source_len"], fields["max_seq_len"]) == (80, 1500, 448)
    write_tokenizer(tokens, tmp_path / "tokenizer.json")
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).token_to_id("<|30.00|>") == len(tokens) - 1
    assert not ctranslate2.models.Whisper(str(tmp_path), compute_type="float32").is_multilingual


def test_the_languages_of_whisper() -> None:
    special = [END, START, "<|en|>", "<|de|>", "<|translate|>"]
    tokens = [*special, *(f"word{number}" for number in range(51865 - len(special)))]
    sizes = (
        "decoder/embeddings/weight",
        "decoder/position_encodings/encodings",
        "encoder/position_encodings/encodings",
    )
    shapes: dict[str, tuple[int, tuple[int, ...]]] = {
        name: (0, (len(tokens), 80)) for name in (*sizes, "encoder/conv1/weight")
    }
    facts = CTranslate2Facts(Path("model.bin"), "WhisperSpec", shapes)
    assert describe_speech(facts, tokens)["languages"] == ("en", "de")


@pytest.mark.parametrize(
    ("tokens", "codes", "token"),
    [
        (["__en__", "▁a", "__de__"], ("en", "de"), "__{}__"),
        ([">>fra<<", ">>deu<<"], ("fra", "deu"), ">>{}<<"),
        (["eng_Latn", "fra_Latn"], ("eng_Latn", "fra_Latn"), "{}"),
        (["en_XX", "ro_RO"], ("en_XX", "ro_RO"), "{}"),
        (["__en__", "▁a", "en_XX"], (), ""),
    ],
)
def test_the_languages_of_a_vocabulary(tokens: list[str], codes: tuple[str, ...], token: str) -> None:
    assert find_languages(tokens) == (codes, token)


@pytest.mark.parametrize("target", ["openvino", "tensorrt-llm", "llmapi"])
def test_other_targets_name_this_one(target: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    out = tmp_path / "engine"
    with raises(BuildError, "unsupported_architecture", naming="--target ctranslate2"):
        build_engine(str(tiny_checkpoint("t5")), out, BuildOptions(target))
    assert not out.exists()


@pytest.mark.parametrize(("family", "task"), [("qwen2", None), ("t5", "transcribe")])
def test_a_model_of_another_kind_is_refused(
    family: str, task: Any, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    code = "invalid_parameter" if task else "unsupported_architecture"
    with raises(BuildError, code, naming=str(tiny_checkpoint(family))):
        build_engine(str(tiny_checkpoint(family)), tmp_path / "engine", BuildOptions("ctranslate2", task=task))


@pytest.mark.slow  # starts the converter and the test of the engine in processes of their own
def test_an_int8_engine_is_built_and_tested(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    out = tmp_path / "engine"
    built = build_engine(str(tiny_checkpoint("marian")), out, BuildOptions("ctranslate2", "int8"))
    assert (built.manifest.task, built.manifest.precision) == ("text2text", "int8")
    assert read_ctranslate2(out).precision == "int8"
