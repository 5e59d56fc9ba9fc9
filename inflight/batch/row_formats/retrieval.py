"""Rows whose prompts contain passages: each is a text to search for first, and a prompt once its passages are there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from inflight_client import InflightError

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import EmbedRequest, GenerateRequest, InputRecord, InvalidRow, Row, RowRequest
from inflight.batch.job.spec import PASSAGES, SOURCES, GenerationDefaults, InputSpec, RetrievalSpec
from inflight.batch.row_formats.lines import column_names, decode_binary
from inflight.batch.row_formats.plain import GenerateRowFormat
from inflight.openai_api.messages import checked_text
from inflight.retrieval.passages import Passages


class RetrievalRowFormat(GenerateRowFormat):
    """`parse` returns rows whose request embeds the text to search for. The template sees `passages`, a list that is a
    text of numbered paragraphs where it is inserted. The ids and scores of the passages are the answer's `sources`.
    """

    def __init__(
        self, spec: InputSpec, defaults: GenerationDefaults, retrieval: RetrievalSpec, overrides: bool = True
    ) -> None:
        super().__init__(spec, defaults, overrides, own=(SOURCES,))
        self._retrieval = retrieval
        if not any(
            PASSAGES in template.columns or template.names_row
            for template in (self._template, self._system)
            if template
        ):
            raise BatchError(
                "no template has a place for the passages; write {{ passages }} in the template, or in the system"
                " message",
                "input_invalid",
            )

    def columns(self, there: Collection[str]) -> set[str]:
        return (super().columns(there) - {PASSAGES}) | {self._retrieval.query}

    def request(self, values: Mapping[str, Any]) -> RowRequest:
        name = self._retrieval.query
        if name not in values:
            raise InflightError(f"the row has no {name!r} to search for, but {column_names(values)}", "row_invalid")
        text = checked_text(name, values[name])
        return EmbedRequest((text,), self._retrieval.input_type, self._retrieval.dimensions)

    def parse(self, number: int, record: InputRecord) -> Row | InvalidRow:
        row = super().parse(number, record)
        return replace(row, context=(*row.context, decode_binary(record.values))) if isinstance(row, Row) else row

    def with_passages(self, row: Row, passages: Passages) -> Row | InvalidRow:
        """Return the row with its prompt, once its passages are there."""
        id_, kept, values = row.context
        try:
            request = super().request({**values, PASSAGES: passages})
        except InflightError as error:
            return InvalidRow(row.number, row.line, row.id, error.code, str(error))
        assert isinstance(request, GenerateRequest)
        return replace(row, request=request, context=(id_, {**(kept or {}), SOURCES: passages.sources()}))
