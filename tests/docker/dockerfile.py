"""Reads a Dockerfile: its stages, and the instructions of each."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction: its flags (`--from=wheel`) by name, and the rest."""

    name: str
    flags: dict[str, str]
    rest: str

    @property
    def command(self) -> list[str]:
        """The words of one in exec form. Raises ValueError for shell form."""
        words = json.loads(self.rest.removeprefix("CMD "))
        assert isinstance(words, list)
        return words


@dataclass
class DockerfileStage:
    """What follows a FROM."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def named(self, name: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.name == name]

    @property
    def variables(self) -> dict[str, str]:
        """What ENV sets."""
        pairs = (word for instruction in self.named("ENV") for word in instruction.rest.split())
        return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}

    @property
    def labels(self) -> dict[str, str]:
        return {
            name: value for label in self.named("LABEL") for name, value in re.findall(r'(\S+)="([^"]*)"', label.rest)
        }


def stages(path: Path) -> list[DockerfileStage]:
    """The stages of a Dockerfile, the last one being the image."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    found: list[DockerfileStage] = []
    for line in filter(str.strip, re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()):
        name, _, rest = line.partition(" ")
        flags = {}
        while flag := re.match(r"--([a-z-]+)=(\S+) ", rest):
            flags[flag[1]] = flag[2]
            rest = rest[flag.end() :].lstrip()
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            found.append(DockerfileStage(base, alias))
        else:
            found[-1].instructions.append(Instruction(name, flags, rest))
    return found


def context(root: Path) -> list[Path]:
    """The files that .dockerignore lets through, relative to `root`: those under its `!` lines, but for the last."""
    lines = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert rules[-1] == "**/__pycache__"
    found: list[Path] = []
    for rule in rules[1:-1]:
        assert rule.startswith("!"), rule
        place = root / rule[1:]
        found += [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]
    return sorted(file.relative_to(root) for file in found if "__pycache__" not in file.parts)
