"""Results of guide probes: a separate process probes each new guide while the engine runs."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

from inflight.runtime.backends.openvino.guided_decoding.probe_process import GuideProbeProcess, GuideProbeResult
from inflight.runtime.backends.openvino.guided_decoding.schema_support import find_unsupported
from inflight.runtime.engine.manifest import EngineManifest
from inflight.runtime.messages import MAX_GUIDE_CHARACTERS, DecodingGuide, GuideType, RequestError

_MAX_RESULTS = 4096


class GuideCache:
    """Probes guides, one at a time, and caches the results; tenants take turns."""

    def __init__(self, engine_dir: str, manifest: EngineManifest) -> None:
        self._arguments = (engine_dir, str(manifest.vocabulary_size), ",".join(map(str, manifest.end_ids)))
        self._probe_process: GuideProbeProcess | None = None
        self._results: OrderedDict[bytes, GuideProbeResult] = OrderedDict()
        self._tenant_order: list[str] = []
        """Tenants whose guides waited when a probe began, the next one first."""
        self._refusal = ""
        if not manifest.has_tokenizer:
            self._refusal = (
                "this engine has no guided decoding, since OpenVINO could not convert its tokenizer; its build said why"
            )
        elif not manifest.end_ids:
            self._refusal = "this model has no end token, so a guided answer would never end; leave the guide out"

    def check(self, guide: DecodingGuide) -> None:
        """Raise RequestError (`invalid_parameter`) if the guide is invalid without a probe, or failed one before."""
        self._check_engine(guide)
        if len(guide.text) > MAX_GUIDE_CHARACTERS:
            raise _invalid_guide(
                f"guided_decoding_guide has {len(guide.text)} characters; send at most {MAX_GUIDE_CHARACTERS}"
            )
        if "\0" in guide.text or _unpaired(guide.text):
            raise _invalid_guide("guided_decoding_guide holds a NUL or half of a character; send whole UTF-8 text")
        if guide.type is GuideType.JSON_SCHEMA:
            _check_schema(guide.text)
        elif guide.type is not GuideType.JSON and not guide.text:
            raise _invalid_guide(f"guided_decoding_guide is empty; a guide of type {guide.type.value} needs a text")
        self.ready(guide)

    def ready(self, guide: DecodingGuide) -> bool:
        """Return whether the guide has passed its probe; False while the probe is pending.

        Raises RequestError (`invalid_parameter`) if the guide failed its probe.
        """
        self._check_engine(guide)
        key = digest(guide)
        verdict = self._results.get(key)
        if verdict is None:
            return False
        self._results.move_to_end(key)
        if verdict.fault:
            raise _invalid_guide(f"guided_decoding_guide {verdict.fault}")
        return True

    def compiled_bytes(self, guide: DecodingGuide) -> int:
        """Return the approximate memory of a compiled guide that passed its probe."""
        verdict = self._results.get(digest(guide))
        return verdict.compiled_bytes if verdict else 0

    def reject(self, guide: DecodingGuide) -> tuple[str, str]:
        """Refuse a guide that passed its probe but stalled the engine; return the message and code of the error."""
        verdict = GuideProbeResult("slows the search for allowed tokens down with each token; make it less ambiguous")
        self._keep(digest(guide), verdict)
        return f"guided_decoding_guide {verdict.fault}", "invalid_parameter"

    def close(self) -> None:
        if self._probe_process is not None:
            self._probe_process.kill()
            self._probe_process = None

    def advance(self, waiting: Sequence[tuple[str, DecodingGuide]], timeout: float) -> None:
        """Start a probe if none is running; store the result of the running one if it arrives within `timeout` seconds.

        `waiting` are the guides without a result, with the tenants whose requests wait for them.
        """
        if self._probe_process is None:
            self._probe_process = GuideProbeProcess(self._arguments)
        if self._probe_process.idle:
            guide = self._next(waiting)
            self._probe_process.start(digest(guide), guide)
        tried = self._probe_process.key
        verdict = self._probe_process.result(timeout)
        if verdict is None:
            return
        if self._probe_process.ended:
            self._probe_process = None
        if tried is not None:
            self._keep(tried, verdict)
        elif verdict.fault:
            self._refusal = (
                "this engine's tokenizer doesn't support guides; see the server's log, and leave the guide out"
            )

    def _next(self, waiting: Sequence[tuple[str, DecodingGuide]]) -> DecodingGuide:
        """Return the first guide of the tenant whose turn it is; a returning tenant queues behind those that wait."""
        first: dict[str, DecodingGuide] = {}
        for tenant, guide in waiting:
            first.setdefault(tenant, guide)
        order = dict.fromkeys(one for one in (*self._tenant_order, *first) if one in first)
        now, *others = order
        self._tenant_order = [*others, now]
        return first[now]

    def _check_engine(self, guide: DecodingGuide) -> None:
        if self._refusal:
            raise _invalid_guide(f"guided_decoding_guide_type is {guide.type.value}, and {self._refusal}")

    def _keep(self, key: bytes, verdict: GuideProbeResult) -> None:
        self._results[key] = verdict
        if len(self._results) > _MAX_RESULTS:
            self._results.popitem(last=False)


@lru_cache(maxsize=256)
def digest(guide: DecodingGuide) -> bytes:
    return hashlib.sha256(f"{guide.type.value}\n{guide.text}".encode()).digest()


def _check_schema(text: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "is nested too deeply" if isinstance(error, RecursionError) else f"is not valid JSON ({error})"
        raise _invalid_guide(f"guided_decoding_guide {what}; a guide of type json_schema is a JSON Schema") from error
    if not isinstance(schema, dict | bool):
        raise _invalid_guide(
            "guided_decoding_guide is JSON but not an object; a guide of type json_schema is a JSON Schema"
        )
    if found := find_unsupported(schema):
        raise _invalid_guide(f"guided_decoding_guide {found[:300]}; leave it out, and check the answer for it yourself")


def _unpaired(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _invalid_guide(message: str) -> RequestError:
    return RequestError(message, "invalid_parameter")
