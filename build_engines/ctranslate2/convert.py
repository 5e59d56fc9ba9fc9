"""Converts a checkpoint of transformers to CTranslate2's format in a child process, with the library's converter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from build_engines.errors import BuildError

CONFIG, TOKENIZER, TARGET_TOKENIZER = "config.json", "tokenizer.json", "target_tokenizer.json"
_LAYER_NORMS = {"BartConfig": (False, True), "MBartConfig": (True, True), "PegasusConfig": (True, False)}
"""Whether layers are normalized before them, and whether embeddings are: configs of transformers 5 don't say so."""
DECODING = {
    "num_beams": ("beam_size", 1),
    "length_penalty": ("length_penalty", 1.0),
    "repetition_penalty": ("repetition_penalty", 1.0),
    "no_repeat_ngram_size": ("no_repeat_ngram_size", 0),
    "min_length": ("min_decoding_length", 0),
    "max_length": ("max_decoding_length", 20),
}
"""CTranslate2's name of each setting of transformers, and the value of a model that names none."""


@dataclass(frozen=True)
class Conversion:
    """The settings of a conversion into the directory `out`; `quantization` None keeps the type of the weights."""

    checkpoint: str
    out: str
    quantization: str | None
    speech: bool


@dataclass(frozen=True)
class Converted:
    """What the manifest needs of the model's generation settings: see `Seq2SeqText`."""

    prefix: list[str]
    defaults: dict[str, int | float]


def export(task: Conversion, on_step: Callable[[str], None]) -> Converted:
    """Convert the model of `task`, and write its tokenizer as tokenizer.json unless it is one for speech.

    Raises BuildError (`unsupported_architecture`) for a model or a tokenizer that the converter refuses.
    """
    on_step("Loading the converter")
    import transformers
    from ctranslate2.converters import TransformersConverter

    for name, (layers_first, embeddings) in _LAYER_NORMS.items():
        config = getattr(transformers, name)
        config.normalize_before, config.normalize_embedding = layers_first, embeddings

    class Converter(TransformersConverter):  # type: ignore[misc]
        """Keeps what it loads."""

        def load_model(self, *args: Any, **options: Any) -> Any:
            self.model = super().load_model(*args, **options)
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
            self.tokenizer = super().load_tokenizer(*args, **options)
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
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(".")
        raise BuildError(
            f"CTranslate2 can't convert {task.checkpoint} ({reason}); name another model, or fetch this one again.",
            "unsupported_architecture",
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


def _settings(model: Any, tokenizer: Any) -> Converted:
    generation = model.generation_config
    start = generation.decoder_start_token_id if model.config.model_type == "mbart" else None
    eos = tokenizer.eos_token_id
    # mBART's first models begin with the language, and the later ones with the end token, as all others.
    forced = [each for each in (start if start != eos else None, generation.forced_bos_token_id) if each is not None]
    values = {ours: (getattr(generation, name, None), usual) for name, (ours, usual) in DECODING.items()}
    return Converted(
        prefix=tokenizer.convert_ids_to_tokens(forced),
        defaults={name: value for name, (value, usual) in values.items() if value not in (None, usual)},
    )


def _write_tokenizers(tokenizer: Any, checkpoint: Path, out: Path) -> None:
    """Write the tokenizer of texts, and that of answers where it is another one (Marian's)."""
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        backend.save(str(out / TOKENIZER))
        return
    for source, name in (("source.spm", TOKENIZER), ("target.spm", TARGET_TOKENIZER)):
        if (checkpoint / source).is_file():
            _write_sentencepiece(checkpoint / source, [], [tokenizer.eos_token], out / name)
    if (checkpoint / "sentencepiece.bpe.model").is_file():
        before, after = map(tokenizer.convert_ids_to_tokens, (tokenizer.prefix_tokens, tokenizer.suffix_tokens))
        _write_sentencepiece(checkpoint / "sentencepiece.bpe.model", before, after, out / TOKENIZER)
    if not (out / TOKENIZER).is_file():
        raise BuildError(
            f"{checkpoint} has a tokenizer of the class {type(tokenizer).__name__}, which is not read; name a model"
            " with a tokenizer.json.",
            "unsupported_architecture",
        )


def _write_sentencepiece(path: Path, before: list[str], after: list[str], out: Path) -> None:
    """Write a tokenizer of SentencePiece's as tokenizer.json, with these tokens around each text."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing
    from transformers.convert_slow_tokenizer import SpmConverter

    tokenizer = SpmConverter(SimpleNamespace(vocab_file=str(path))).converted()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (*before, *after)])
    ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((*before, *after))]
    single = " ".join((*before, "$A", *after))
    tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=ids)
    tokenizer.save(str(out))


def copy_configs(checkpoint: Path, out: Path) -> None:
    """Copy the checkpoint's files that serving needs beside the converted ones."""
    name = "preprocessor_config.json"
    if (checkpoint / name).is_file():
        shutil.copyfile(checkpoint / name, out / name)
