"""A database that answers go to, and what a test asks of it."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Any, TypeVar

from sqlalchemy import create_engine, text

from inflight.batch.outputs.sql import TableOutput
from tests.batch.outputs.answers import job

Output = TypeVar("Output", bound=TableOutput)


class Shop:
    """Of SQLite or PostgreSQL."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._engine = create_engine(address.replace("postgresql:", "postgresql+psycopg:"), pool_pre_ping=True)
        self._outputs = ExitStack()

    def do(self, *statements: str) -> None:
        with self._engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def rows(self, question: str) -> list[tuple[Any, ...]]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(question))]

    def close(self) -> None:
        self._outputs.close()
        self._engine.dispose()

    def output(self, **options: Any) -> TableOutput:
        """An output of a job into a table of it, which is closed with it."""
        return self.opened(TableOutput(job(self.address, **options)))

    def opened(self, output: Output) -> Output:
        """Close an output with it."""
        return self._outputs.enter_context(closing(output))

    def products(self, count: int) -> None:
        """A table of products without descriptions, with the keys 1, 2, ..."""
        self.do(
            "CREATE TABLE products"
            " (sku INTEGER PRIMARY KEY, name TEXT, price INTEGER, description TEXT, tokens INTEGER)",
            *(f"INSERT INTO products VALUES ({n}, 'product {n}', {n}, NULL, NULL)" for n in range(1, count + 1)),
        )

    def descriptions(self, **more: Any) -> TableOutput:
        """Where the descriptions of those products go."""
        return self.output(table="products", key="sku", column="description", **more)
