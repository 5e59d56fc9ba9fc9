"""Checks a Hugging Face checkpoint directory before hours of work are spent on it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from build_engines.checkpoints.ctranslate2_model import (
    MODEL,
    SEQ2SEQ_TASKS,
    VOCABULARIES,
    is_ctranslate2_model,
    model_config,
    read_ctranslate2,
    seq2seq_task,
)
from build_engines.checkpoints.openvino_ir import is_openvino_model, openvino_files
from build_engines.checkpoints.safetensors_header import check_safetensors
from build_engines.errors import BuildError, damaged, unsupported
from build_engines.gguf.header import is_gguf

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
PICKLES = "pytorch_model*.bin"
_PICKLE, _PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# Each of these alone is a tokenizer that transformers can read; the rest is only hashed with it.
_TOKENIZERS = (
    "tokenizer.json",
    *("tokenizer.model", "sentencepiece.bpe.model", "spiece.model", "spm.model"),
    *("tiktoken.model", "vocab.json", "vocab.txt"),
)
_TOKENIZER_FILES = (
    *_TOKENIZERS,
    *("source.spm", "target.spm", "target_vocab.json"),
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
)
_CHUNK = 1 << 24
FURTHER_TEMPLATES = "additional_chat_templates"
"""Directory of further chat templates by name (`tool_use.jinja`)."""


@dataclass(frozen=True)
class Checkpoint:
    """A directory that passed all checks: parsed config, weight files and their number of parameters, tokenizer.

    Of a GGUF file, `directory` and the only file of weights are the file.
    """

    directory: Path
    config: dict[str, Any]
    weights: tuple[Path, ...]
    parameters: int
    tokenizer: tuple[Path, ...]

    @property
    def architecture(self) -> str:
        return str(self.config["architectures"][0])

    @property
    def is_gguf(self) -> bool:
        return self.weights == (self.directory,)

    @property
    def weight_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.weights)

    def hash_weights(self, on_progress: Callable[[int, int], None]) -> str:
        """Hash the weights, by names and contents, and the configs; `on_progress(done, total)` gets bytes."""
        total, done = self.weight_bytes, 0
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        generation = self.directory / "generation_config.json"
        if generation.is_file():
            digest.update(generation.read_bytes())
        for path in _encoder_files(self.directory):
            digest.update(f"\0{path.relative_to(self.directory)}\0".encode() + path.read_bytes())
        for path in self.weights:
            digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    done += len(chunk)
                    on_progress(done, total)
        return digest.hexdigest()

    def hash_tokenizer(self) -> str:
        digest = hashlib.sha256()
        for path in self.tokenizer:
            content = path.read_bytes()
            digest.update(f"\0{path.name}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()

    def hash_chat_template(self) -> str | None:
        """Hash the chat templates: separate files, or a field of tokenizer_config.json; None without any."""
        further = sorted((self.directory / FURTHER_TEMPLATES).glob("*.jinja"))
        templates = [path for path in (self.directory / "chat_template.jinja", *further) if path.is_file()]
        if templates:
            names = "".join(path.name for path in further).encode()
            return hashlib.sha256(names + b"".join(path.read_bytes() for path in templates)).hexdigest()
        settings = self.directory / "tokenizer_config.json"
        template = read_json(settings).get("chat_template") if settings.is_file() else None
        return None if template is None else hashlib.sha256(json.dumps(template).encode()).hexdigest()


@contextmanager
def map_read_errors(directory: Path) -> Iterator[None]:
    """Raise BuildError (`checkpoint_damaged`) for an OSError while reading a checkpoint."""
    try:
        yield
    except OSError as error:
        raise damaged(
            f"The checkpoint {directory} can't be read ({_reason(error)}); fix that, or fetch the checkpoint again."
        ) from error


def check_buildable(directory: Path, config: dict[str, Any]) -> None:
    """Raise BuildError (`unsupported_architecture`) if the model does not generate text or is quantized already."""
    architecture = str(config["architectures"][0])
    if not architecture.endswith(("ForCausalLM", "LMHeadModel")):
        raise unsupported(
            f"{directory} has the architecture {architecture}; build a model that generates text (…ForCausalLM), or one"
            f" with an encoder and a decoder: {', '.join(SEQ2SEQ_TASKS)}."
        )
    if quantized := config.get("quantization_config"):
        method = quantized.get("quant_method", "another method") if isinstance(quantized, dict) else "another method"
        raise unsupported(
            f"{directory} is quantized already ({method}); build from the original weights, "
            "with --precision int8 or int4."
        )


def read_checkpoint(directory: Path, *, check: Callable[[Path, dict[str, Any]], None] = check_buildable) -> Checkpoint:
    """Check `directory` and return it as a Checkpoint; reads only headers (milliseconds).

    Raises BuildError: `checkpoint_not_found`, `not_a_checkpoint` (no config, weights or tokenizer),
    `checkpoint_damaged` (a file is truncated, garbled, unreadable, or listed in the index but missing), and what
    `check` raises for the directory and its config, before anything else is read. Of a GGUF file, it raises as
    `read_model` of `build_engines.gguf` does.
    """
    with map_read_errors(directory):
        if is_gguf(directory):
            from build_engines.gguf.unpack import read_model

            config, parameters = read_model(directory)
            check(directory, config)
            return Checkpoint(directory, config, (directory,), parameters, ())
        if is_ctranslate2_model(directory):
            facts = read_ctranslate2(directory)
            config = model_config(facts, read_config_file(directory))
            check(directory, config)
            names = (*VOCABULARIES, "tokenizer.json", "source.spm", "target.spm")
            tokenizer = tuple(path for name in names if (path := directory / name).is_file())
            return Checkpoint(directory, config, (directory / MODEL,), facts.parameters, tokenizer)
        return _read(directory, check)


def _read(directory: Path, check: Callable[[Path, dict[str, Any]], None]) -> Checkpoint:
    config = read_config(directory)
    check(directory, config)
    weights = _find_weights(directory, pickles=seq2seq_task(config) is not None)
    tokenizer = tuple(path for name in _TOKENIZER_FILES if (path := directory / name).is_file())
    if not any(path.name in _TOKENIZERS for path in tokenizer):
        raise BuildError(
            f"{directory} has no tokenizer (none of {', '.join(_TOKENIZERS)}); copy the tokenizer's files there.",
            "not_a_checkpoint",
        )
    return Checkpoint(directory, config, tuple(weights), sum(weights.values()), tokenizer)


def _encoder_files(directory: Path) -> list[Path]:
    """Return the files of sentence-transformers, which decide what an encoder computes."""
    patterns = ("modules.json", "config_sentence_transformers.json", "sentence_*_config.json", "[0-9]_*/*")
    return sorted(path for pattern in patterns for path in directory.glob(pattern) if path.is_file())


def link_or_copy(source: Path, copy: Path) -> None:
    """Make `copy` another name of a download, which is never written again, or a copy of a user's file.

    A download is copied too where the file system can't have two names (another disk, another owner).
    """
    if source.is_symlink():  # as the hub's library stores downloads
        with suppress(OSError):
            os.link(source.resolve(), copy)
            return
    shutil.copyfile(source, copy)


def gguf_choice_error(place: str | Path, names: Iterable[str], how: str) -> BuildError:
    """Return the error of a place with GGUF files of which the user has to name one; `how` says how."""
    return BuildError(f"{place} has models in GGUF; {how}: {', '.join(sorted(names))}.", "not_a_checkpoint")


def check_not_gguf(directory: Path, target: str) -> None:
    """Raise BuildError (`unsupported_architecture`) for a GGUF file, which `target` can't build."""
    if is_gguf(directory):
        raise unsupported(
            f"The target {target} can't build {directory}, which is in GGUF; build it with --target openvino, or from"
            " the original Hugging Face model."
        )


