"""Checkpoints with the files that models of the hub have: pickles, SentencePiece's files alone, computed positions."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from build_engines.checkpoints.checkpoint import read_checkpoint
from build_engines.checkpoints.ctranslate2_model import read_ctranslate2
from build_engines.ctranslate2.convert import Conversion, Converted, SentencePieceTask, decoding_settings, export
from build_engines.ctranslate2.describe import describe_text
from build_engines.ctranslate2.target import CTranslate2Target
from build_engines.ctranslate2.tokenizer import read_vocabulary
from build_engines.errors import BuildError
from build_engines.progress import NoBuildProgress
from tests.fixtures.engines import TinyCheckpoint
from tests.fixtures.errors import raises

ctranslate2: Any = pytest.importorskip("ctranslate2")

TEXTS = ("A server takes many requests at once.", "Two  spaces, and 42 more.")
TOKENS = 12
TARGET = CTranslate2Target(None, None, smoke_test=False, task=None)
SIZES = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 1), ("ffn_dim", 64))}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 32, "max_position_embeddings": 64}


class Layout(NamedTuple):
    """A class of transformers, the fields of its config besides the sizes, its tokenizer's files, and the names of
    weights that are not stored."""

    model: str
    fields: Mapping[str, Any]
    files: Mapping[str, str | dict[str, Any]]
    unstored: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return SentencePiece's file of a type: unigram, bpe, or t5 with T5's ids."""
    import sentencepiece

    directory = tmp_path_factory.mktemp("pieces")
    texts = [line for path in sorted(Path("docs").glob("*.md"))[:8] for line in path.read_text("utf-8").splitlines()]
    t5: dict[str, Any] = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    for kind, ids in (("unigram", {}), ("bpe", {}), ("t5", t5)):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_prefix=str(directory / kind),
            model_type="unigram" if kind == "t5" else kind,
            vocab_size=400,
            minloglevel=2,
            **ids,
        )
    return lambda kind: directory / f"{kind}.model"


def layouts(pieces: Callable[[str], Path]) -> dict[str, Layout]:
    import sentencepiece

    def words(kind: str) -> list[str]:
        model = sentencepiece.SentencePieceProcessor(model_file=str(pieces(kind)))
        return [model.id_to_piece(number) for number in range(3, len(model))]

    marian = dict.fromkeys(["</s>", "<unk>", *words("unigram"), "<pad>"])
    pad = len(marian) - 1
    m2m = dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *words("bpe")])
    tied = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    positions = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
    return {
        "marian": Layout(
            "MarianMTModel",
            {
                "vocab_size": pad + 1,
                "pad_token_id": pad,
                "decoder_start_token_id": pad,
                "eos_token_id": 0,
                "bad_words_ids": [[pad]],
                "num_beams": 4,
                "max_length": TOKENS,
            },
            {
                "vocab.json": {word: number for number, word in enumerate(marian)},
                "source.spm": "unigram",
                "target.spm": "unigram",
            },
            (*tied, *positions),
        ),
        "m2m_100": Layout(
            "M2M100ForConditionalGeneration",
            {"vocab_size": len(m2m) + 100 + 8, "num_beams": 4, "max_length": TOKENS, "decoder_start_token_id": 2},
            {
                "vocab.json": {word: number for number, word in enumerate(m2m)},
                "sentencepiece.bpe.model": "bpe",
                "tokenizer_config.json": {"language_codes": "m2m100", "tokenizer_class": "M2M100Tokenizer"},
            },
            tied,
        ),
        "pegasus": Layout(
            "PegasusForConditionalGeneration",
            {
                "vocab_size": len(words("t5")) + 3 + 103,
                "num_beams": 3,
                "length_penalty": 0.6,
                "min_length": 6,
                "max_length": TOKENS,
                "decoder_start_token_id": 0,
                "pad_token_id": 0,
                "eos_token_id": 1,
            },
            {"spiece.model": "t5"},
            (*tied, *positions),
        ),
        "nllb": Layout(
            "M2M100ForConditionalGeneration",
            {"vocab_size": len(m2m) + 203, "decoder_start_token_id": 2},
            {
                "sentencepiece.bpe.model": "bpe",
                "tokenizer_config.json": {"tokenizer_class": "NllbTokenizer"},
            },
        ),
    }


