"""Converts the tokenizer to OpenVINO models; OpenVINO GenAI reads the vocabulary from them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

OPENVINO_TOKENIZER_FILES = (
    "openvino_tokenizer.xml",
    "openvino_tokenizer.bin",
    "openvino_detokenizer.xml",
    "openvino_detokenizer.bin",
)

# OpenVINO GenAI tests each loaded tokenizer in a separate thread. If the tokenizer is freed meanwhile, the thread reads
# freed memory and may crash the process (2026.4.1), so these are never freed.
_loaded: list[Any] = []

_SPACE_MARK = "▁"
_ONE_BYTE = re.compile(rb"<0x([0-9A-Fa-f]{2})>")


def write_openvino_tokenizer(tokenizer: Any, out: Path) -> list[str]:
    """Convert a fast tokenizer into `OPENVINO_TOKENIZER_FILES` of the engine directory `out`.

    The engine reads the text of each token from them for guided decoding, and compares them with a draft model's.
    If the tokenizer can't be converted, no files are written and a note is returned; the engine does everything else.
    """
    import openvino
    from openvino_tokenizers import convert_tokenizer

    try:
        models = convert_tokenizer(tokenizer, with_detokenizer=True)
        _set_token_bytes(models[1], tokenizer)
        for model, name in zip(models, OPENVINO_TOKENIZER_FILES[::2], strict=True):
            openvino.save_model(model, out / name)
        if not load_tokenizer(out).get_vocab():
            raise RuntimeError("its vocabulary can't be read")
    except Exception as error:
        # The converter raises many kinds of errors for an unknown tokenizer; all mean the same to the user.
        for name in OPENVINO_TOKENIZER_FILES:
            (out / name).unlink(missing_ok=True)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        return [f"OpenVINO can't convert the tokenizer ({reason}), so guided decoding and a draft model won't work."]
    return []


def load_tokenizer(directory: Path) -> Any:
    """Return the `openvino_genai.Tokenizer` of an engine directory; it is never freed."""
    import openvino_genai

    _loaded.append(openvino_genai.Tokenizer(str(directory)))
    return _loaded[-1]


def _set_token_bytes(detokenizer: Any, tokenizer: Any) -> None:
    """Set the text of each token to the bytes that it adds to an answer.

    The converter keeps SentencePiece's mark for a space and its names for single bytes. It also gives special tokens a
    text, but they add none, so no grammar may allow them.
    """
    import numpy
    import openvino

    (decoder,) = (node for node in detokenizer.get_ordered_ops() if node.get_type_name() == "VocabDecoder")
    begins, ends, bytes_of_all = (decoder.input_value(number).get_node().data for number in (1, 2, 3))
    whole = bytes_of_all.tobytes()
    pieces = [whole[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    rules = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str())["decoder"], ensure_ascii=False)
    if _SPACE_MARK in rules or "Metaspace" in rules:
        pieces = [piece.replace(_SPACE_MARK.encode(), b" ") for piece in pieces]
    if "ByteFallback" in rules:
        pieces = [bytes([int(found[1], 16)]) if (found := _ONE_BYTE.fullmatch(piece)) else piece for piece in pieces]
    for number in _special_ids(tokenizer):
        pieces[number] = b""
    stops = numpy.cumsum([len(piece) for piece in pieces])
    for number, data in (
        (1, stops - [len(piece) for piece in pieces]),
        (2, stops),
        (3, numpy.frombuffer(b"".join(pieces), numpy.uint8)),
    ):
        constant = openvino.opset13.constant(data.astype(numpy.uint8 if number == 3 else numpy.int32))
        decoder.input(number).replace_source_output(constant.output(0))


def _special_ids(tokenizer: Any) -> set[int]:
    added = tokenizer.added_tokens_decoder.items()
    return {*tokenizer.all_special_ids, *(number for number, token in added if token.special)}
