"""The requests of a load test, tokenized for an engine without a server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from inflight.common.request_error import RequestError
from inflight.text.chat_template import ChatRenderer
from inflight.text.tokenizer import encode, load_tokenizer
from inflight.tune.engine_alone import TokenizedRequest
from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.served_model import with_server_tokenizer
from loadtests.workloads.factory import make_workload
from loadtests.workloads.files import load_files
from loadtests.workloads.interface import RequestSpec


def tokenized_requests(plan: LoadPlan, engine: Path, max_seq_len: int, count: int) -> list[TokenizedRequest]:
    """Return the first requests of `count` sessions, whose answers are cut where the engine's longest sequence ends.

    Raises LoadError `workload_invalid` if none of them fits.
    """
    tokenizer = load_tokenizer(str(engine))
    # As a load test does with the tokenizer of its server: generated prompts have exactly the chosen lengths.
    digest = hashlib.sha256((engine / "tokenizer.json").read_bytes()).hexdigest()
    plan = with_server_tokenizer(plan, {"engine_dir": str(engine), "tokenizer": digest})
    tokenized: list[TokenizedRequest] = []
    for request in _first_requests(plan, count):
        text = _text(request, engine)
        ids = encode(tokenizer, [text], isinstance(request.prompt, str))[0]
        tokens = min(request.max_tokens, max_seq_len - len(ids))
        if ids and tokens > 0:
            tokenized.append((ids, tokens))
    if not tokenized:
        raise LoadError(
            f"no prompt of the workload fits the engine's {max_seq_len} tokens; name shorter ones", "workload_invalid"
        )
    return tokenized


def _first_requests(plan: LoadPlan, count: int) -> Iterator[RequestSpec]:
    workload = make_workload(plan.workload, load_files(plan.workload), plan.seed)
    for number in range(count):
        session = workload.session(number)
        if session is None:
            return
        request = next(session.requests())
        if not isinstance(request, RequestSpec):
            raise LoadError(f"an engine can't be tuned for the task {plan.task}; leave it out", "workload_invalid")
        yield request


def _text(request: RequestSpec, engine: Path) -> str:
    if isinstance(request.prompt, str):
        return request.prompt
    renderer = ChatRenderer.from_directory(engine)
    if renderer is None:
        raise RequestError("the checkpoint has no chat template; name a file of texts as prompts", "no_chat_template")
    return renderer.render_json(json.dumps(request.prompt).encode(), b"")
