"""The help of commands with many options has sections, and each option is in one of them."""

from __future__ import annotations

from collections import Counter

import click
import pytest

from inflight import cli
from inflight.commands.option_sections import SectionedCommand

COMMANDS = ["serve", "gateway", "build", "generate", "chat", "embed", "rerank", "classify", "batch run", "load run"]


def test_each_command_of_the_front_page_is_in_one_section() -> None:
    assert Counter(name for names in cli.COMMAND_SECTIONS.values() for name in names) == Counter(list(cli.COMMANDS))


@pytest.mark.parametrize("words", COMMANDS)
def test_each_option_is_in_a_section_of_the_help(words: str) -> None:
    command: click.Command | None = cli.cli
    context = click.Context(cli.cli, info_name="inflight")
    for word in words.split():
        assert isinstance(command, click.Group)
        command = command.get_command(context, word)
        assert command is not None
        context = click.Context(command, parent=context, info_name=word)
    assert isinstance(command, SectionedCommand)
    sections = [vars(option).get("section") for option in command.params if isinstance(option, click.Option)]
    assert None not in sections
    titles = [line.rstrip(":") for line in command.get_help(context).splitlines() if line[:1].isalpha()]
    assert titles[1:] == [*dict.fromkeys(sections), "Other options"]
