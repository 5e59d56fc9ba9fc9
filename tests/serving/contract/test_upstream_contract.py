"""The committed models against TensorRT-LLM's, so that its clients fit: what differs is listed with its reason."""

from __future__ import annotations

from collections.abc import Callable
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
MODELS = sorted({model for model, _, _ in upstreams()})


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


def rename_an_input(configs: Configs) -> None:
    tensor(configs, "ensemble", "input", "top_k").name = "k"


def change_a_type(configs: Configs) -> None:
    tensor(configs, "tensorrt_llm", "output", "cum_log_probs").data_type = 12


def change_a_shape(configs: Configs) -> None:
    tensor(configs, "preprocessing", "output", "STOP_WORDS_IDS").dims[0] = 3


def require_an_input(configs: Configs) -> None:
    tensor(configs, "tensorrt_llm", "input", "min_tokens").optional = False


def forget_a_reshape(configs: Configs) -> None:
    tensor(configs, "tensorrt_llm", "input", "stop").ClearField("reshape")


def forbid_ragged_batches(configs: Configs) -> None:
    tensor(configs, "ensemble", "input", "lora_config").allow_ragged_batch = False


def drop_an_output(configs: Configs) -> None:
    config = configs["tensorrt_llm"]
    config.output.remove(tensor(configs, "tensorrt_llm", "output", "acceptance_rate"))


def wire_otherwise(configs: Configs) -> None:
    configs["ensemble"].ensemble_scheduling.step[1].input_map["len_penalty"] = "temperature"


def unwire(configs: Configs) -> None:
    del configs["ensemble"].ensemble_scheduling.step[1].output_map["batch_index"]


def swap_steps(configs: Configs) -> None:
    steps = list(configs["ensemble"].ensemble_scheduling.step)
    del configs["ensemble"].ensemble_scheduling.step[:]
    configs["ensemble"].ensemble_scheduling.step.extend([steps[0], steps[2], steps[1]])


def answer_once(configs: Configs) -> None:
    configs["tensorrt_llm"].model_transaction_policy.decoupled = False


def batch_nothing(configs: Configs) -> None:
    configs["preprocessing"].ClearField("dynamic_batching")


def drop_a_parameter(configs: Configs) -> None:
    del configs["postprocessing"].parameters["skip_special_tokens"]


def drop_a_model(configs: Configs) -> None:
    del configs["preprocessing"]


@pytest.mark.parametrize(
    "change",
    [
        *(rename_an_input, change_a_type, change_a_shape, require_an_input, forget_a_reshape, forbid_ragged_batches),
        *(drop_an_output, wire_otherwise, unwire, swap_steps, answer_once, batch_nothing, drop_a_parameter),
        drop_a_model,
    ],
)
def test_any_change_shows(configs: Configs, change: Callable[[Configs], None]) -> None:
    before = found(configs)
    change(configs)
    assert found(configs) != before


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


@pytest.mark.parametrize("model", MODELS)
def test_committed_configurations_hold_real_values(model: str) -> None:
    assert "${" not in (committed_repository() / model / "config.pbtxt").read_text()


def tensor(configs: Configs, model: str, kind: str, name: str) -> Any:
    return next(one for one in getattr(configs[model], kind) if one.name == name)
