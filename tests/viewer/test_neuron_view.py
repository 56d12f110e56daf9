"""The neuron view: numbers match the Python client, and the softmax is drawn to scale."""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from sentiment.client import Client, ExplainOptions, NeuronOptions
from tests.conftest import RunningServer
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import number, painted, saved_svg, settled
from tests.viewer.texts import SHORT

pytestmark = pytest.mark.needs_tool("chromium")


def test_neuron_numbers_match_the_python_client(visit: Visit, english: RunningServer, reader: Client) -> None:
    page = visit.settled(address(english.url, "neuron", text=SHORT))

    page.get_by_label("Layer", exact=True).select_option("4")
    page.get_by_label("Head", exact=True).select_option("7")
    page.get_by_label("Token", exact=True).select_option("6")
    page.get_by_role("button", name="As a table").click()
    settled(page)

    view = reader.explain(SHORT, options=ExplainOptions(neuron=NeuronOptions(4, 7, 6))).neuron
    expect(page.locator(".neuron-summary")).to_contain_text("In layer 4, head 7, token 6")
    region = page.get_by_role("region", name="Keys as a table")
    heads = region.locator("thead th").all_inner_texts()
    rows = [dict(zip(heads, row.split("\t"), strict=True)) for row in region.locator("tbody tr").all_inner_texts()]
    assert len(rows) == len(view.softmax)
    for row in rows:
        token = int(row["token"])
        for name, values in {"q·k": view.dot, "scaled": view.scaled, "score": view.score}.items():
            assert number(row[name]) == pytest.approx(values[token], abs=0.00501)
        assert float(row["softmax"].removeprefix("<")) == pytest.approx(view.softmax[token], abs=0.0001)
    assert [float(row["softmax"].removeprefix("<")) for row in rows] == sorted(
        (float(row["softmax"].removeprefix("<")) for row in rows), reverse=True
    )
    assert "neuron_layer=4" in page.url


def test_the_softmax_column_is_drawn_as_long_as_its_weights(visit: Visit, english: RunningServer, reader: Client, tmp_path: Path) -> None:
    page = visit.settled(address(english.url, "neuron", text=SHORT, neuron_layer=2, neuron_head=1, token=3))
    accent = page.evaluate("() => getComputedStyle(document.documentElement).getPropertyValue('--accent').trim()")
    view = reader.explain(SHORT, options=ExplainOptions(neuron=NeuronOptions(2, 1, 3))).neuron

    rects = saved_svg(page, tmp_path).iter("{http://www.w3.org/2000/svg}rect")

    bars = [float(rect.get("width")) for rect in rects if rect.get("fill") == accent and float(rect.get("height")) == 12]
    longest = int(np.argmax(view.softmax))
    assert len(bars) == len(view.softmax)
    assert np.array(bars) / bars[longest] == pytest.approx(view.softmax / view.softmax[longest], abs=0.01)
    assert painted(page.locator(".neuron-canvas")) > 10_000


def test_a_key_is_shown_in_detail_by_keyboard(visit: Visit, english: RunningServer, reader: Client) -> None:
    page = visit.settled(address(english.url, "neuron", text=SHORT, neuron_layer=1, neuron_head=2, token=5))
    view = reader.explain(SHORT, options=ExplainOptions(neuron=NeuronOptions(1, 2, 5))).neuron
    rows = page.get_by_role("listbox", name="Keys, a row each")

    rows.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")

    key = 2
    expect(rows.get_by_role("option")).to_contain_text(
        f"softmax {view.softmax[key]:.4f}" if view.softmax[key] >= 1e-4 else "softmax <0.0001"
    )
    detail = page.get_by_role("region", name="The chosen key")
    expect(detail).to_contain_text(f"q·k is {view.dot[key]:.2f}".replace("-", "\u2212"))
    top = np.argsort(-np.abs(view.product[key]), kind="stable")[:8]
    assert [int(number(text)) for text in detail.locator("tbody th").all_inner_texts()] == top.tolist()
    page.keyboard.press("Enter")
    settled(page)
    expect(page.get_by_label("Token", exact=True)).to_have_value("2")


def test_a_choice_is_requested_while_the_page_redraws(visit: Visit, english: RunningServer) -> None:
    page = visit.settled(address(english.url, "neuron", text=SHORT))
    # Redraws as each message does, at shorter intervals than a choice waits for the next one.
    page.evaluate("() => { setInterval(() => dispatchEvent(new Event('resize')), 40); }")

    page.get_by_label("Head", exact=True).select_option("7")

    expect(page.locator(".neuron-summary")).to_contain_text("In layer 0, head 7")


def test_the_inputs_split_matches_the_python_client(visit: Visit, english: RunningServer, reader: Client) -> None:
    page = visit.settled(address(english.url, "neuron", text=SHORT, token=3))

    page.get_by_role("button", name="Ask for the split").click()
    settled(page)

    methods = ("integrated_gradients", "gradient_x_input")
    found = reader.explain(SHORT, options=ExplainOptions(methods=methods, by_embedding=True, evidence=False))
    for method in methods:
        shown = page.get_by_role("region", name=f"Split of {method}")
        values = [number(cell) for cell in shown.locator("tbody tr td:nth-child(2)").all_inner_texts()]
        assert values[:3] == pytest.approx(found.attributions[method].by_embedding[3], abs=0.00501)
