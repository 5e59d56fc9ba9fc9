"""What a server reports about its model, and the model's tokenizer if it is on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from loadtests.errors import LoadError
from loadtests.plan import LoadPlan
from loadtests.workloads.factory import make_workload
from loadtests.workloads.files import load_files
from loadtests.workloads.spec import WorkloadSpec

_DEFAULT_TOKENS_PER_WORD = WorkloadSpec.model_fields["tokens_per_word"].default


def describe_served_model(metadata: Mapping[str, Any]) -> str:
    """Describe the model and its configuration from a run's metadata; empty if the server reported nothing.

    >>> describe_served_model({"served": {"model": "tea-1b", "target": "openvino", "precision": "bf16",
    ...     "kv_cache_precision": "u8", "max_sequences": 64}})
    'tea-1b (openvino, bf16 weights, u8 KV cache, at most 64 sequences)'
    """
    served = metadata.get("served")
    if not isinstance(served, Mapping) or not served.get("model"):
        return ""
    details = (
        ("target", "{}"),
        ("precision", "{} weights"),
        ("kv_cache_precision", "{} KV cache"),
        ("max_sequences", "at most {} sequences"),
    )
    words = ", ".join(form.format(served[name]) for name, form in details if served.get(name))
    return f"{served['model']} ({words})" if words else str(served["model"])


def with_server_tokenizer(plan: LoadPlan, served: Mapping[str, Any]) -> LoadPlan:
    """Add the served model's tokenizer to a plan that generates prompts without one, if its file is on this machine, is
    identical to the server's, and has enough words to generate prompts."""
    spec = plan.workload
    if spec.tokenizer is not None or spec.prompts is not None or spec.tokens_per_word != _DEFAULT_TOKENS_PER_WORD:
        return plan
    if not (served.get("engine_dir") and served.get("tokenizer")):
        return plan
    with_it = spec.model_copy(update={"tokenizer": str(served["engine_dir"])})
    try:
        files = load_files(with_it)
        if hashlib.sha256(files[str(with_it.tokenizer)]).hexdigest() != served["tokenizer"]:
            return plan
        make_workload(with_it, files, plan.seed)
    except LoadError:
        return plan
    return plan.model_copy(update={"workload": with_it})


def tokenizer_hash(plan: LoadPlan) -> str | None:
    """Return the hash of the tokenizer that generates prompts, independent of its path."""
    if plan.workload.tokenizer is None:
        return None
    return hashlib.sha256(load_files(plan.workload)[plan.workload.tokenizer]).hexdigest()
