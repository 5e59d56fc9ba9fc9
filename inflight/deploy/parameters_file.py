"""A file of parameters by name, as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from inflight.deploy.typed_parameters import invalid


def read(path: Path) -> dict[str, Any]:
    """The parameters, by name; whether there are such is seen later. Raises DeployError `invalid_parameter`."""
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=_OncePerKey)
    except OSError as error:
        raise invalid(f"The file of parameters {path} can't be read ({error.strerror}); check the path.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        what = " ".join(str(error).split())
        raise invalid(
            f"The file of parameters {path} is no YAML ({what}); write a line NAME: VALUE for each."
        ) from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise invalid(f"The file of parameters {path} holds no names with values; write lines of NAME: VALUE.")
    for name, value in found.items():
        if value is None:
            raise invalid(f"The parameter {name} has no value in {path}; give it one, or remove the line.")
    return found


class _OncePerKey(yaml.SafeLoader):
    """PyYAML would take the last of two equal names, and nobody would know."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            twice = next(key for index, key in enumerate(keys) if key in keys[:index])
            raise yaml.constructor.ConstructorError(None, None, f"{twice} stands there twice", node.start_mark)
        return found
