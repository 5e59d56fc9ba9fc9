"""Requests to an encoder: texts of random lengths, or of a file; and requests to transcribe the audio of a file."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.workloads.distributions import Distribution
from loadtests.workloads.interface import TextsRequest
from loadtests.workloads.json_lines import JsonLines, RowError
from loadtests.workloads.scripted_conversation import ClientCancellation
from loadtests.workloads.spec import Task
from loadtests.workloads.text_generator import TextGenerator, prompt_text


@dataclass(frozen=True, slots=True)
class TextsSession:
    """A `loadtests.workloads.interface.Session` of one request."""

    number: int
    request: TextsRequest
    due: float | None = None

    def requests(self) -> Generator[TextsRequest, str, None]:
        yield self.request


@dataclass(frozen=True)
class SyntheticTexts:
    """Texts of common words, each a new one, without end."""

    generator: TextGenerator
    text_tokens: Distribution
    query_tokens: Distribution

    def texts(self, session: int, count: int, source: random.Random) -> tuple[str, ...]:
        """Return the texts of a session, at most `count`; of a file none if there are no more."""
        return tuple(self._text(self.text_tokens, source) for _ in range(count))

    def query(self, session: int, source: random.Random) -> str:
        return self._text(self.query_tokens, source)

    def _text(self, tokens: Distribution, source: random.Random) -> str:
        return prompt_text(self.generator, tokens.draw_integer(source), source)


class TextFile:
    """The texts of a file of JSON Lines: one in each line (`text`, `text_input` or `prompt`), `query` and `documents`
    to rerank, or `audio` to transcribe, a path that may be relative to the file's folder, and perhaps `language`.

    With documents, each line is a request. Otherwise a request has the next texts of the file; if the number of texts
    per request is random, some are sent twice in a round and some not at all. Lines without texts are
    left out. Raises LoadError if all are such, or one is not JSON.
    """

    def __init__(self, data: bytes, name: str, task: Task, repeat: bool) -> None:
        self.lines = JsonLines(data, name)
        self._task, self._folder, self._repeat = task, Path(name).expanduser().parent, repeat
        self.lines.keep_valid(self._parse)

    def texts(self, session: int, count: int, source: random.Random) -> tuple[str, ...]:
        numbers = (
            (session,) if self._task in ("rerank", "transcribe") else range(session * count, (session + 1) * count)
        )
        return tuple(text for number in numbers for text in self._line(number)[1])

    def query(self, session: int, source: random.Random) -> str:
        return self._line(session)[0]

    def _line(self, number: int) -> tuple[str, tuple[str, ...]]:
        """Return the query and the texts of a line, counted over all rounds; nothing after the last round."""
        turn, row = divmod(number, len(self.lines))
        return ("", ()) if turn and not self._repeat else self._parse(self.lines.read(row))

    def _parse(self, values: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
        if self._task == "transcribe":
            audio, language = values.get("audio"), values.get("language", "")
            if not isinstance(audio, str) or not isinstance(language, str) or not (self._folder / audio).is_file():
                raise RowError("has no `audio` that is the path of a file, or a `language` that is no text")
            return language, (str(self._folder / audio),)
        if self._task == "rerank":
            query, documents = values.get("query"), values.get("documents")
            texts = isinstance(documents, list) and all(isinstance(document, str) for document in documents)
            if isinstance(query, str) and documents and texts:
                return query, tuple(documents)
            raise RowError("has no `query`, or no `documents` that are a list of texts")
        text = next((values[name] for name in ("text", "text_input", "prompt") if name in values), None)
        if not isinstance(text, str):
            raise RowError("has no text; name it `text`, `text_input` or `prompt`")
        return "", (text,)


@dataclass(frozen=True)
class TextsWorkload:
    """A session for each request."""

    source: SyntheticTexts | TextFile
    texts_per_request: Distribution
    has_queries: bool
    cancellation: ClientCancellation
    seed: int

    def session(self, number: int) -> TextsSession | None:
        random_source = random.Random(f"{self.seed}/{number}")
        count = self.texts_per_request.draw_integer(random_source)
        texts = self.source.texts(number, count, random_source)
        if not texts:
            return None
        query = self.source.query(number, random_source) if self.has_queries else ""
        return TextsSession(number, TextsRequest(texts, query, 0.0, self.cancellation.draw(random_source)))
