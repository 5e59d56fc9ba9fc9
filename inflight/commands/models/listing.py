"""An engine of the cache as JSON values."""

from __future__ import annotations

import datetime
from typing import Any

from build_engines.model_cache.cache import CachedEngine, State


def as_dict(entry: CachedEngine, state: State | None = None) -> dict[str, Any]:
    """Return what is known of an engine of the cache; `state` where the caller knows it already."""
    used = datetime.datetime.fromtimestamp(entry.last_used, datetime.timezone.utc)
    return {
        "name": entry.record.name,
        "revision": entry.record.revision,
        "task": entry.manifest.task if entry.manifest else None,
        "target": entry.record.target,
        "precision": entry.precision,
        "bytes": entry.bytes,
        "last_used": used.isoformat(timespec="seconds"),
        "state": state or entry.state,
        "version": entry.record.version,
        "engine": str(entry.engine),
    }
