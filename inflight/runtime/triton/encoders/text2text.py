"""What the model `text2text` reads from a request, and what it makes of answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from inflight.common.request_error import RequestError
from inflight.runtime.encoders.encoder import EncoderInput
from inflight.runtime.encoders.manifest import Seq2SeqDescription, TextDescription
from inflight.runtime.encoders.source_text import SourceText, TextAnswer
from inflight.runtime.encoders.tokenize import PlainText
from inflight.runtime.speech.clip import Clip
from inflight.runtime.triton.encoders.tasks import TextRequest, TokenIds
from inflight.runtime.triton.inputs import Inputs
from inflight.text.tokenizer import decoded_text

_OPTIONS = (
    ("beam_width", "beam_size", 1, 32),
    ("length_penalty", "length_penalty", -10.0, 10.0),
    ("repetition_penalty", "repetition_penalty", 0.1, 10.0),
    ("max_tokens", "max_decoding_length", 1, None),
)
"""Each input, CTranslate2's name of it, its least and its most; None: what the decoder has positions for."""


class Text2Text:
    """`text2text`: texts to texts, in the language that `target_prefix` names or with the prompt of that name."""

    column = True

    def __init__(self, manifest: Seq2SeqDescription, text: TextDescription, tokenizer: Tokenizer) -> None:
        self._manifest = manifest
        self._text = text
        self._tokenizer = tokenizer
        languages = {text.language_token.format(each) for each in manifest.languages}
        self._prefix_beside_language = tuple(token for token in text.prefix if token not in languages)

    def read(self, inputs: Inputs) -> TextRequest:
        rows = range(len(inputs.required("text_input")))
        texts: list[PlainText | TokenIds | Clip | RequestError] = []
        ready: list[Any] = []
        for row in rows:
            try:
                target = decoded_text(inputs.scalar("target_prefix", row, b""), "target_prefix")
                prompt, tokens = self._target(target)
                language = decoded_text(inputs.scalar("source_language", row, b""), "source_language")
                text = prompt + decoded_text(inputs.scalar("text_input", row), "text_input")
                ready.append(
                    partial(self._source, self._source_token(language), tokens, self._decoding(inputs, row, target))
                )
                texts.append(PlainText(text, inputs.scalar("truncate", row, False)))
            except RequestError as error:
                texts.append(error)
                ready.append(None)
        priorities = [inputs.scalar("priority", row, 0) for row in rows]
        return TextRequest(texts, priorities, _outputs, ready=lambda row, text: ready[row](text))

    def empty(self, texts: int) -> Any:
        return [TextAnswer()] * texts

    def _target(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Return the prompt before a text and the tokens of its target language, for a language's code or token, or
        the name of a prompt. Raises RequestError (`unsupported_input`) for another name."""
        prompts = self._text.prompts
        if not name:
            return "", ()
        if name in prompts:
            return prompts[name], ()
        return "", (self._token("target_language", name, prompts),)

    def _source_token(self, name: str) -> dict[str, str]:
        """Return what replaces the token that names the language of a text. Raises RequestError (`unsupported_input`)
        for another name, and for a model without a token for it."""
        if not name:
            return {}
        if not self._text.source_language:
            raise RequestError(
                "the model has no token for the language of a text; leave source_language out", "unsupported_input"
            )
        usual = self._text.language_token.format(self._text.source_language)
        return {usual: self._token("source_language", name)}

    def _token(self, field: str, name: str, others: Iterable[str] = ()) -> str:
        """Return the token of a language, for its code or token."""
        languages, form = self._manifest.languages, self._text.language_token
        code = next((each for each in languages if name in (each, form.format(each))), None)
        if code is None or not form:
            known = [*languages, *others]
            named = f"name one of {', '.join(known)}" if known else "leave it out: the model has one language only"
            raise RequestError(f"{field} {name[:80]!r} is none of the model's; {named}", "unsupported_input")
        return form.format(code)

    def _decoding(self, inputs: Inputs, row: int, target: str) -> tuple[tuple[str, int | float], ...]:
        longest = self._manifest.max_seq_len
        # CTranslate2's own least length is 1, and that of other libraries 0.
        values = {"min_decoding_length": 0, "max_decoding_length": longest, **self._text.defaults}
        values |= self._text.prompt_defaults.get(target, {})
        values["max_decoding_length"] = min(values["max_decoding_length"], longest)
        for name, own, least, most in _OPTIONS:
            value = inputs.number(name, row, least, longest if most is None else most)
            if value is not None:
                values[own] = value
        values["min_decoding_length"] = min(values["min_decoding_length"], values["max_decoding_length"])
        return tuple(sorted(values.items()))

    def _source(
        self,
        source: Mapping[str, str],
        language: tuple[str, ...],
        decoding: tuple[tuple[str, int | float], ...],
        text: EncoderInput,
    ) -> SourceText:
        text_tokens = (self._tokenizer.id_to_token(each) for each in text.token_ids.tolist())
        first, prefix = (language, ()) if self._text.target_language_in == "before" else ((), language)
        before, after = (
            [source.get(each, each) for each in around] for around in (self._text.before, self._text.after)
        )
        tokens = (*first, *before, *text_tokens, *after)
        own = self._prefix_beside_language if prefix else self._text.prefix
        return SourceText(tokens, (*prefix, *own), decoding)


def _outputs(answers: Sequence[TextAnswer]) -> dict[str, Any]:
    return {
        "text_output": np.array([[answer.text.encode()] for answer in answers], np.object_),
        "num_output_tokens": np.array([[answer.tokens] for answer in answers], np.int32),
        "finish_reason": np.array([[answer.finish_reason.encode()] for answer in answers], np.object_),
    }
