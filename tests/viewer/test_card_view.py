"""The scorecard: measurements and card of the bundle."""

import json

import pytest
from playwright.sync_api import expect

from tests.conftest import RunningServer
from tests.viewer.browser import address
from tests.viewer.conftest import ROOT, Visit
from tests.viewer.texts import SHORT

pytestmark = pytest.mark.needs_tool("chromium")


def test_the_scorecard_shows_measurements_and_card(visit: Visit, english: RunningServer) -> None:
    bundle = ROOT / "models/bundles/english/1"
    manifest = json.loads((bundle / "manifest.json").read_text())

    page = visit(address(english.url, "card", text=SHORT))

    panel = page.get_by_role("tabpanel")
    for dataset, measured in manifest["accuracy"].items():
        row = panel.locator("tr").filter(has_text=dataset)
        expect(row.first).to_contain_text(f"{measured['accuracy']:.4f}")
        expect(row.first).to_contain_text(f"{measured['rows']:,}")
    expect(panel).to_contain_text("negative, positive")
    for heading in (line.lstrip("# ") for line in (bundle / "MODEL_CARD.md").read_text().splitlines() if line.startswith("## ")):
        expect(panel.get_by_role("heading", name=heading, exact=True)).to_be_visible()


def test_the_scorecard_needs_no_text(visit: Visit, english: RunningServer) -> None:
    page = visit(address(english.url, "card"))

    expect(page.get_by_role("tabpanel")).to_contain_text("english/1")
