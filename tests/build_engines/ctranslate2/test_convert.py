"""Checkpoints of transformers as engines of CTranslate2: the same tokens, and what the manifest says of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from build_engines.build import BuildOptions, build_engine, with_defaults
from build_engines.checkpoints.ctranslate2_model import CTranslate2Facts, read_ctranslate2
from build_engines.ctranslate2.convert import Conversion, Converted, export
from build_engines.ctranslate2.describe import START, describe_speech, describe_text, find_languages, read_text
from build_engines.ctranslate2.tokenizer import END, read_vocabulary, write_tokenizer
from build_engines.errors import BuildError
from inflight.runtime.encoders.source_text import SourceText, Text2TextSettings
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.errors import raises

TEXTS = ("A server takes many requests at once.", "42", "Grüße aus Köln!", "東京は日本の首都です。" * 4)
TOKENS = 12

ctranslate2: Any = pytest.importorskip("ctranslate2")


def convert(checkpoint: Path, out: Path, *, speech: bool = False) -> tuple[list[str], Converted]:
    converted = export(Conversion(str(checkpoint), str(out), None, speech), lambda sentence: None)
    assert isinstance(converted, Converted)
    return read_vocabulary(out), converted


@pytest.mark.parametrize(("family", "tied"), [("t5", True), ("t5", False), ("mt5", False)])
def test_the_logits_of_t5_are_scaled_where_the_first_t5_scaled_them(
    family: str, tied: bool, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForSeq2SeqLM

    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint("t5"), checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {"tie_word_embeddings": tied, "model_type": family}
    config["architectures"] = [f"{family.upper()}ForConditionalGeneration"]
    del config["scale_decoder_outputs"]
    (checkpoint / "config.json").write_text(json.dumps(config))
    (tmp_path / "engine").mkdir()
    tokens, _ = convert(checkpoint, tmp_path / "engine")
    source, target = [300, 301, 1], [400, 401, 1]
    named = [[[tokens[each] for each in ids]] for ids in (source, target[:-1])]
    found = ctranslate2.Translator(str(tmp_path / "engine"), compute_type="float32").score_batch(*named)[0].log_probs
    model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
    model.config.scale_decoder_outputs = tied  # transformers 5.0 scales those of T5 1.1 too, whose weights are not tied
    with torch.no_grad():
        logits = model(torch.tensor([source]), labels=torch.tensor([target])).logits[0].log_softmax(-1)
    assert found == pytest.approx([row[each].item() for row, each in zip(logits, target, strict=True)], abs=1e-3)


@pytest.mark.parametrize(
    ("family", "texts"),
    [
        ("t5", 3),
        ("bart", 3),
        pytest.param("marian", 200, marks=pytest.mark.slow),
    ],
)
def test_texts_give_the_tokens_of_transformers(
    family: str, texts: int, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    checkpoint = tiny_checkpoint(family)
    out = tmp_path / "engine"
    out.mkdir()
    tokens, converted = convert(checkpoint, out)
    config = json.loads((checkpoint / "config.json").read_text())
    text = describe_text(out, read_ctranslate2(out), tokens, config, converted, None)["text"]
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    translator = ctranslate2.Translator(str(out), compute_type="float32")
    model, reference = AutoModelForSeq2SeqLM.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    # An end forced at the limit, as BART has it, may choose another beam; CTranslate2 has no such setting.
    model.generation_config.forced_eos_token_id = None
    for beams in (1, 4):
        for number in range(texts):
            each = TEXTS[number % len(TEXTS)] + (f" {number * 7919}" if number >= len(TEXTS) else "")
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
            answer = [ids[token] for token in found[0].hypotheses[0]]
            assert answer == wanted[0].tolist()[1 : 1 + len(answer)]


def test_a_prompt_keeps_its_own_settings(tiny_checkpoint: TinyCheckpoint) -> None:
    prompts = {
        "summarization": {"prefix": "summarize: ", "num_beams": 4, "max_length": 30, "early_stopping": True},
        "no prompt": {"num_beams": 2},
    }
    checkpoint = tiny_checkpoint("t5")
    text = read_text(checkpoint, find_languages([]), {"task_specific_params": prompts}, None)
    assert text.prompts == {"summarization": "summarize: "}
    assert text.prompt_defaults == {"summarization": {"beam_size": 4, "max_decoding_length": 30}}


def test_bart_has_its_settings_and_begins_with_its_prefix(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    from inflight.runtime.backends.ctranslate2.text2text import Text2Text

    tokens, converted = convert(tiny_checkpoint("bart"), tmp_path)
    fields = describe_text(tmp_path, read_ctranslate2(tmp_path), tokens, {}, converted, 100)
    assert (fields["max_source_len"], fields["max_seq_len"]) == (100, 100)
    assert fields["text"].prefix == fields["text"].before == ("<|startoftext|>",)
    assert fields["text"].defaults == {"beam_size": 4, "no_repeat_ngram_size": 3}
    with raises(BuildError, "invalid_parameter", naming="257"):
        describe_text(tmp_path, read_ctranslate2(tmp_path), tokens, {}, converted, 257)

    def answer(*prefix: str) -> tuple[str, ...]:
        source = SourceText(
            (*fields["text"].before, *tokens[300:310]), prefix, (("beam_size", 1), ("max_decoding_length", TOKENS))
        )
        return Text2Text(Text2TextSettings(str(tmp_path), "float32", 1)).run([source])[0][0]

    with_start, config = answer("<|startoftext|>"), json.loads((tmp_path / "config.json").read_text())
    start = config["decoder_start_token"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"decoder_start_token": None}))
    assert with_start
    assert answer(start, "<|startoftext|>") == with_start  # as mBART's first models begin


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
def test_other_targets_refuse_the_model(target: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    out = tmp_path / "engine"
    with raises(BuildError, "unsupported_architecture", naming=str(tiny_checkpoint("t5"))):
        build_engine(str(tiny_checkpoint("t5")), out, BuildOptions(target))
    assert not out.exists()


@pytest.mark.parametrize(
    ("family", "named", "found"),
    [
        ("t5", {}, ("ctranslate2", None)),
        ("whisper", {"task": "transcribe"}, ("ctranslate2", "transcribe")),
        ("t5", {"target": "openvino"}, ("openvino", "generate")),
        ("t5", {"task": "embed"}, ("openvino", "embed")),
        ("qwen2", {}, ("openvino", "generate")),
        ("qwen2", {"target": "tensorrt-llm"}, ("tensorrt-llm", None)),
    ],
)
def test_the_default_target_is_the_one_that_the_checkpoint_needs(
    family: str, named: dict[str, Any], found: tuple[str, str | None], tiny_checkpoint: TinyCheckpoint
) -> None:
    chosen = with_defaults(BuildOptions(**named), tiny_checkpoint(family))
    assert (chosen.target, chosen.task) == found


@pytest.mark.parametrize(
    ("family", "options", "code"),
    [
        ("qwen2", {}, "unsupported_architecture"),
        ("t5", {"task": "transcribe"}, "invalid_parameter"),
        ("whisper", {"max_seq_len": 100}, "invalid_parameter"),
    ],
)
def test_a_model_of_another_kind_is_refused(
    family: str, options: dict[str, Any], code: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path
) -> None:
    with raises(BuildError, code, naming=str(tiny_checkpoint(family))):
        build_engine(str(tiny_checkpoint(family)), tmp_path / "engine", BuildOptions("ctranslate2", **options))


@pytest.mark.slow  # starts the converter and the test of the engine in processes of their own
def test_an_int8_engine_is_built_and_tested(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    out = tmp_path / "engine"
    built = build_engine(str(tiny_checkpoint("marian")), out, BuildOptions("ctranslate2", "int8"))
    assert (built.manifest.task, built.manifest.precision) == ("text2text", "int8")
    assert read_ctranslate2(out).precision == "int8"
