"""Which guides the engine may see: each new one is tried in a process of its own, while the engine goes on."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

from inflight.runtime.messages import MOST_GUIDE_CHARACTERS, Guide, GuideType, RequestError
from inflight.runtime.openvino_manifest import EngineManifest
from inflight.runtime.openvino_trial_process import TrialProcess, Verdict

_MOST_VERDICTS = 4096


class Guides:
    """Verdicts on guides, one trial at a time; tenants take turns."""

    def __init__(self, engine_dir: str, manifest: EngineManifest) -> None:
        self._arguments = (engine_dir, str(manifest.vocabulary_size), ",".join(map(str, manifest.end_ids)))
        self._trial: TrialProcess | None = None
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._turns: list[str] = []
        """The tenants whose guides waited when a trial began, the one that comes next first."""
        self._refusal = ""
        if not manifest.has_tokenizer:
            self._refusal = "this engine was built without the tokenizer files that guides need; build it again"
        elif not manifest.end_ids:
            self._refusal = "this model has no end token, and so a guided answer no end; leave the guide out"

    def check(self, guide: Guide) -> None:
        """Raise RequestError (`invalid_parameter`) for what shows without a trial, or did in an earlier one."""
        self._check_engine(guide)
        if len(guide.text) > MOST_GUIDE_CHARACTERS:
            raise _refused(
                f"guided_decoding_guide has {len(guide.text)} characters; send at most {MOST_GUIDE_CHARACTERS}"
            )
        if "\0" in guide.text or _unpaired(guide.text):
            raise _refused("guided_decoding_guide holds a NUL or half of a character; send whole UTF-8 text")
        if guide.type is GuideType.JSON_SCHEMA:
            _check_schema(guide.text)
        elif guide.type is not GuideType.JSON and not guide.text:
            raise _refused(f"guided_decoding_guide is empty; a guide of type {guide.type.value} needs a text")
        self.ready(guide)

    def ready(self, guide: Guide) -> bool:
        """Whether the guide has passed its trial; False while that is still to end, or to begin.

        Raises RequestError (`invalid_parameter`) for one that did not pass.
        """
        self._check_engine(guide)
        key = digest(guide)
        verdict = self._verdicts.get(key)
        if verdict is None:
            return False
        self._verdicts.move_to_end(key)
        if verdict.fault:
            raise _refused(f"guided_decoding_guide {verdict.fault}")
        return True

    def compiled_bytes(self, guide: Guide) -> int:
        """Memory that a guide which passed takes when compiled, roughly."""
        verdict = self._verdicts.get(digest(guide))
        return verdict.compiled_bytes if verdict else 0

    def condemn(self, guide: Guide) -> tuple[str, str]:
        """Refuse from now on a guide that passed and yet stalled the engine; the message and code of the error."""
        verdict = Verdict("makes finding the allowed tokens take ever longer; make it less ambiguous")
        self._keep(digest(guide), verdict)
        return f"guided_decoding_guide {verdict.fault}", "invalid_parameter"

    def close(self) -> None:
        if self._trial is not None:
            self._trial.kill()
            self._trial = None

    def go_on(self, waiting: Sequence[tuple[str, Guide]], patience: float) -> None:
        """Begin a trial if none is under way; keep the verdict of the one that is, if it comes in `patience` seconds.

        `waiting` are the guides that have no verdict, with the tenants whose requests wait for them.
        """
        if self._trial is None:
            self._trial = TrialProcess(self._arguments)
        if self._trial.idle:
            guide = self._next(waiting)
            self._trial.begin(digest(guide), guide)
        tried = self._trial.key
        verdict = self._trial.verdict(patience)
        if verdict is None:
            return
        if self._trial.ended:
            self._trial = None
        if tried is not None:
            self._keep(tried, verdict)
        elif verdict.fault:
            self._refusal = "this engine's tokenizer can't guide; see the server's log, and leave the guide out"

    def _next(self, waiting: Sequence[tuple[str, Guide]]) -> Guide:
        """The first guide of the tenant whose turn it is; one that comes anew is behind those that wait already."""
        first: dict[str, Guide] = {}
        for tenant, guide in waiting:
            first.setdefault(tenant, guide)
        order = dict.fromkeys(one for one in (*self._turns, *first) if one in first)
        now, *others = order
        self._turns = [*others, now]
        return first[now]

    def _check_engine(self, guide: Guide) -> None:
        if self._refusal:
            raise _refused(f"guided_decoding_guide_type is {guide.type.value}, and {self._refusal}")

    def _keep(self, key: bytes, verdict: Verdict) -> None:
        self._verdicts[key] = verdict
        if len(self._verdicts) > _MOST_VERDICTS:
            self._verdicts.popitem(last=False)


@lru_cache(maxsize=256)
def digest(guide: Guide) -> bytes:
    return hashlib.sha256(f"{guide.type.value}\n{guide.text}".encode()).digest()


def _check_schema(text: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "is nested too deeply" if isinstance(error, RecursionError) else f"is no JSON ({error})"
        raise _refused(f"guided_decoding_guide {what}; a guide of type json_schema is a JSON Schema") from error
    if not isinstance(schema, dict | bool):
        raise _refused("guided_decoding_guide is JSON but no object; a guide of type json_schema is a JSON Schema")


def _unpaired(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _refused(message: str) -> RequestError:
    return RequestError(message, "invalid_parameter")
