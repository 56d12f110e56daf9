"""The scorecard: measurements and card of the bundle."""

import json

import pytest
from playwright.sync_api import expect

from tests.conftest import RunningServer
from tests.english import ENGLISH, NAME
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.texts import SHORT

pytestmark = pytest.mark.needs_tool("chromium")


def test_the_scorecard_shows_measurements_and_card(visit: Visit, english: RunningServer) -> None:
    manifest = json.loads((ENGLISH / "manifest.json").read_text())

    page = visit(address(english.url, "card", text=SHORT))

    panel = page.get_by_role("tabpanel")
    for dataset, measured in manifest["accuracy"].items():
        row = panel.locator("tr").filter(has_text=dataset)
        expect(row.first).to_contain_text(f"{measured['accuracy']:.4f}")
        expect(row.first).to_contain_text(f"{measured['rows']:,}")
    expect(panel).to_contain_text(", ".join(manifest["labels"]))
    shares = [measured["accuracy"] for measured in manifest["accuracy"].values()]
    least, most = 100 * min(shares), 100 * max(shares)
    expect(panel.locator(".card-summary")).to_contain_text(f"Between {least:.1f} % and {most:.1f} % of its answers")
    assert page.evaluate("() => document.documentElement.scrollHeight") < 1200
    panel.get_by_role("heading", name="Model card").click()
    for heading in (line.lstrip("# ") for line in (ENGLISH / "MODEL_CARD.md").read_text().splitlines() if line.startswith("## ")):
        expect(panel.get_by_role("heading", name=heading, exact=True)).to_be_visible()


def test_the_scorecard_needs_no_text(visit: Visit, english: RunningServer) -> None:
    page = visit(address(english.url, "card"))

    expect(page.get_by_role("tabpanel")).to_contain_text(NAME)
