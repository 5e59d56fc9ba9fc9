"""A table of PostgreSQL as a queue: rows are claimed in place, by SKIP LOCKED and a lease."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from inflight.batch.errors import BatchError
from inflight.batch.job.rows import RowStatus
from inflight.batch.job.spec import FileFormat, InputSpec, RunOptions, fingerprint
from inflight.batch.outputs.database import OutputDatabase
from inflight.batch.outputs.interface import OutputWriter
from inflight.batch.outputs.sql import TableOutput
from inflight.batch.queues.source import Message, MessageQueue
from inflight.batch.storage.addresses import split_queue

if TYPE_CHECKING:
    from sqlalchemy import Connection

_COLUMNS = {"status": "text", "leased_until": "timestamptz", "deliveries": "integer NOT NULL DEFAULT 0"}
"""What a table needs to be a queue. A row waits while its status is NULL, and ends with that of its record."""
_LEASE = "leased_until = now() + make_interval(secs => :lease)"
_DESCRIBE = """
SELECT CAST(CAST(attrelid AS regclass) AS text), attname, format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN (
    SELECT max(CAST(indisprimary AS integer)) FROM pg_index WHERE indrelid = attrelid AND indkey[0] = attnum
    AND indnkeyatts = 1 AND indisunique AND indisvalid AND indpred IS NULL) END
FROM pg_attribute WHERE attrelid = coalesce(to_regclass(:exact), to_regclass(:name)) AND attnum > 0 AND NOT attisdropped
"""


class TableQueue(MessageQueue):
    """The rows of a table without a status. Their ids are texts of the column --id, else of the primary key.

    Raises BatchError as OutputDatabase does, and `input_not_found`, `input_invalid`.
    """

    format: FileFormat = "sql"

    def __init__(self, spec: InputSpec, options: RunOptions) -> None:
        super().__init__(spec, options)
        self._address, named = split_queue(spec.address)
        self._lease = options.lease_seconds
        self._database = OutputDatabase(self._address)
        if self._database.dialect != "postgresql":
            raise BatchError(f"{spec.shown} must be PostgreSQL to have a queue; use --table instead", "input_invalid")
        try:
            self._find_table(named, spec.id)
        except BatchError:
            self.disconnect()
            raise

    def _find_table(self, named: str, id: str | None) -> None:
        exact = ".".join('"{}"'.format(part.replace('"', '""')) for part in named.split("."))  # as for --table
        there = self._execute(_DESCRIBE, name=named, exact=exact)
        if not there:
            raise BatchError(f"{self._database.shown} has no table {named!r}; create it", "input_not_found")
        self._table = there[0][0].replace(":", "\\:")  # in quotes where it needs them
        types = {name: type_ for _, name, type_, _ in there}
        unique = {name: is_primary for _, name, _, is_primary in there if is_primary is not None}
        if missing := [f"ADD {name} {type_}" for name, type_ in _COLUMNS.items() if name not in types]:
            raise BatchError(
                f"the table {named} is no queue yet; make it one: ALTER TABLE {named} {', '.join(missing)}",
                "input_invalid",
            )
        key = id or next((name for name, is_primary in unique.items() if is_primary), None)
        if key not in unique:
            lacks = "primary key of one column" if key is None else f"column {key!r} of unique values without NULL"
            raise BatchError(
                f"the table {named} has no {lacks}; name a column that is UNIQUE and NOT NULL with --id",
                "input_invalid",
            )
        self.key_column, self.columns = str(key), list(types)
        self._key = '"{}"'.format(self.key_column.replace('"', '""').replace(":", "\\:"))
        self._ids = f"CAST(CAST(:ids AS text[]) AS {types[self.key_column]}[])"
        is_time = types.get("created_at", "").startswith("timestamp")
        self._sent = "extract(epoch FROM q.created_at)::float8" if is_time else "NULL"
        self.fingerprint = f"queue:{fingerprint([self._table, self.key_column])}"

    def receive(self, limit: int, seconds: float) -> Sequence[Message]:
        rows = self._execute(
            f"UPDATE {self._table} q SET {_LEASE}, deliveries = coalesce(deliveries, 0) + 1"
            f" WHERE {self._key} IN (SELECT {self._key} FROM {self._table} WHERE status IS NULL AND"
            f" (leased_until IS NULL OR leased_until < now()) ORDER BY {self._key} LIMIT :limit FOR UPDATE SKIP LOCKED)"
            f" RETURNING CAST(q.{self._key} AS text), CAST(row_to_json(q) AS text), q.deliveries, {self._sent}",
            lease=self._lease,
            limit=limit,
        )
        if not rows:
            time.sleep(seconds)
        return [_message(*row) for row in rows]

    def extend(self, messages: Sequence[Message]) -> None:
        self._change(messages, _LEASE, lease=self._lease)

    def release(self, messages: Sequence[Message]) -> None:
        self._change(messages, "leased_until = NULL, deliveries = q.deliveries - 1")

    def settle_messages(self, recorded: Sequence[tuple[Message, RowStatus]]) -> None:
        statuses = {message.id: status for message, status in recorded}
        self._database.run(lambda connection: self._settle_in(connection, statuses))

    def _settle_in(self, connection: Connection, statuses: Mapping[str, RowStatus]) -> None:
        for status in set(statuses.values()):
            connection.execute(
                _sql(
                    f"UPDATE {self._table} SET status = :status, leased_until = NULL"
                    f" WHERE {self._key} = ANY({self._ids}) AND status IS NULL"
                ),
                {"status": str(status), "ids": [id for id, each in statuses.items() if each is status]},
            )

    def join(self, output: OutputWriter, shown: str) -> None:
        super().join(output, shown)
        own_ids = self._spec.row_format != "openai" or self.key_column == "custom_id"
        if own_ids and isinstance(output, TableOutput) and output.address == self._address:
            output.with_answers = lambda connection, ids: self._settle_in(
                connection, dict.fromkeys(map(str, ids), RowStatus.OK)
            )

    def backlog(self) -> int:
        return int(self._execute(f"SELECT count(*) FROM {self._table} WHERE status IS NULL")[0][0])

    def disconnect(self) -> None:
        self._database.close()

    def _change(self, messages: Sequence[Message], assignments: str, **values: Any) -> None:
        """Change rows that are still those of these deliveries: another worker may have them by now."""
        if messages:
            held = f"unnest({self._ids}, CAST(:deliveries AS integer[])) AS held(id, deliveries)"
            self._execute(
                f"UPDATE {self._table} q SET {assignments} FROM {held}"
                f" WHERE q.{self._key} = held.id AND q.deliveries = held.deliveries AND status IS NULL",
                ids=[message.id for message in messages],
                deliveries=[message.receipt for message in messages],
                retry=False,
                **values,
            )

    def _execute(self, statement: str, retry: bool = True, **values: Any) -> Sequence[Any]:
        def work(connection: Connection) -> Sequence[Any]:
            result = connection.execute(_sql(statement), values)
            return result.all() if result.returns_rows else ()

        return self._database.run(work, retry)


def _message(id: str, values: str, deliveries: int, sent: float | None) -> Message:
    """A column of the type json may have what is no Unicode, or nested too deeply."""
    try:
        return Message(id, orjson.loads(values), deliveries, sent, deliveries)
    except ValueError as error:
        return Message(id, None, deliveries, sent, deliveries, f"a json column of the row can't be read ({error})")


def _sql(statement: str) -> Any:
    from sqlalchemy import text

    return text(statement)
