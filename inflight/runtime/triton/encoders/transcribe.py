"""What the model `whisper` reads from a request, and what it makes of transcripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from inflight.common.request_error import RequestError
from inflight.runtime.encoders.manifest import Seq2SeqDescription
from inflight.runtime.encoders.tokenize import PlainText
from inflight.runtime.speech.clip import Clip, Decoding
from inflight.runtime.speech.prefix import Prefixes, special_tokens
from inflight.runtime.speech.transcript import Transcript
from inflight.runtime.triton.encoders.tasks import TextRequest, TokenIds
from inflight.runtime.triton.inputs import Inputs
from inflight.text.tokenizer import decoded_text

_TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures at which a poor transcript is decoded again, as in OpenAI's code, unless the request names one."""
_MAX_BEAM_WIDTH = 16


class Transcribe:
    """`whisper`: clips to text, each with the prefix that its decoder continues."""

    column = True

    def __init__(self, manifest: Seq2SeqDescription, tokenizer: Tokenizer) -> None:
        self._prefixes = Prefixes(tokenizer, special_tokens(tokenizer, manifest.languages), manifest.max_seq_len)

    def read(self, inputs: Inputs) -> TextRequest:
        rows = range(len(inputs.required("WAV")))
        clips: list[PlainText | TokenIds | Clip | RequestError] = []
        for row in rows:
            try:
                clips.append(self._clip(inputs, row))
            except RequestError as error:
                clips.append(error)
        return TextRequest(clips, [inputs.scalar("priority", row, 0) for row in rows], _outputs)

    def empty(self, texts: int) -> Any:
        return [Transcript("", "", ())] * texts

    def _clip(self, inputs: Inputs, row: int) -> Clip:
        samples = inputs.row("WAV", row).ravel()
        length = inputs.scalar("WAV_LENS", row, len(samples))
        if not 0 <= length <= len(samples):
            raise RequestError(
                f"WAV_LENS is {length}, and WAV has {len(samples)} samples; send a number up to that",
                "invalid_parameter",
            )
        prompt = self._prefixes.read(decoded_text(inputs.scalar("TEXT_PREFIX", row, b""), "TEXT_PREFIX"))
        temperature = inputs.number("temperature", row, 0, 1, 0.0)
        beam_width = inputs.number("beam_width", row, 1, _MAX_BEAM_WIDTH, 1)
        decoding = Decoding(beam_width, temperature, words=inputs.scalar("word_timestamps", row, False))
        clip = Clip(samples[:length], prompt, decoding, () if temperature else _TEMPERATURES)
        clip.check()
        return clip


def _outputs(transcripts: Sequence[Transcript]) -> dict[str, Any]:
    texts = {
        "TRANSCRIPTS": [each.text for each in transcripts],
        "SEGMENTS": [
            json.dumps({"language": each.language, "segments": each.segments}, ensure_ascii=False)
            for each in transcripts
        ],
        "language": [each.language for each in transcripts],
    }
    return {name: np.array([[text.encode()] for text in column], np.object_) for name, column in texts.items()}