def write(layout: Layout, pieces: Callable[[str], Path], out: Path) -> Any:
    """Write the checkpoint, and return the model."""
    import torch
    import transformers

    kind = getattr(transformers, layout.model)
    settings = {name: layout.fields[name] for name in ("num_beams", "min_length") if name in layout.fields}
    config = kind.config_class(**SIZES, **HEADS, **layout.fields)
    torch.manual_seed(3)
    model = kind(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embed_positions" not in name:
                weight.normal_(0, 0.3)
        if layout.model == "MarianMTModel":
            model.model.shared.weight[-1] = 0
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias[0, config.eos_token_id] = 4
    out.mkdir()
    torch.save(
        {name: each for name, each in model.state_dict().items() if name not in layout.unstored},
        out / "pytorch_model.bin",
    )
    content = {key: value for key, value in config.to_dict().items() if value is not None and key != "dtype"}
    named = {"architectures": [layout.model], **settings, "max_length": layout.fields.get("max_length", 20)}
    (out / "config.json").write_text(json.dumps(content | dict(layout.fields) | named))
    for name, what in layout.files.items():
        if isinstance(what, str):
            shutil.copy(pieces(what), out / name)
        else:
            (out / name).write_text(json.dumps(what))
    return kind.from_pretrained(out)


def convert(checkpoint: Path, out: Path) -> Converted:
    out.mkdir()
    read_checkpoint(checkpoint, check=TARGET.check_supported)
    converted = export(Conversion(str(checkpoint), str(out), None, speech=False), lambda sentence: None)
    assert isinstance(converted, Converted)
    return converted


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("name", ["marian", "m2m_100", "pegasus"])
def test_a_layout_of_the_hub_gives_the_tokens_of_transformers(
    name: str, pieces: Callable[[str], Path], tmp_path: Path
) -> None:
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    out, checkpoint = tmp_path / "engine", tmp_path / "checkpoint"
    model = write(layouts(pieces)[name], pieces, checkpoint)
    converted = convert(checkpoint, out)
    tokens = read_vocabulary(out)
    text = describe_text(out, read_ctranslate2(out), tokens, {}, converted, None)["text"]
    tokenizer, ids = Tokenizer.from_file(str(out / "tokenizer.json")), {token: at for at, token in enumerate(tokens)}
    translator = ctranslate2.Translator(str(out), compute_type="float32")
    model.generation_config.update(early_stopping=True, renormalize_logits=True, forced_eos_token_id=None)
    for each in TEXTS:
        source = [*text.before, *tokenizer.encode(each, add_special_tokens=False).tokens, *text.after]
        numbers = [ids.get(token, ids["<unk>"]) for token in source]
        if name != "pegasus":  # whose ids transformers 5.0 reads wrongly from these files
            assert numbers == AutoTokenizer.from_pretrained(checkpoint)(each)["input_ids"]
        for options, own in (({"num_beams": 1}, {"beam_size": 1}), ({}, {})):
            wanted = model.generate(torch.tensor([numbers]), **options)[0].tolist()[1:]
            decoding = {"min_decoding_length": 0} | text.defaults | own
            found = translator.translate_batch([source], return_end_token=True, **decoding)[0].hypotheses[0]
            assert [ids[token] for token in found] == wanted


def test_a_tokenizer_that_does_not_know_its_language_is_refused(pieces: Callable[[str], Path], tmp_path: Path) -> None:
    write(layouts(pieces)["nllb"], pieces, tmp_path / "checkpoint")
    with raises(BuildError, "checkpoint_damaged", naming="tokenizer.json"):
        convert(tmp_path / "checkpoint", tmp_path / "engine")


class Code:
    """Runs when it is unpickled as any object."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("unpickled",)


@pytest.mark.parametrize("damage", ["cut", "noise", "code", "missing"])
def test_weights_that_can_not_be_read_are_refused(
    damage: str, tiny_checkpoint: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from safetensors.torch import load_file

    monkeypatch.chdir(tmp_path)
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint("bart"), checkpoint)
    weights, path = load_file(checkpoint / "model.safetensors"), checkpoint / "pytorch_model.bin"
    (checkpoint / "model.safetensors").unlink()
    if damage == "missing":
        del weights["model.decoder.layers.1.fc1.weight"]
    torch.save([Code()] if damage == "code" else weights, path)
    if damage in ("cut", "noise"):
        path.write_bytes(path.read_bytes()[:-999] if damage == "cut" else os.urandom(999))
    with raises(BuildError, "checkpoint_damaged", naming=str(checkpoint)):
        convert(checkpoint, tmp_path / "engine")
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"encoder_layers": 10**6}, "not_a_checkpoint"),
        ({"share_encoder_decoder_embeddings": False}, "unsupported_architecture"),
    ],
)
def test_a_config_that_can_not_be_converted_is_refused_at_once(
    change: dict[str, Any], code: str, tiny_checkpoint: TinyCheckpoint
) -> None:
    config = json.loads((tiny_checkpoint("marian") / "config.json").read_text())
    with raises(BuildError, code):
        TARGET.check_supported(tiny_checkpoint("marian"), config | change)


def test_settings_that_an_engine_does_not_have_are_named(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint("bart"), checkpoint)
    settings = {"decoder_start_token_id": 2, "min_length": 5, "do_sample": True, "bad_words_ids": [[7]]}
    (checkpoint / "generation_config.json").write_text(json.dumps(settings))
    converted = convert(checkpoint, tmp_path / "engine")
    assert converted.defaults == {"beam_size": 1, "min_decoding_length": 4}  # transformers counts the token before
    (note,) = converted.notes
    assert all(name in note for name in ("do_sample", "bad_words_ids"))


def test_a_marian_model_in_the_librarys_format_gets_its_tokenizers(
    pieces: Callable[[str], Path], tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    for name in ("source.spm", "target.spm"):
        shutil.copy(pieces("unigram"), tmp_path / name)
    export(SentencePieceTask(str(tmp_path), str(tmp_path), "</s>"), lambda sentence: None)
    for name in ("tokenizer.json", "target_tokenizer.json"):
        assert Tokenizer.from_file(str(tmp_path / name)).encode("server").tokens[-1] == "</s>"


def test_a_prompts_least_length_is_that_of_the_answer() -> None:
    assert decoding_settings({"min_length": 30, "max_length": 200, "early_stopping": True}) == {
        "min_decoding_length": 29,
        "max_decoding_length": 200,
    }


def test_the_library_adds_no_second_end_to_a_text(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    ready, out = tmp_path / "ready", tmp_path / "engine"
    convert(tiny_checkpoint("marian"), ready)
    config = json.loads((ready / "config.json").read_text())
    (ready / "config.json").write_text(json.dumps(config | {"add_source_eos": True}))  # as of Marian's own converter
    out.mkdir()
    compiled = TARGET.compile(read_checkpoint(ready, check=TARGET.check_supported), out, NoBuildProgress())
    assert compiled.text is not None
    assert compiled.text.after == (config["eos_token"],)
    assert json.loads((out / "config.json").read_text())["add_source_eos"] is False
