"""docs/operate/security.md and hostile-callers.md name for each line of defence the tests that hold it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THREATS, CALLERS = ((ROOT / "docs/operate" / page).read_text(encoding="utf-8") for page in ("security.md", "hostile-callers.md"))
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", THREATS + CALLERS)))
DEFENDED = THREATS.partition("## What is defended")[2].partition("## What is not defended")[0]
both = pytest.mark.parametrize("text", [pytest.param(DEFENDED, id="security"), pytest.param(CALLERS, id="hostile-callers")])


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_each_test_that_is_named_is_there(path: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


@both
def test_each_line_of_defence_has_its_test(text: str) -> None:
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| threat", "| what "))]

    assert len(lines) > 15
    assert [line for line in lines if not re.search(r"`tests/[\w/]+\.py::test_\w+` \|$", line)] == []


def test_each_setting_that_is_named_is_one() -> None:
    from sentiment.settings import PREFIX, Settings

    named = set(re.findall(r"SENTIMENT_[A-Z_]+", THREATS + CALLERS))

    assert named <= {PREFIX + name.upper() for name in Settings.model_fields}
