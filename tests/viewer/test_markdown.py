"""Markdown of a card becomes nodes."""

import pytest
from playwright.sync_api import Page

pytestmark = pytest.mark.needs_tool("chromium")

TABLE = "|a|b|\n|---|---|\n|1|2|\n"
CODE = "```\nx\n```\n"
NAMES = """async (text) => (await import("/viewer/markdown.js")).markdownNodes(text, 2)
  .map((node) => node.getAttribute("aria-label")).filter(Boolean)"""


def test_regions_with_the_same_name_are_numbered(modules: Page) -> None:
    names = modules.evaluate(NAMES, "\n".join([TABLE, CODE, TABLE, CODE, "|c|\n|-|\n", TABLE]))

    assert names == ["table: a, b", "code", "table: a, b (2)", "code (2)", "table: c", "table: a, b (3)"]