def checkpoint_directory(path: Path) -> Path:
    """Return the directory of a checkpoint that `path` or its config.json names."""
    return path.parent if path.name == "config.json" and path.is_file() else path


def read_config_file(directory: Path) -> dict[str, Any]:
    """Return the parsed config.json of a checkpoint, which may describe any model, or what a GGUF file says instead.

    Raises BuildError as `read_checkpoint` does.
    """
    if is_gguf(directory):
        from build_engines.gguf.families import read_gguf_config
        from build_engines.gguf.header import read_gguf

        return read_gguf_config(read_gguf(directory))
    return read_json(_find_config(directory))


def _find_config(directory: Path) -> Path:
    if not directory.is_dir():
        what = "is a file, not a directory" if directory.exists() else "doesn't exist"
        raise BuildError(f"The checkpoint {directory} {what}; check the path.", "checkpoint_not_found")
    path = directory / "config.json"
    if not path.is_file():
        if files := gguf_files(directory):
            raise gguf_choice_error(directory, files, "name one of the files")
        raise BuildError(
            f"{directory} has no config.json, so it is not a Hugging Face checkpoint; check the path.",
            "not_a_checkpoint",
        )
    return path


def read_config(directory: Path) -> dict[str, Any]:
    """Return the parsed config.json of a checkpoint; raises BuildError as `read_checkpoint` does, before `check`."""
    config = read_config_file(directory)
    architectures = config.get("architectures")
    if not isinstance(config.get("model_type"), str) or not isinstance(architectures, list) or not architectures:
        raise BuildError(
            f"{directory} has no model_type or no architectures, so this is not the checkpoint of a language model.",
            "not_a_checkpoint",
        )
    return config


