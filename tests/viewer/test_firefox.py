"""The page in Firefox: every view comes up without an error, at a desk's and a phone's size, and a file is classified."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import RunningServer
from tests.viewer.browser import DESK, PHONE_LARGE, address
from tests.viewer.firefox import Firefox, firefox
from tests.viewer.reading import ASKING, VIEWS

pytestmark = pytest.mark.needs_tool("firefox-esr")

QUIET = '!document.querySelector("#panel .asking, #panel [aria-busy=true]")'
# What each view shows once it is there.
DRAWN = {
    "text": ".text-word[data-value]:not([data-value=''])",
    "heads": ".heads-entry",
    "model": ".model-cell",
    "neuron": ".neuron-summary:not(:empty)",
    "geometry": ".geometry-table td",
    "card": ".card-summary",
    "compare": ".compare-body ins.text-word",
    "file": "#file",
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    with firefox(shutil.which("firefox-esr") or "", tmp_path_factory.mktemp("firefox")) as running:
        yield running


@pytest.mark.parametrize("size", [DESK, PHONE_LARGE], ids=["desk", "phone"])
def test_every_view_comes_up(browser: Firefox, english: RunningServer, size: dict[str, int]) -> None:
    browser.open(address(english.url, text="a good film", other="a very good film", method="occlusion"), **size)
    browser.wait('document.querySelector(".answer .label")?.textContent === "positive"')

    for view in VIEWS | ASKING:
        browser.evaluate(f'document.getElementById("tab-{view}").click()')
        browser.wait(f'document.querySelector("#panel").dataset.view === "{view}" && document.querySelector("{DRAWN[view]}") && {QUIET}')
        assert browser.evaluate("document.scrollingElement.scrollWidth - innerWidth") <= 0, view

    assert browser.wrong == []


def test_a_text_is_typed_and_a_file_classified(browser: Firefox, english: RunningServer, tmp_path: Path) -> None:
    browser.open(english.url, **DESK)
    browser.type("#text", "an awful film\ue009\ue006")
    browser.wait('document.querySelector(".answer .label")?.textContent === "negative"')

    browser.evaluate('document.getElementById("tab-file").click()')
    file = tmp_path / "texts.csv"
    file.write_text("id,review\n" + "1,a good film\n2,an awful film\n" * 20)
    browser.wait('document.querySelector("#file")')
    browser.choose_file("#file", file)
    browser.wait(
        '[...document.querySelectorAll(".file-view .button")].some((one) => one.textContent === "Classify the file" && !one.disabled)'
    )
    browser.evaluate('[...document.querySelectorAll(".file-view .button")].find((one) => one.textContent === "Classify the file").click()')

    browser.wait('document.querySelector(".file-progress").textContent.includes("Done: 40 texts answered.")')
    assert browser.wrong == []
