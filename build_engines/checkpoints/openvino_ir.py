"""Reads what an OpenVINO model (openvino_model.xml, IR) says of itself, without OpenVINO."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from build_engines.errors import BuildError, damaged, invalid, unsupported
from build_engines.manifest import Precision

MODEL, WEIGHTS = "openvino_model.xml", "openvino_model.bin"
_LAYER = ["net", "layers", "layer"]
_FLOATS: dict[str, Precision] = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
_BYTES: dict[str, Precision] = {"i8": "int8", "u8": "int8"}
_NIBBLES = ("i4", "u4")
# Indices and shapes.
_OTHERS = ("boolean", "f64", "i16", "i32", "i64", "string", "u1", "u16", "u32", "u64")


@dataclass
class IrFacts:
    """What the file `path` says of its model.

    `inputs` and `outputs` are names with the dimensions, -1 if dynamic, which also `states` (what the model remembers
    of earlier tokens) have. `stored` are the bytes of constants by OpenVINO's name of their type; they end at the byte
    `end` of openvino_model.bin.
    """

    path: Path
    inputs: dict[str, list[int]] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    states: list[list[int]] = field(default_factory=list)
    stored: Counter[str] = field(default_factory=Counter)
    end: int = 0

    @property
    def precision(self) -> Precision:
        """The precision of the weights: int4 if any has 4 bits, otherwise that of most bytes.

        Raises BuildError (`unsupported_architecture`) for types that no engine of ours has.
        """
        known = _FLOATS | _BYTES
        if foreign := self.stored.keys() - known.keys() - {*_NIBBLES, *_OTHERS}:
            raise unsupported(
                f"{self.path} has weights of the type {min(foreign)}; choose a model whose weights are in fp32, fp16,"
                " bf16, int8 or int4."
            )
        if any(self.stored[kind] for kind in _NIBBLES):
            return "int4"
        return known[max(known, key=lambda kind: self.stored[kind])]


def is_openvino_model(directory: Path) -> bool:
    """Return whether a directory has its weights for OpenVINO, and none in safetensors."""
    return bool(openvino_parts(directory)) and not any(directory.glob("*.safetensors"))


def openvino_parts(directory: Path) -> list[str]:
    """Return the names of the files of OpenVINO models in a directory, without those of tokenizers."""
    files = [path for path in directory.glob("openvino_*") if path.suffix in (".xml", ".bin")]
    return sorted(path.name for path in files if "tokenizer" not in path.name)


def other_precision(where: str | Path, precision: str, asked: str) -> BuildError:
    """Return the refusal of a precision that the weights of an OpenVINO model don't have."""
    return invalid(
        f"{where} has {precision} weights, which are not converted to {asked}; leave --precision out, or name the"
        " original model, with its weights in safetensors."
    )


def read_ir(path: Path) -> IrFacts:
    """Return the facts of the openvino_model.xml `path`, which is untrusted.

    Raises BuildError (`checkpoint_damaged`) if it is no IR.
    """
    reader = _Reader(IrFacts(path))
    try:
        with path.open("rb") as file:
            reader.parser.ParseFile(file)
        if reader.root != "net":
            raise ValueError(f"its root is <{reader.root}>")
    except (expat.ExpatError, ValueError, KeyError) as error:
        reason = f"the attribute {error} is missing" if isinstance(error, KeyError) else str(error)
        raise damaged(f"{path} is not an OpenVINO model ({reason}); fetch it again.") from error
    return reader.facts


def openvino_files(directory: Path) -> tuple[Path, Path]:
    """Return the files of the OpenVINO model in `directory`, which is complete.

    Raises BuildError: `not_a_checkpoint` without tokenizer.json, `checkpoint_damaged` if the weights are missing or cut
    off, and as `read_ir` does.
    """
    if not (directory / "tokenizer.json").is_file():
        there = (directory / "openvino_tokenizer.xml").is_file()
        unused = "; openvino_tokenizer.xml, which it has, is not used" if there else ""
        raise BuildError(
            f"{directory} has no tokenizer.json{unused}; copy the one of the original model there.", "not_a_checkpoint"
        )
    model, weights = directory / MODEL, directory / WEIGHTS
    size = weights.stat().st_size if weights.is_file() else 0
    if size < (end := read_ir(model).end):
        raise damaged(f"{weights} has {size:,} bytes, and {MODEL} describes {end:,}; fetch it again.")
    return model, weights


class _Reader:
    """Collects the facts while the parser reads; only layers of the model itself, not of bodies inside a layer, are
    its inputs, outputs and states."""

    def __init__(self, facts: IrFacts) -> None:
        self.facts = facts
        self.root = ""
        self.parser: Any = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._refuse
        self._path: list[str] = []
        self._kind = self._name = self._digits = ""
        self._dims: list[int] = []

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.root = self.root or tag
        self._path.append(tag)
        if tag == "layer":
            self._kind, self._name = attributes["type"], attributes.get("output_names") or attributes["name"]
        elif tag == "port":
            self._dims = []
            self._name = attributes.get("names", self._name)
        elif tag == "dim":
            self._digits = ""
        elif tag == "data" and self._kind == "Const":
            size, end = int(attributes["size"]), int(attributes["offset"]) + int(attributes["size"])
            if not 0 <= size <= end:
                raise ValueError("a constant has a negative size or offset")
            self.facts.stored[attributes["element_type"]] += size
            self.facts.end = max(self.facts.end, end)
        elif tag == "data" and self._kind == "ReadValue" and self._path[:-1] == _LAYER:
            shape = attributes.get("variable_shape", "").replace("?", "-1")
            self.facts.states.append([int(size) if size.lstrip("-").isdigit() else -1 for size in shape.split(",")])

    def _end(self, tag: str) -> None:
        if tag == "dim":
            self._dims.append(int(self._digits))
        elif tag == "layer" and self._path == _LAYER and self._kind in ("Parameter", "Result"):
            places = self.facts.inputs if self._kind == "Parameter" else self.facts.outputs
            places[self._name.split(",")[0]] = self._dims
        self._path.pop()

    def _text(self, text: str) -> None:
        if self._path and self._path[-1] == "dim":
            self._digits += text

    def _refuse(self, *_: object) -> None:
        raise ValueError("it declares a document type, which could define entities")
