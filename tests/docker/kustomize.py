"""Renders an overlay as `kubectl kustomize` does, for the few fields that ours use; any other is refused.

A patch is a strategic merge: maps are merged, null removes, and a list is replaced, except for those whose entries have
a key (`_KEYS`, from the API's `patchMergeKey`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_KEYS = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}
_FIELDS = {"apiVersion", "kind", "resources", "images", "patches"}

Manifest = dict[str, Any]


def documents(path: Path) -> list[Manifest]:
    """The manifests of one file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document is not None]


def render(directory: Path) -> list[Manifest]:
    """The manifests of the kustomization in `directory`."""
    (kustomization,) = documents(directory / "kustomization.yaml")
    if unknown := set(kustomization) - _FIELDS:
        raise ValueError(f"{directory}: {', '.join(sorted(unknown))} can't be rendered here")
    rendered: list[Manifest] = []
    for resource in kustomization["resources"]:
        path = directory / resource
        rendered += render(path) if path.is_dir() else documents(path)
    for patch in kustomization.get("patches", []):
        (change,) = documents(directory / patch["path"])
        (target,) = [index for index, manifest in enumerate(rendered) if _identity(manifest) == _identity(change)]
        rendered[target] = _merged(rendered[target], change)
    for image in kustomization.get("images", []):
        _name_image(rendered, image)
    return rendered


def _identity(manifest: Manifest) -> tuple[str, str, str]:
    return manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]


def _merged(base: Any, change: Any, field: str = "") -> Any:
    if isinstance(base, dict) and isinstance(change, dict):
        both = {name: _merged(base[name], change[name], name) for name in base if name in change}
        merged = {**base, **change, **both}
        return {name: value for name, value in merged.items() if value is not None}
    if isinstance(base, list) and isinstance(change, list) and (key := _KEYS.get(field)):
        entries = {entry[key]: entry for entry in base}
        for entry in change:
            entries[entry[key]] = _merged(entries.get(entry[key], {}), entry)
        return list(entries.values())
    return change


def _name_image(manifests: list[Manifest], image: dict[str, str]) -> None:
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            for container in manifest["spec"]["template"]["spec"]["containers"]:
                if container["image"] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
