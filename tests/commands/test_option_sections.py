"""The help of commands with many options has sections, and each option is in one of them."""

from __future__ import annotations

from collections import Counter

import click
import pytest

from inflight import cli
from inflight.commands.option_sections import SECTIONS, SectionedCommand


def test_each_command_of_the_front_page_is_in_one_section() -> None:
    assert Counter(name for names in cli.COMMAND_SECTIONS.values() for name in names) == Counter(list(cli.COMMANDS))


@pytest.mark.parametrize("words", SECTIONS)
def test_each_option_is_in_one_section(words: str) -> None:
    command: click.Command | None = cli.cli
    context = click.Context(cli.cli, info_name="inflight")
    for word in words.split():
        assert isinstance(command, click.Group)
        command = command.get_command(context, word)
        assert command is not None
        context = click.Context(command, parent=context, info_name=word)
    assert isinstance(command, SectionedCommand)
    options = [option.name for option in command.params if isinstance(option, click.Option)]
    assert Counter(options) == Counter(name for names in SECTIONS[words].values() for name in names)
    titles = [line.rstrip(":") for line in command.get_help(context).splitlines() if line[:1].isalpha()]
    assert titles[1:] == [*SECTIONS[words], "Other options"]
