"""What arguments of several commands share."""

import argparse

DATA_HELP = "labelled texts: .tsv (label<TAB>text), .csv (columns label, text) or .jsonl, also .gz"


def positive(value: str) -> int:
    """A whole number from 1 up."""
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; wanted at least 1")
    return number


def label_names(value: str) -> tuple[str, ...]:
    """At least two names parted by commas."""
    names = tuple(name.strip() for name in value.split(","))
    if len(names) < 2 or not all(names):
        raise argparse.ArgumentTypeError(f"{value!r}; wanted at least two names parted by commas")
    return names
