"""Texts and pictures that a person has approved, compared whole. ``APPROVE=1 pytest TESTS`` writes them again: read the difference."""

import os
from collections.abc import Mapping
from pathlib import Path

APPROVING = bool(os.environ.get("APPROVE"))


def assert_approved(path: Path, texts: Mapping[str, str]) -> None:
    """The texts, each below its title, are the file ``path``."""
    found = "\n".join(f"=== {title}\n{text.rstrip()}\n" for title, text in texts.items())
    if APPROVING:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")
