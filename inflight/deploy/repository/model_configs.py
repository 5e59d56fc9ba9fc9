"""Loads, changes, checks and writes the configurations of a model repository as protobuf messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from inflight.deploy.errors import DeployError, invalid

# ModelConfig messages by model name. (The messages' classes are made at run time, so they have no static type.)
Configs = dict[str, Any]


def load(repository: Path) -> Configs:
    """Read every model's config.pbtxt. Raises DeployError for one that Triton could not read."""
    configs: Configs = {}
    for path in sorted(repository.glob("*/config.pbtxt")):
        config = parse(path.read_bytes(), path)
        if config.name != path.parent.name:
            raise _invalid_file(path, f"names its model {config.name!r}, and its folder is {path.parent.name!r}")
        configs[config.name] = config
    if not configs:
        raise DeployError(f"{repository} is not a model repository: it has no */config.pbtxt.", "server_start_failed")
    return configs


def parse(content: bytes, where: Path | str) -> Any:
    """Parse one model's config.pbtxt. Raises DeployError for one that Triton could not read."""
    try:
        return text_format.Parse(content.decode(), model_config_pb2.ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise _invalid_file(where, f"can't be read: {error}") from error


def set_parameters(config: Any, values: Mapping[str, str]) -> None:
    """Set parameters that the model declares. Raises DeployError for any other key."""
    for key, value in values.items():
        if key not in config.parameters:
            names = ", ".join(sorted(config.parameters)) or "none"
            raise invalid(f"The model {config.name} has no parameter {key!r}; it declares {names}.")
        config.parameters[key].string_value = value


def replace_parameters(config: Any, values: Mapping[str, str]) -> None:
    """Replace all parameters of a model, for a third-party backend."""
    config.parameters.clear()
    for key in sorted(values):
        config.parameters[key].string_value = values[key]


def add_parameters(configs: Configs, values: Mapping[str, str]) -> None:
    """Add parameters to every model, including ensembles and third-party backends; empty ones are left out.

    Clients read there what they are connected to, and inflight's models which version wrote their configuration.
    """
    for config in configs.values():
        for key, value in values.items():
            if value:
                config.parameters[key].string_value = value


def drop_tensors(config: Any, inputs: Collection[str], outputs: Collection[str]) -> None:
    """Remove inputs and outputs from a model; `prune` then removes them from the ensembles too."""
    _drop(config.input, inputs)
    _drop(config.output, outputs)


def prune(configs: Configs) -> None:
    """Remove from each ensemble the tensors that its models no longer have, and those that became unused."""
    for config in configs.values():
        if config.HasField("ensemble_scheduling"):
            _prune_ensemble(config, configs)


def set_data_type(configs: Configs, names: Collection[str], data_type: str) -> None:
    """Set another type ("TYPE_FP16") for tensors of these names in all models."""
    for config in configs.values():
        for tensor in (*config.input, *config.output):
            if tensor.name in names:
                tensor.data_type = model_config_pb2.DataType.Value(data_type)


def check(configs: Configs) -> None:
    """Check every ensemble: its models exist, and each mapped tensor has the same type at both ends.

    Raises DeployError for the first mismatch.
    """
    for config in configs.values():
        if config.HasField("ensemble_scheduling"):
            _check_ensemble(config, configs)


def write(configs: Configs, repository: Path) -> None:
    """Write each message as the config.pbtxt of its model."""
    for name, config in configs.items():
        (repository / name / "config.pbtxt").write_text(
            text_format.MessageToString(config, as_utf8=True), encoding="utf-8"
        )


def _drop(tensors: Any, names: Collection[str]) -> None:
    kept = [tensor for tensor in tensors if tensor.name not in names]
    del tensors[:]
    tensors.extend(kept)


def _names(tensors: Any) -> set[str]:
    return {tensor.name for tensor in tensors}


def _prune_ensemble(ensemble: Any, configs: Configs) -> None:
    steps = ensemble.ensemble_scheduling.step
    for step in steps:
        model = configs[step.model_name]
        for tensors, mapped in ((model.input, step.input_map), (model.output, step.output_map)):
            for name in set(mapped) - _names(tensors):
                del mapped[name]
    made = {target for step in steps for target in step.output_map.values()}
    for step in steps:
        for name in [name for name, source in step.input_map.items() if source not in made | _names(ensemble.input)]:
            del step.input_map[name]
    taken = {source for step in steps for source in step.input_map.values()}
    _drop(ensemble.input, _names(ensemble.input) - taken)
    _drop(ensemble.output, _names(ensemble.output) - made)
    read = taken | _names(ensemble.output)
    for step in steps:
        for name in [name for name, target in step.output_map.items() if target not in read]:
            del step.output_map[name]


def _check_ensemble(ensemble: Any, configs: Configs) -> None:
    types = {tensor.name: tensor.data_type for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        where = f"ensemble {ensemble.name}, step {step.model_name}"
        model = configs.get(step.model_name)
        if model is None:
            raise _wiring_error(f"{where}: there is no such model")
        inputs = {tensor.name: tensor for tensor in model.input}
        outputs = {tensor.name: tensor for tensor in model.output}
        for name, source in step.input_map.items():
            if name not in inputs:
                raise _wiring_error(f"{where}: the model has no input {name!r}")
            if source not in types:
                raise _wiring_error(f"{where}: nothing before it makes the tensor {source!r}")
            _check_type(f"{where}: input {name!r} from {source!r}", inputs[name].data_type, types[source])
        unmapped = [name for name, tensor in inputs.items() if not tensor.optional and name not in step.input_map]
        if unmapped:
            raise _wiring_error(f"{where}: the input {unmapped[0]!r} is required and not mapped")
        for name, target in step.output_map.items():
            if name not in outputs:
                raise _wiring_error(f"{where}: the model has no output {name!r}")
            if target in types:
                raise _wiring_error(f"{where}: the tensor {target!r} is produced twice")
            types[target] = outputs[name].data_type
    for tensor in ensemble.output:
        if tensor.name not in types:
            raise _wiring_error(f"ensemble {ensemble.name}: no step makes the output {tensor.name!r}")
        _check_type(f"ensemble {ensemble.name}: output {tensor.name!r}", tensor.data_type, types[tensor.name])


def _check_type(where: str, expected: int, actual: int) -> None:
    if expected != actual:
        name = model_config_pb2.DataType.Name
        raise _wiring_error(f"{where} is {name(expected)} at one end and {name(actual)} at the other")


def _invalid_file(path: Path | str, what: str) -> DeployError:
    return DeployError(f"{path} {what}.", "server_start_failed")


def _wiring_error(what: str) -> DeployError:
    return DeployError(f"The model repository is inconsistent: {what}.", "server_start_failed")
