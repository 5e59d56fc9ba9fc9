"""Repositories as a client finds them: it asks, and their files answer, without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inflight_client.deployments.deployment import Deployment
from inflight_client.deployments.detection import detect
from inflight_client.errors import InflightError
from inflight_client.results import Model as Listed
from inflight_client.transport import ModelMetadata
from tritonclient.grpc import model_config_pb2

from inflight.deploy.repository import model_configs
from tests.deploy.repository.golden_cases import CASES
from tests.standins.kserve.repository import ModelSpec, TensorSpec

ROOT = Path(__file__).parents[3]
OURS = ROOT / "model_repository"
OURS_BEFORE_CPP = CASES["tensorrt-llm"].directory()

Refusals = Mapping[tuple[str, str], str]
"""Codes of the errors that come instead of answers, by question and model."""


def repository(path: Path, **parameters: str) -> dict[str, ModelSpec]:
    """The models whose config.pbtxt are there; `parameters` are set where a model has them."""
    models = {}
    configs = model_configs.load(path)
    for name, config in configs.items():
        own = {key: value.string_value for key, value in config.parameters.items()}
        models[name] = ModelSpec(
            name,
            config.platform or config.backend,
            config.max_batch_size,
            {tensor.name: _tensor(tensor, tensor.optional) for tensor in config.input},
            {tensor.name: _tensor(tensor) for tensor in config.output},
            _decoupled(config, configs),
            {key: parameters.get(key, value) for key, value in own.items()},
            [step.model_name for step in config.ensemble_scheduling.step],
        )
    return models


def find(
    models: Mapping[str, ModelSpec],
    name: str | None = None,
    refusals: Refusals | None = None,
    states: Mapping[str, str] | None = None,
    asked: list[Any] | None = None,
) -> Deployment:
    """What a client finds among the models; `states` are those that are not READY, `asked` takes the questions."""
    questions = detect(name)
    try:
        question = next(questions)
        while True:
            if asked is not None:
                asked.append(tuple(question))
            try:
                answer = _answer(models, question.method, question.argument, refusals or {}, states or {})
            except InflightError as error:
                question = questions.throw(error)
            else:
                question = questions.send(answer)
    except StopIteration as end:
        found: Deployment = end.value
        return found


def _answer(
    models: Mapping[str, ModelSpec], method: str, name: str, refusals: Refusals, states: Mapping[str, str]
) -> Sequence[Listed] | ModelMetadata | Mapping[str, Any]:
    if (method, name) in refusals:
        code = refusals[method, name]
        raise InflightError(f"{method} of {name or 'the server'}: {code}", code)
    if method == "index":
        return [Listed(each, "1", states.get(each, "READY")) for each in models]
    if name not in models:
        raise InflightError(f"Request for unknown model: '{name}' is not found", "model_not_found")
    model = models[name]
    if method == "config":
        return model.config()
    assert method == "metadata"
    inputs, outputs = (
        {key: (tensor.datatype, tuple(model.shape(tensor))) for key, tensor in tensors.items()}
        for tensors in (model.inputs, model.outputs)
    )
    return ModelMetadata(name, inputs, outputs)


def _decoupled(config: Any, configs: Mapping[str, Any]) -> bool:
    """As Triton tells it: of an ensemble by its models."""
    names = [step.model_name for step in config.ensemble_scheduling.step]
    return any(each.model_transaction_policy.decoupled for each in (config, *(configs[name] for name in names)))


def _tensor(said: Any, optional: bool = False) -> TensorSpec:
    kind = str(model_config_pb2.DataType.Name(said.data_type)).removeprefix("TYPE_")
    return TensorSpec("BYTES" if kind == "STRING" else kind, tuple(said.dims), optional)
