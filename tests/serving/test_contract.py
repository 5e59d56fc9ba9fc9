"""The committed models' tensors against TensorRT-LLM's, so that its clients fit: what differs is listed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inflight_client.protocol import inference_request
from inflight_client.sampling import Sampling
from tritonclient.grpc import model_config_pb2

from inflight.deploy.model_configs import load
from inflight.deploy.repository import committed_repository

UPSTREAM = json.loads((Path(__file__).parents[1] / "data" / "upstream_tensors.json").read_text())["models"]
MODELS = ["ensemble", "preprocessing", "tensorrt_llm", "postprocessing"]

OURS = {
    ("ensemble", "output", "finish_reason"): "why the answer ended",
    ("preprocessing", "output", "OUT_STREAM_KEY"): "behind an ensemble, chunks are acknowledged by it",
    ("tensorrt_llm", "input", "stream_key"): "the same, on its way in",
    ("tensorrt_llm", "output", "stream_key"): "the same, on its way out",
    ("tensorrt_llm", "output", "context_ids"): "the tokens before a chunk, for detokenizing without state",
    ("tensorrt_llm", "output", "finish_reason"): "why the answer ended",
    ("postprocessing", "input", "STREAM_KEY"): "the same as stream_key",
    ("postprocessing", "input", "CONTEXT_IDS"): "the same as context_ids",
}
"""Tensors that upstream doesn't have, and what they are for. Inputs among them are optional."""

DIFFERENT = {
    ("postprocessing", "input", "TOKENS_BATCH"): (
        "allow_ragged_batch",
        "chunks of several lengths are decoded together",
    ),
    ("postprocessing", "input", "SEQUENCE_LENGTH"): (
        "allow_ragged_batch",
        "chunks of several lengths are decoded together",
    ),
}
"""Upstream's tensors that have another property here, which one, and why."""

Key = tuple[str, str, str]


def ours() -> dict[Key, dict[str, Any]]:
    configs = load(committed_repository())
    return {
        (model, kind, tensor.name): described(tensor)
        for model in MODELS
        for kind in ("input", "output")
        for tensor in getattr(configs[model], kind)
    }


def described(tensor: Any) -> dict[str, Any]:
    """A tensor of a configuration, as tests/data describes upstream's."""
    found: dict[str, Any] = {
        "name": tensor.name,
        "data_type": model_config_pb2.DataType.Name(tensor.data_type),
        "dims": list(tensor.dims),
    }
    if tensor.HasField("reshape"):
        found["reshape"] = list(tensor.reshape.shape)
    for flag in ("optional", "allow_ragged_batch"):
        if getattr(tensor, flag, False):
            found[flag] = True
    return found


def upstreams() -> dict[Key, dict[str, Any]]:
    return {
        (model, kind, tensor["name"]): {name: value for name, value in tensor.items() if name != "since_1"}
        for model in MODELS
        for kind in ("input", "output")
        for tensor in UPSTREAM[model][kind]
    }


def test_tensors_are_upstreams_but_for_those_listed_as_ours() -> None:
    assert set(ours()) - set(upstreams()) == set(OURS)


def test_each_of_upstreams_tensors_is_as_upstream_has_it() -> None:
    for key in set(ours()) & set(upstreams()):
        mine, theirs = dict(ours()[key]), dict(upstreams()[key])
        if key in DIFFERENT:
            property_name, _ = DIFFERENT[key]
            assert mine.pop(property_name, None) != theirs.pop(property_name, None), f"{key} is no longer different"
        assert mine == theirs, key


def test_what_upstreams_clients_need_not_send_they_need_not_send_here() -> None:
    for key, theirs in upstreams().items():
        if key[1] == "input" and not theirs.get("optional"):
            assert not ours()[key].get("optional")
    required = {key for key, mine in ours().items() if key[1] == "input" and not mine.get("optional")}
    assert required <= set(upstreams())


def test_every_input_of_this_releases_contract_is_there() -> None:
    wanted = (
        "text_input max_tokens stream end_id pad_id temperature top_k top_p seed repetition_penalty presence_penalty"
        " frequency_penalty min_tokens exclude_input_in_output"
    )
    assert {name for model, kind, name in ours() if (model, kind) == ("ensemble", "input")} == set(wanted.split())


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm"])
def test_the_last_response_tells_counts_and_the_reason(model: str) -> None:
    outputs = {name for owner, kind, name in ours() if (owner, kind) == (model, "output")}
    assert {"num_input_tokens", "num_output_tokens", "finish_reason"} <= outputs


def test_the_client_sends_what_the_ensemble_takes() -> None:
    everything = Sampling(0.5, 5, 0.9, 1, 1.1, 0.5, 0.5, 2, 7)
    for tensor in inference_request("ensemble", "a", 4, everything, stream=True).inputs:
        mine = ours()["ensemble", "input", tensor.name]
        assert mine["data_type"] == f"TYPE_{tensor.datatype}".replace("BYTES", "STRING")
        assert [1, *mine["dims"]] == list(tensor.shape)


def test_committed_configurations_hold_real_values() -> None:
    for model in MODELS:
        assert "${" not in (committed_repository() / model / "config.pbtxt").read_text()
