"""The wording of errors of files and batches; INFLIGHT_UPDATE_GOLDEN=1 writes messages.txt again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.fixtures.errors import Cause, check_messages
from tests.gateway.batches.gateways import ENDPOINT, Stores

FILE, BATCH = "file-" + "0" * 32, "batch_" + "0" * 32


def test_sentences(tmp_path: Path) -> None:
    stores = Stores(tmp_path)
    files, batches = stores.files, stores.batches
    small = Stores(tmp_path / "small").files
    small.max_batch_bytes, small.max_batch_rows = 20, 2
    full = Stores(tmp_path / "full").files
    full.max_tenant_bytes = 1
    given = stores.upload(b"{}")
    causes: list[Cause] = [
        partial(files.create, "", "rows.csv", "batch", None, []),
        partial(files.create, "", "a\0b.jsonl", "batch", None, []),
        partial(files.create, "", "rows.jsonl", "party", None, []),
        partial(full.create, "", "rows.jsonl", "batch", None, [b"{}"]),
        partial(small.create, "", "rows.jsonl", "batch", None, [b"x" * 21]),
        partial(small.create, "", "rows.jsonl", "batch", None, [b"{}\n" * 3]),
        partial(files.get, "", FILE),
        partial(files.get, "", "../" * 100),
        partial(files.list, "", limit=0),
        partial(files.list, "", order="up"),
        partial(files.list, "", after=FILE),
        partial(batches.create, "", given, "/v1/images", "24h"),
        partial(batches.create, "", given, ENDPOINT, "48h"),
        partial(batches.create, "", given, ENDPOINT, "24h", {str(n): "" for n in range(17)}),
        partial(batches.create, "", given, ENDPOINT, "24h", {"a": "b" * 513}),
        partial(batches.create, "", given, ENDPOINT, "24h", None, {"anchor": "created_at", "seconds": 5}),
        partial(batches.create, "", FILE, ENDPOINT, "24h"),
        partial(batches.get, "", BATCH),
    ]
    check_messages(Path(__file__).with_name("messages.txt"), causes, tmp_path)
