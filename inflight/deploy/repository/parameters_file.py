"""Reads a YAML file of parameters by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from inflight.common.schema.yaml_values import load_values
from inflight.deploy.repository.typed_parameters import invalid


def load_parameters_file(path: Path) -> dict[str, Any]:
    """Return the parameters by name, which are not checked here. Raises DeployError `invalid_parameter`."""
    try:
        found = load_values(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise invalid(f"The file of parameters {path} can't be read ({error.strerror}); check the path.") from error
    except (yaml.YAMLError, ValueError) as error:
        what = " ".join(str(error).split())
        raise invalid(
            f"The file of parameters {path} can't be read ({what}); write a line NAME: VALUE for each."
        ) from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise invalid(f"The file of parameters {path} holds no names with values; write lines of NAME: VALUE.")
    for name, value in found.items():
        if value is None:
            raise invalid(f"The parameter {name} has no value in {path}; give it one, or remove the line.")
    return found
