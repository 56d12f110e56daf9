"""One name for one option in all commands; the older names are taken too, and are not shown."""

import argparse
import re
from collections.abc import Iterator

import pytest

from sentiment.cli import main
from sentiment_models import cli as models
from sentiment_tools.commands import batch

# By command: the name and the older one.
RENAMED = [
    ("sentiment models list", "--token-file", "--tokens"),
    ("sentiment models load", "--token-file", "--tokens"),
    ("sentiment plan", "--texts", "--lengths"),
    ("sentiment plan", "--slo-percentile", "--percentile"),
    ("sentiment plan", "--queue-rows-max", "--queue-rows"),
    ("sentiment-batch", "--processes", "--workers"),
    ("sentiment-models train", "--output", "--out"),
    ("sentiment-models import-tf", "--overwrite", "--force"),
    ("sentiment-models import", "--overwrite", "--force"),
]
# What no command may call otherwise.
ELSEWHERE = {"--tokens", "--lengths", "--percentile", "--queue-rows", "--workers", "--out", "--force", "--server", "--address", "--url"}


def commands() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    pending = [("sentiment", main._parser()), ("sentiment-batch", batch._parser())]
    while pending:
        name, parser = pending.pop()
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        pending += [(f"{name} {each}", choice) for action in below for each, choice in action.choices.items()]
        yield name, parser
    for command in models.COMMANDS:
        parser = argparse.ArgumentParser()
        models.module_of(command).add_arguments(parser)
        yield f"sentiment-models {command}", parser


@pytest.mark.parametrize(("command", "name", "old"), RENAMED)
def test_an_older_name_of_an_option_is_taken_for_it_and_is_not_shown(command: str, name: str, old: str) -> None:
    parser = dict(commands())[command]

    assert parser._option_string_actions[old] is parser._option_string_actions[name]
    assert re.findall(rf"(?<![\w-]){name}(?![\w-])", parser.format_help())
    assert not re.findall(rf"(?<![\w-]){old}(?![\w-])", parser.format_help())


def test_no_command_offers_an_empty_choice() -> None:
    choices = [(name, action.dest, action.choices) for name, parser in commands() for action in parser._actions]

    assert [(name, option) for name, option, offered in choices if offered and "" in offered] == []


def test_no_command_has_a_name_of_its_own_for_what_others_have() -> None:
    shown = {(name, option) for name, parser in commands() for action in parser._actions for option in action.option_strings}

    assert {(name, option) for name, option in shown if option in ELSEWHERE} == set()
