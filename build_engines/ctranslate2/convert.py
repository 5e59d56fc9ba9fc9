"""Converts a checkpoint of transformers to CTranslate2's format in a child process, with the library's converter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any

from build_engines.errors import damaged, unsupported

MARIAN_TOKENIZER = "source.spm"
CONFIG, TOKENIZER, TARGET_TOKENIZER = "config.json", "tokenizer.json", "target_tokenizer.json"
_LAYER_NORMS = {"BartConfig": (False, True), "MBartConfig": (True, True), "PegasusConfig": (True, False)}
"""Whether layers are normalized before them, and whether embeddings are: configs of transformers 5 don't say so."""
_PEGASUS_POSITIONS = ("model.encoder.embed_positions.", "model.decoder.embed_positions.")
DECODING = {
    "num_beams": ("beam_size", 1),
    "length_penalty": ("length_penalty", 1.0),
    "repetition_penalty": ("repetition_penalty", 1.0),
    "no_repeat_ngram_size": ("no_repeat_ngram_size", 0),
    "min_length": ("min_decoding_length", 0),
    "max_length": ("max_decoding_length", 20),
}
"""CTranslate2's name of each setting of transformers, and the value of a model that names none."""
_NOT_CARRIED = (
    *("bad_words_ids", "begin_suppress_tokens", "constraints", "diversity_penalty", "do_sample"),
    *("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "exponential_decay_length_penalty"),
    *("force_words_ids", "min_new_tokens", "penalty_alpha", "sequence_bias", "suppress_tokens"),
)
"""Settings of transformers that change answers and that an engine does not have."""


@dataclass(frozen=True)
class Conversion:
    """The settings of a conversion into the directory `out`; `quantization` None keeps the type of the weights."""

    checkpoint: str
    out: str
    quantization: str | None
    speech: bool


@dataclass(frozen=True)
class SentencePieceTask:
    """The settings of writing the tokenizers of source.spm and target.spm of `checkpoint`, a Marian model in
    CTranslate2's format, whose texts end with `end`."""

    checkpoint: str
    out: str
    end: str


@dataclass(frozen=True)
class Written:
    """Nothing but that the tokenizers were written."""


@dataclass(frozen=True)
class Converted:
    """What the manifest needs of the model's generation settings: see `Seq2SeqText`."""

    prefix: list[str]
    defaults: dict[str, int | float]
    notes: list[str]


def export(task: Conversion | SentencePieceTask, on_step: Callable[[str], None]) -> Converted | Written:
    """Convert the model of `task`, and write its tokenizer as tokenizer.json unless it is one for speech.

    Raises BuildError: `unsupported_architecture` for a model that the converter refuses, and `checkpoint_damaged` for
    weights or a tokenizer that can't be read.
    """
    if isinstance(task, SentencePieceTask):
        on_step("Making a tokenizer from source.spm")
        _write_marian(Path(task.checkpoint), task.end, Path(task.out))
        return Written()
    return _convert(task, on_step)


def _convert(task: Conversion, on_step: Callable[[str], None]) -> Converted:
    on_step("Loading the converter")
    import transformers
    from ctranslate2.converters import TransformersConverter

    from build_engines.openvino.export import load_model

    for name, (layers_first, embeddings) in _LAYER_NORMS.items():
        config = getattr(transformers, name)
        config.normalize_before, config.normalize_embedding = layers_first, embeddings

    class Converter(TransformersConverter):  # type: ignore[misc]
        """Keeps what it loads."""

        def load_model(self, kind: Any, name: str, **options: Any) -> Any:
            # Positions of Pegasus are computed, and often not stored.
            unread = _PEGASUS_POSITIONS if kind.__name__.startswith("Pegasus") else ()
            try:
                self.model = load_model(kind, Path(name), unread, use_safetensors=None, **options)
            except (EOFError, OSError, RuntimeError, TypeError, UnpicklingError) as error:
                raise damaged(
                    f"{name} has weights that can't be read ({type(error).__name__}); fetch the checkpoint again."
                ) from error
            start = self.model.generation_config.decoder_start_token_id
            if self.model.config.model_type == "mbart" and start == self.model.config.eos_token_id:
                self.model.config.tokenizer_class = "MBart50Tokenizer"  # answers begin with the end token
            # The converter scales logits by this; transformers 5 says True of mT5 and T5 1.1, which do not scale.
            if self.model.config.model_type in ("t5", "mt5"):
                named = json.loads((Path(task.checkpoint) / CONFIG).read_text())
                tied = named.get("tie_word_embeddings", True)
                self.model.config.tie_word_embeddings = named["model_type"] == "t5" and named.get(
                    "scale_decoder_outputs", tied
                )
            on_step(f"Converting {type(self.model).__name__} to CTranslate2")
            return self.model

        def load_tokenizer(self, *args: Any, **options: Any) -> Any:
            checkpoint = Path(task.checkpoint)
            try:
                self.tokenizer = super().load_tokenizer(*args, **options)
            except Exception as error:  # its libraries raise no narrower one
                raise damaged(
                    f"The tokenizer of {checkpoint} can't be read ({_reason(error)}); fetch all of its files again."
                ) from error
            if self.model.config.model_type == "pegasus" and not (checkpoint / TOKENIZER).is_file():
                self.tokenizer = _pegasus_tokenizer(self.tokenizer, checkpoint / "spiece.model")
            if not task.speech and self.tokenizer.unk_token_id in self.tokenizer("")["input_ids"]:
                raise damaged(
                    f"The tokenizer of {checkpoint} puts an unknown token around texts; add the tokenizer.json of the"
                    " original model."
                )
            languages = getattr(self.tokenizer, "lang_token_to_id", None)
            if languages:  # of M2M100, which the converter looks for where transformers 4 has them
                words = self.tokenizer.get_vocab() | languages
                self.tokenizer.get_vocab = lambda: words
            return self.tokenizer

    out = Path(task.out)
    converter = Converter(task.checkpoint)
    try:
        converter.convert(str(out / "converted"), quantization=task.quantization)
    except (ValueError, NotImplementedError, KeyError, AttributeError) as error:
        raise unsupported(
            f"CTranslate2 can't convert {task.checkpoint} ({_reason(error)}); name another model, or fetch it again."
        ) from error
    for path in (out / "converted").iterdir():
        path.rename(out / path.name)
    (out / "converted").rmdir()
    config = json.loads((out / CONFIG).read_text())
    if not task.speech:  # the library refuses null for these tokens, which some tokenizers don't have
        config |= {name: config[name] or config["eos_token"] for name in ("bos_token", "unk_token") if name in config}
    (out / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    if not task.speech:
        _write_tokenizers(converter.tokenizer, Path(task.checkpoint), out)
    return _settings(converter.model, converter.tokenizer)


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(".")


def _settings(model: Any, tokenizer: Any) -> Converted:
    generation = model.generation_config
    start = generation.decoder_start_token_id if model.config.model_type == "mbart" else None
    eos = tokenizer.eos_token_id
    # mBART's first models begin with the language, and the later ones with the end token, as all others.
    forced = [each for each in (start if start != eos else None, generation.forced_bos_token_id) if each is not None]
    values = generation.to_dict()
    named = {name: values[name] for name, (_, usual) in DECODING.items() if values.get(name) != usual}
    # Marian never writes its padding, which the converter removes.
    padding = [[generation.pad_token_id]]
    names = () if model.config.model_type == "whisper" else _NOT_CARRIED
    dropped = [name for name in names if values.get(name) not in (None, False, [], padding)]
    note = (
        f"The checkpoint sets {', '.join(dropped)}, which engines of CTranslate2 don't have; answers are made without."
    )
    return Converted(
        prefix=tokenizer.convert_ids_to_tokens(forced),
        defaults={"beam_size": 1} | decoding_settings(named),  # the library's own are two beams
        notes=[note] if dropped else [],
    )


def decoding_settings(settings: Mapping[str, Any]) -> dict[str, int | float]:
    """Return settings of transformers in CTranslate2's names."""
    values = {own: settings[name] for name, (own, _) in DECODING.items() if type(settings.get(name)) in (int, float)}
    if least := values.get("min_decoding_length"):
        values["min_decoding_length"] = least - 1  # transformers counts the token before the answer, too
    return values


def _write_tokenizers(tokenizer: Any, checkpoint: Path, out: Path) -> None:
    """Write the tokenizer of texts, and that of answers where it is another one (Marian's)."""
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        backend.save(str(out / TOKENIZER))
        return
    _write_marian(checkpoint, tokenizer.eos_token, out)
    if (checkpoint / "sentencepiece.bpe.model").is_file():
        before, after = map(tokenizer.convert_ids_to_tokens, (tokenizer.prefix_tokens, tokenizer.suffix_tokens))
        _write_sentencepiece(checkpoint / "sentencepiece.bpe.model", before, after, out / TOKENIZER)
    if not (out / TOKENIZER).is_file():
        raise unsupported(
            f"{checkpoint} has a tokenizer of the class {type(tokenizer).__name__}, which is not read; name a model"
            " with a tokenizer.json."
        )


def _write_marian(checkpoint: Path, end: str, out: Path) -> None:
    for source, name in ((MARIAN_TOKENIZER, TOKENIZER), ("target.spm", TARGET_TOKENIZER)):
        if (checkpoint / source).is_file():
            _write_sentencepiece(checkpoint / source, [], [end], out / name)


def _write_sentencepiece(path: Path, before: list[str], after: list[str], out: Path) -> None:
    """Write a tokenizer of SentencePiece's as tokenizer.json, with these tokens around each text."""
    from tokenizers import AddedToken
    from tokenizers.models import BPE
    from tokenizers.processors import TemplateProcessing
    from transformers.convert_slow_tokenizer import SentencePieceExtractor, SpmConverter

    class Extractor(SentencePieceExtractor):  # type: ignore[misc]
        """Reads the merges of a model of the type BPE, for which SpmConverter of transformers 5.0 passes no type."""

        def extract(self, scores: Any) -> Any:
            found = super().extract(BPE)
            return found["vocab"], found["merges"]

    converter = SpmConverter(SimpleNamespace(vocab_file=str(path)))
    converter.SpmExtractor = Extractor
    tokenizer = converter.converted()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (*before, *after)])
    ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((*before, *after))]
    single = " ".join((*before, "$A", *after))
    tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=ids)
    tokenizer.save(str(out))


def _pegasus_tokenizer(tokenizer: Any, path: Path) -> Any:
    """Return the tokenizer of a Pegasus that has SentencePiece's file alone, whose ids transformers 5.0 does not move
    behind the tokens of the pretraining."""
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import PegasusConverter

    names = ("pad_token", "eos_token", "unk_token", "mask_token")
    tokens = {name: str(getattr(tokenizer, name)) for name in names}
    more = {"mask_token_sent": "<mask_1>", "mask_token_id": 3, "eos_token_id": 1, "offset": 103}
    source = SimpleNamespace(vocab_file=str(path), **tokens, **more)
    return PreTrainedTokenizerFast(tokenizer_object=PegasusConverter(source).converted(), **tokens)


def copy_configs(checkpoint: Path, out: Path) -> None:
    """Copy the checkpoint's files that serving needs beside the converted ones."""
    name = "preprocessor_config.json"
    if (checkpoint / name).is_file():
        shutil.copyfile(checkpoint / name, out / name)
