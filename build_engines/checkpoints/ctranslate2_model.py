"""Reads what a CTranslate2 model (model.bin, its config.json and vocabulary) says of itself, without the library.

Layout of model.bin, little-endian: version, name of the specification, revision, number of variables; each as name,
dimensions, type, number of bytes, bytes; then pairs of names that share a variable. Each name ends with a NUL.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from build_engines.errors import BuildError, damaged, unsupported
from build_engines.manifest import Precision, Seq2SeqTask

MODEL = "model.bin"
VOCABULARIES = tuple(
    f"{name}.{kind}" for name in ("vocabulary", "shared_vocabulary", "target_vocabulary") for kind in ("json", "txt")
)
"""The files of what a model can write; target_vocabulary has source_vocabulary beside it."""
CONFIG_FILES = ("config.json", "preprocessor_config.json", "generation_config.json")
_VERSION = 6
_TYPES: tuple[tuple[str, int, Precision | None], ...] = (
    ("float32", 4, "fp32"),
    ("int8", 1, "int8"),
    ("int16", 2, None),
    ("int32", 4, None),
    ("float16", 2, "fp32"),  # without conversion, processors multiply in 32 bits only
    ("bfloat16", 2, "fp32"),
)
"""Each type's name, its bytes, and the precision in which a processor computes weights of it; None for no weights."""
_FAMILIES = {
    "WhisperSpec": ("whisper", "WhisperForConditionalGeneration"),
    "TransformerSpec": ("text2text", "TransformerForConditionalGeneration"),
}
SEQ2SEQ_TASKS: dict[str, Seq2SeqTask] = {
    "whisper": "transcribe",
    **dict.fromkeys(("t5", "mt5", "bart", "mbart", "marian", "m2m_100", "pegasus", "text2text"), "text2text"),
}
"""The task of each model type with an encoder and a decoder that can be built; text2text is CTranslate2's own."""
_GENERATES = ("ForConditionalGeneration", "MTModel", "T5WithLMHeadModel")


@dataclass(frozen=True)
class CTranslate2Facts:
    """What the file `path` says: the name of its specification, and its variables' types and dimensions by name."""

    path: Path
    spec: str
    variables: dict[str, tuple[int, tuple[int, ...]]]

    @property
    def parameters(self) -> int:
        weights = {id(each): each for name, each in self.variables.items() if name.endswith(("weight", "bias"))}
        return sum(math.prod(shape) for _, shape in weights.values())  # once for names that share a variable

    @property
    def precision(self) -> Precision:
        """The precision in which the weights are computed as they are.

        Raises BuildError (`unsupported_architecture`) for weights in 16-bit integers.
        """
        kinds = {kind for name, (kind, _) in self.variables.items() if name.endswith("/weight")}
        for name, _, precision in (_TYPES[kind] for kind in kinds):
            if precision is None:
                raise unsupported(f"{self.path} has weights in {name}; convert the original model to int8 or float32.")
        return "int8" if 1 in kinds else "fp32"

    def size(self, variable: str, axis: int) -> int:
        """Return a dimension of a variable. Raises BuildError (`checkpoint_damaged`) if the variable is missing."""
        _, shape = self.variables.get(variable, (0, ()))
        if axis >= len(shape):
            raise damaged_model(self.path, f"it has no {variable} with {axis + 1} dimensions")
        return shape[axis]


def is_ctranslate2_model(directory: Path) -> bool:
    """Return whether a directory has a model for CTranslate2."""
    return (directory / MODEL).is_file() and not any(directory.glob("*.safetensors"))


def read_ctranslate2(directory: Path) -> CTranslate2Facts:
    """Return the facts of the model in `directory`, which is untrusted.

    Raises BuildError: `checkpoint_damaged` for a file that is cut off or not of the format.
    """
    path = directory / MODEL
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            (version,) = _unpack(file, "I")
            if version != _VERSION:
                raise damaged_model(path, f"its format has the version {version}, and {_VERSION} is read")
            spec = _string(file)
            _, count = _unpack(file, "II")
            variables = dict(_variable(file, size) for _ in range(count))
            (aliases,) = _unpack(file, "I")
            for _ in range(aliases):
                alias, name = _string(file), _string(file)
                variables[alias] = variables[name]
        except (struct.error, UnicodeDecodeError, IndexError, KeyError, ValueError) as error:
            raise damaged_model(path, "it is cut off, or not of CTranslate2's format") from error
        if file.tell() != size:
            raise damaged_model(path, f"it has {size - file.tell():,} bytes after its end")
    return CTranslate2Facts(path, spec, variables)


def seq2seq_task(config: dict[str, Any]) -> Seq2SeqTask | None:
    """Return the task of a model that has an encoder and a decoder; None for others."""
    named = config.get("architectures")
    if not (isinstance(named, list) and named and str(named[0]).endswith(_GENERATES)):
        return None
    return SEQ2SEQ_TASKS.get(str(config.get("model_type")))


def model_config(facts: CTranslate2Facts, config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with the model's type and architecture, which CTranslate2 does not write.

    Raises BuildError (`unsupported_architecture`) for a model that no engine of ours runs.
    """
    if facts.spec not in _FAMILIES:
        raise unsupported(
            f"{facts.path} is a {facts.spec}, and only {', '.join(_FAMILIES)} can be served; name a model with an"
            " encoder and a decoder."
        )
    model_type, architecture = _FAMILIES[facts.spec]
    return {**config, "model_type": model_type, "architectures": [architecture]}


def _variable(file: BinaryIO, size: int) -> tuple[str, tuple[int, tuple[int, ...]]]:
    name = _string(file)
    (rank,) = _unpack(file, "B")
    shape = _unpack(file, f"{rank}I")
    kind, length = _unpack(file, "BI")
    if length != math.prod(shape) * _TYPES[kind][1] or length > size - file.tell():
        raise ValueError
    file.seek(length, 1)
    return name, (kind, shape)


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "H")
    return file.read(length)[:-1].decode()


def _unpack(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack("<" + layout, file.read(struct.calcsize("<" + layout)))


def damaged_model(path: Path, reason: str) -> BuildError:
    return damaged(f"{path} can't be read ({reason}); fetch or convert the model again.")