def _find_weights(directory: Path, *, pickles: bool) -> dict[Path, int]:
    """Return the weight files in order, each with its number of parameters, which an OpenVINO model and pickles do not
    say. With `pickles`, the target reads only tensors of them, so that they run no code."""
    if is_openvino_model(directory):
        return dict.fromkeys(openvino_files(directory), 0)
    index, single = directory / _INDEX, directory / _SINGLE
    if index.is_file():
        shards = _read_index(index)
        # transformers reads the single file then, other libraries all files.
        if single.is_file() and list(shards) != [single]:
            raise BuildError(
                f"{directory} has weights twice, in {_SINGLE} and in the files that {_INDEX} lists; remove those that"
                " you don't want.",
                "not_a_checkpoint",
            )
        return shards
    if single.is_file():
        return {single: sum(check_safetensors(single).values())}
    if pickles and (directory / _PICKLE).is_file():
        return {directory / _PICKLE: 0}
    if pickles and (directory / _PICKLE_INDEX).is_file():
        return dict.fromkeys(_read_places(directory / _PICKLE_INDEX)[1], 0)
    if any(directory.glob("*.bin")) or any(directory.glob("*.pt")) or any(directory.glob("*.pth")):
        raise BuildError(
            f"{directory} has its weights as pickles (*.bin), which can run code when loaded; "
            "convert them to safetensors (save_pretrained does) and build from those.",
            "not_a_checkpoint",
        )
    if files := gguf_files(directory):
        raise gguf_choice_error(directory, files, "name one of the files")
    raise BuildError(
        f"{directory} has no weights (neither {_SINGLE} nor {_INDEX}); download the checkpoint again.",
        "not_a_checkpoint",
    )


def gguf_files(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("*.[gG][gG][uU][fF]")]


def _read_places(index: Path) -> tuple[dict[str, str], list[Path]]:
    """Return the file of each tensor that an index names, and all files in order."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise damaged(f"{index} has no weight_map; fetch the checkpoint again.")
    shards = [index.parent / name for name in sorted(set(places.values()))]
    missing = [path.name for path in shards if not path.is_file()]
    if missing:
        raise damaged(
            f"{index.parent} lacks {len(missing)} of {len(shards)} weight files named in its index "
            f"({missing[0]}{' and others' if len(missing) > 1 else ''}); fetch the checkpoint again."
        )
    return places, shards


def _read_index(index: Path) -> dict[Path, int]:
    places, shards = _read_places(index)
    parameters = {}
    for path in shards:
        tensors = check_safetensors(path)
        absent = {name for name, file in places.items() if file == path.name} - tensors.keys()
        if absent:
            raise damaged(f"{path} lacks the tensor {min(absent)}, which the index lists; fetch the checkpoint again.")
        parameters[path] = sum(tensors.values())
    return parameters


@overload
def read_json(path: Path) -> dict[str, Any]: ...
@overload
def read_json(path: Path, kind: type[list[Any]]) -> list[Any]: ...
def read_json(path: Path, kind: type[dict[str, Any] | list[Any]] = dict) -> dict[str, Any] | list[Any]:
    """Return the object, or list, in a file of a checkpoint.

    Raises BuildError (`checkpoint_damaged`) for anything else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(f"{path} is not valid JSON ({error}); fetch the checkpoint again.") from error
    if not isinstance(content, kind):
        what = "object" if kind is dict else "list"
        raise damaged(f"{path} is not a JSON {what}; fetch the checkpoint again.")
    return content


def _reason(error: OSError) -> str:
    """Return the system's error text, with the file's name if it has one."""
    words = error.strerror or str(error)
    return words if error.filename is None else f"{Path(error.filename).name}: {words}"
