"""`/v1/files` and `/v1/batches`: uploads and batch jobs, kept in a directory and continued after a crash."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from inflight_client import InflightError
from inflight_client.validation import shorten

from inflight.gateway.http import Request, Response
from inflight.gateway.key_ring import Caller
from inflight.gateway.multipart import Form
from inflight.gateway.quotas import KeyQuotas
from inflight.gateway.settings import GatewaySettings
from inflight.openai_api.errors import ApiError

if TYPE_CHECKING:
    from inflight.gateway.batches.files import FileStore, Upload
    from inflight.gateway.batches.models import BatchModel
    from inflight.gateway.batches.runner import BatchRunner
    from inflight.gateway.batches.store import BatchStore

_STATUS = {
    "file_not_found": 404,
    "batch_not_found": 404,
    "file_too_large": 413,
    "batch_ended": 400,
    "invalid_parameter": 400,
    "disk_full": 507,
    "output_unwritable": 500,
    "job_damaged": 500,
}
_FORM_FIELDS = ("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")
_READ_BYTES = 2**18
_PARAM = re.compile(
    r"(purpose|filename|endpoint|completion_window|input_file_id|metadata|(?:output_)?expires_after|after|order)\b"
)
"""The field with which an error of a store begins."""

logger = logging.getLogger("inflight.gateway")
Value = TypeVar("Value")
Method = Callable[["FileStore", "BatchStore"], Callable[[str, str], dict[str, Any]]]


class BatchRoutes:
    """The handlers. Stores and runner begin with the first request, or at the start if there are batches."""

    def __init__(
        self,
        settings: GatewaySettings,
        models: Callable[[str], Mapping[str, BatchModel] | None],
        quotas: KeyQuotas,
    ) -> None:
        """`models` returns the served models for an endpoint; None while none are known."""
        self._settings, self._models, self._quotas = settings, models, quotas
        self.routes: dict[str, dict[str, Callable[..., Awaitable[None]]]] = {
            "/v1/files": {"GET": self._list_files, "POST": self._create_file},
            "/v1/files/{file}": {
                "GET": partial(self._act, lambda files, batches: files.get),
                "DELETE": partial(self._act, lambda files, batches: files.delete),
            },
            "/v1/files/{file}/content": {"GET": self._file_content},
            "/v1/batches": {"GET": self._list_batches, "POST": self._create_batch},
            "/v1/batches/{batch}": {"GET": partial(self._act, lambda files, batches: batches.get)},
            "/v1/batches/{batch}/cancel": {"POST": partial(self._act, lambda files, batches: batches.cancel)},
        }
        self._root = settings.state_path
        self._files: FileStore | None = None
        self._batches: BatchStore | None = None
        self._runner: BatchRunner | None = None
        self._opening = threading.Lock()

    async def start(self) -> None:
        """Continue the batches of an earlier run."""
        if (self._root / "batches").is_dir():
            try:
                await asyncio.to_thread(self._open)
            except ApiError as error:
                logger.warning("batches are not continued: %s", error)

    async def close(self) -> None:
        if self._runner is not None:
            await asyncio.to_thread(self._runner.stop)

    async def _create_file(self, request: Request, caller: Caller) -> None:
        with self._quotas.hold(caller.key, 0, 0, request.outcome):
            request.outcome.admitted = True
            response = await self._upload(request, caller.tenant)
        await request.respond(Response(response))

    async def _upload(self, request: Request, tenant: str) -> dict[str, Any]:
        files, _ = await self._stores()

        def begin(name: str, fields: Mapping[str, list[str]]) -> Upload:
            upload = files.begin(tenant, name)
            if "purpose" in fields:  # its limits hold from the first byte then
                try:
                    upload.describe(fields["purpose"][0])
                except InflightError:
                    upload.abort()
                    raise
            return upload

        def finish() -> dict[str, Any]:
            upload = form.whole_file()
            if "purpose" not in form.fields:
                raise ApiError("the form has no purpose; send batch", "invalid_request", "purpose")
            fields = {name: values[0] for name, values in form.fields.items()}
            upload.describe(fields["purpose"], _expiry(fields))
            return upload.commit()

        form = Form(_FORM_FIELDS, begin)
        try:
            await form.read(request, self._call)
            return await self._call(finish)
        except BaseException:
            if form.file is not None:
                form.file.abort()
            raise

    async def _list_files(self, request: Request, caller: Caller) -> None:
        files, _ = await self._stores()
        query = request.query
        limit = _limit(query, 10_000, 10_000)
        page = await self._call(
            files.list, caller.tenant, query.get("purpose"), query.get("after"), limit, query.get("order", "desc")
        )
        await request.respond(Response(page))

    async def _act(self, method: Method, request: Request, caller: Caller, object_id: str) -> None:
        """Call a method of a store, which takes the tenant and an id, and answer with the object that it returns."""
        action = method(*await self._stores())
        await request.respond(Response(await self._call(action, caller.tenant, object_id)))

    async def _file_content(self, request: Request, caller: Caller, file_id: str) -> None:
        files, _ = await self._stores()
        with await self._call(files.open_content, caller.tenant, file_id) as file:
            await request.start_content("application/octet-stream", os.fstat(file.fileno()).st_size)
            while data := await asyncio.to_thread(file.read, _READ_BYTES):
                await request.write(data)
            await request.end()

    async def _create_batch(self, request: Request, caller: Caller) -> None:
        body = await request.json(lambda body: body)
        if not isinstance(body, Mapping):
            raise ApiError(f"the body is {shorten(body)}; it must be a JSON object", "invalid_request")
        fields = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
        for name in body:
            if name not in fields:
                raise ApiError(f"the field {name[:80]!r} is unknown; leave it out", "unsupported_input", name[:80])
        _, batches = await self._stores()
        values, key = (body.get(name) for name in fields), caller.key.id if caller.key else ""
        with self._quotas.hold(caller.key, 0, 0, request.outcome):
            request.outcome.admitted = True
            batch = await self._call(batches.create, caller.tenant, *values, caller.models, key)
        await request.respond(Response(batch))

    async def _list_batches(self, request: Request, caller: Caller) -> None:
        _, batches = await self._stores()
        limit = _limit(request.query, 20, 100)
        await request.respond(
            Response(await self._call(batches.list, caller.tenant, request.query.get("after"), limit))
        )

    async def _stores(self) -> tuple[FileStore, BatchStore]:
        if self._files is None or self._batches is None:
            await asyncio.to_thread(self._open)
        assert self._files is not None
        assert self._batches is not None
        return self._files, self._batches

    def _open(self) -> None:
        try:
            from inflight.gateway.batches.database import Database
            from inflight.gateway.batches.files import FileStore
            from inflight.gateway.batches.runner import BatchRunner
            from inflight.gateway.batches.store import BatchStore
        except ModuleNotFoundError as error:
            raise ApiError(
                f"batches need the package {error.name}; install inflight[batch]", "package_missing", status=404
            ) from None
        with self._opening:
            if self._files is not None:
                return
            database = Database(self._root)
            files = FileStore(
                database,
                max_stored_bytes=self._settings.max_stored_bytes,
                max_tenant_bytes=self._settings.max_tenant_bytes,
            )
            self._batches = BatchStore(database, files)
            self._runner = BatchRunner(
                *(self._batches, files, self._settings.servers),
                models=self._models,
                accounts=(self._settings.keys, self._quotas.path),
                audit=self._settings.audit_options,
                routes=Path(self._settings.routes) if self._settings.routes else None,
                on_message=logger.warning,
            )
            self._runner.start()
            self._files = files

    async def _call(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Call what reads or writes the disk. Raises ApiError."""
        try:
            return await asyncio.to_thread(function, *arguments)
        except InflightError as error:
            param = _PARAM.match(str(error))
            status = _STATUS.get(error.code, 400)
            raise ApiError(str(error), error.code, param[1] if param else None, status) from None


def _expiry(fields: Mapping[str, str]) -> int | None:
    """Return the seconds that the file is kept, as `expires_after[anchor]` and `expires_after[seconds]` say."""
    from inflight.gateway.batches.files import expiry_seconds

    parts: dict[str, Any] = {
        name.removeprefix("expires_after[").removesuffix("]"): value
        for name, value in fields.items()
        if name.startswith("expires_after[")
    }
    if not parts:
        return None
    if re.fullmatch(r"[0-9]{1,12}", str(parts.get("seconds", ""))):
        parts["seconds"] = int(parts["seconds"])
    return expiry_seconds(parts, "expires_after")


def _limit(query: Mapping[str, str], default: int, most: int) -> int:
    limit = query.get("limit", str(default))
    if not re.fullmatch(r"[0-9]{1,9}", limit) or not 1 <= int(limit) <= most:
        raise ApiError(f"limit must be a whole number from 1 to {most}", "invalid_parameter", "limit")
    return int(limit)
