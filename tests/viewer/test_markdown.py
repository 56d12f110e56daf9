"""Markdown of a card becomes nodes."""

import pytest
from playwright.sync_api import Browser

from sentiment_viewer.joining import joined
from sentiment_viewer.page import assets

pytestmark = pytest.mark.needs_tool("chromium")

TABLE = "|a|b|\n|---|---|\n|1|2|\n"
CODE = "```\nx\n```\n"


def test_regions_with_the_same_name_are_numbered(browser: Browser) -> None:
    page = browser.new_page()
    try:
        page.add_script_tag(content=joined({name: asset.text for name, asset in assets().items() if name.endswith(".js")}, "markdown.js"))

        names = page.evaluate(
            "(text) => markdownNodes(text, 2).map((node) => node.getAttribute('aria-label')).filter(Boolean)",
            "\n".join([TABLE, CODE, TABLE, CODE, "|c|\n|-|\n", TABLE]),
        )

        assert names == ["table: a, b", "code", "table: a, b (2)", "code (2)", "table: c", "table: a, b (3)"]
    finally:
        page.close()
