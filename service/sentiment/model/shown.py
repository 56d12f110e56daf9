"""Strings of a manifest that people see: on terminals, in headers of files and packages, in metrics and logs."""

from typing import Annotated

from pydantic import AfterValidator, Field

# Longer ones would break the tables that show them.
CHARACTERS_MAX = 200


def _checked(text: str) -> str:
    # Neither line ends nor what a terminal acts on or what hides: control and format characters, such as changes of the direction.
    if not text.isprintable() or text != text.strip():
        raise ValueError(f"must have printable characters only, and no space at its ends, got {text!r}")
    return text


Shown = Annotated[str, Field(min_length=1, max_length=CHARACTERS_MAX), AfterValidator(_checked)]
"""One line of printable text."""
