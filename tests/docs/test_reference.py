"""What docs/reference.py makes of the code is what is committed."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    return runpy.run_path(str(ROOT / "docs/reference.py"))["made"]()


@pytest.mark.smoke
def test_the_reference_and_the_diagrams_are_those_of_the_code(made: dict[Path, str]) -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]

    assert stale == [], "stale: make reference"


def test_the_reference_has_no_page_that_is_not_made(made: dict[Path, str]) -> None:
    assert set((ROOT / "docs/reference").iterdir()) == {path for path in made if path.parent.name == "reference"}
