"""The committed models against TensorRT-LLM's, so that its clients fit: what differs is listed with its reason."""

from __future__ import annotations

from typing import Any

import pytest
from inflight_client.call import Call
from inflight_client.deployments.requests import build_request
from inflight_client.sampling import Guide, Sampling

from inflight.deploy.repository.configure import committed_repository
from inflight.deploy.repository.model_configs import Configs, load
from inflight.deploy.repository.model_names import ENCODER_MODELS
from tests.client.support.deployments import OURS, find, repository
from tests.serving.contract.upstream_contract import DIFFERENCES, Key, differences, listed, ours, upstreams

ENCODERS = set(ENCODER_MODELS.values())


@pytest.fixture
def configs() -> Configs:
    """The committed models that upstream has too; encoders are ours alone."""
    return {name: config for name, config in load(committed_repository()).items() if name not in ENCODERS}


def found(configs: Configs) -> dict[Key, str]:
    return differences(upstreams(), ours(configs))


def test_nothing_differs_from_upstream_but_what_is_listed(configs: Configs) -> None:
    assert {key: how for key, how in found(configs).items() if listed().get(key) != how} == {}


def test_what_is_listed_does_differ(configs: Configs) -> None:
    assert {key: how for key, how in listed().items() if found(configs).get(key) != how} == {}


def test_a_difference_is_listed_once_and_with_a_reason() -> None:
    assert len(listed()) == sum(len(row.names.split()) for row in DIFFERENCES)
    assert all(row.why for row in DIFFERENCES)


def test_what_upstreams_clients_do_not_send_is_not_required(configs: Configs) -> None:
    mine = ours(configs)
    added = [key for key, how in listed().items() if key[1] == "input" and how == "added"]
    assert [key for key in added if not mine[key].get("optional")] == []


def test_the_client_sends_what_the_ensemble_takes(configs: Configs) -> None:
    everything = Sampling(
        *(0.5, 5, 0.9, 1, 1.1, 0.5, 0.5, 0.1, 2, 7),
        stop="a",
        guide=Guide("regex", "[a-z]+"),
        adapter=1,
        logit_bias={5: 1.0},
        allowed_token_ids=[5],
    )
    told: dict[str, Any] = {"top_log_probs": 2, "return_prompt_log_probs": True, "return_perf_metrics": True}
    call = Call("a", stream=True, sampling=everything, priority=1, **told)
    sent = build_request(find(repository(OURS)), call, 5.0, None).inputs
    assert {"text_input", "max_tokens", "stop_words", "seed", "guided_decoding_guide", "deadline_ms"} <= sent.keys()
    for name, one in sent.items():
        mine = ours(configs)["ensemble", "input", name]
        assert mine["data_type"] == f"TYPE_{one.datatype}".replace("BYTES", "STRING")
        assert one.shape in ((1, *mine["dims"]), (1, 1))
