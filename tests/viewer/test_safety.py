"""Markup and scripts in a text, an address or an answer are never executed."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from sentiment.explain.methods.registry import METHODS
from tests.conftest import RunningServer
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import VIEWS, ask, saved_svg, settled, show
from tests.viewer.texts import ATTACK

pytestmark = pytest.mark.needs_tool("chromium")

# Where a label, a word or a card could do harm if it became markup.
FOREIGN = "script:not([src]), img, iframe, object, embed, base, form[action], [onerror], [onload], [onmouseover], a[href^='javascript' i]"
CARD = (
    f"# Card {ATTACK}\n\n{ATTACK}\n\n[go](javascript:alert(6)) <javascript:alert(7)> ![x](http://127.0.0.1:1/x.png)"
    f"\n\n```\n</code>{ATTACK}\n```\n"
)


def clean(page: Page) -> None:
    """The page has none of what an attack would make of it, on any view."""
    for view in VIEWS:
        show(page, view)
        settled(page)
        assert page.locator(FOREIGN).count() == 0


def test_markup_in_a_text_stays_text(visit: Visit, paired: RunningServer, tmp_path: Path) -> None:
    page = visit(paired.url)

    ask(page, ATTACK)
    clean(page)

    for view in ("heads", "neuron", "geometry", "text"):
        show(page, view)
        nodes = [*saved_svg(page, tmp_path).iter()]
        assert {node.tag.partition("}")[2] for node in nodes} <= {"svg", "title", "rect", "path", "text", "image"}
        assert [name for node in nodes for name in node.attrib if name.startswith("on")] == []
    # The tiny model does not read all of it: the rest is text, too, and followed by a note.
    assert page.locator(".text-words-side").evaluate("(node) => node.textContent").partition(" [not read")[0] == ATTACK


def test_markup_in_a_pair_from_the_address_stays_text(visit: Visit, paired: RunningServer) -> None:
    page = visit(address(paired.url, text="good", pair=ATTACK, special="0", filter="ab"))

    clean(page)


CHOICES = ("layer", "heads", "lock", "level", "filter", "map", "token", "geometry_layer", "without")
OUT_OF_RANGE = {
    "layer": "99999999",
    "heads": "-1,3,99",
    "lock": "999r",
    "neuron_layer": "777",
    "neuron_head": "1e9",
    "token": "88888",
    "geometry_layer": "55",
    "map": "9,99",
}
NAMES = {"view": "__proto__", "theme": "constructor", "__proto__": "x", "toString": "1"}


@pytest.mark.parametrize(
    "state",
    [
        *({name: ATTACK} for name in ("label", "model", "method", "truncation")),
        OUT_OF_RANGE,
        dict.fromkeys(CHOICES, ATTACK) | NAMES,
        {"without": "0,1,2,3,4,5,6,7,8,9,10,11,12,500"},
    ],
    ids=["label", "model", "method", "truncation", "numbers", "choices and names", "words"],
)
def test_any_address_leaves_a_working_page_without_foreign_markup(visit: Visit, english: RunningServer, state: dict[str, str]) -> None:
    page = visit(address(english.url, text="a good film", **state), refused=True)

    clean(page)

    ask(page, "a bad film")
    expect(page.locator("#answer").locator(".label, .failed").first).to_be_visible()


def test_markup_from_the_server_stays_text(visit: Visit, english: RunningServer) -> None:
    page = visit.blank(english.url)

    def twist(route: Route) -> None:
        answer = route.fetch()
        body = answer.text()
        for name in ("negative", *METHODS):
            body = body.replace(f'"{name}"', json.dumps(ATTACK))
        lines = [json.loads(line) for line in body.splitlines()]
        for line in lines:
            for model in [line.get("model", {}), *line.get("models", [])]:
                model.update(card=CARD, architecture=ATTACK)
                for row in model.get("accuracy", []):
                    row["dataset"] = ATTACK
            for token in line.get("header", {}).get("tokens", []):
                token["piece"] = ATTACK
            if "geometry" in line:
                line["geometry"]["golden"] = [ATTACK] * len(line["geometry"]["golden"])
            if "summary" in line:
                line["summary"]["notes"] = [ATTACK]
        route.fulfill(response=answer, body="\n".join(map(json.dumps, lines)) + "\n")

    page.route("**/v1/**", twist)
    page.goto(address(english.url, text="truly terrible"))

    clean(page)

    expect(page.locator(".answer .label")).to_have_text(ATTACK)
    expect(page.locator("#notes")).to_contain_text(ATTACK)
    card = show(page, "card")
    expect(card).to_contain_text("onerror=alert(1)")
    assert set(card.locator("a").evaluate_all("(all) => all.map((link) => link.protocol)")) <= {"http:", "https:"}


def test_the_policy_blocks_injected_scripts_and_requests(visit: Visit, english: RunningServer) -> None:
    page = visit(english.url)

    ran = page.evaluate(
        """async () => {
          const script = document.createElement("script");
          let refused = false;
          try { script.text = "window.ran = true"; } catch { refused = true; }
          document.head.append(script);
          const node = document.createElement("div");
          try { node.innerHTML = "<img src=x onerror='window.ran = true'>"; refused = false; } catch { refused &&= true; }
          await fetch("https://example.org/").catch(() => {});
          // The news of a violation comes as a task of its own.
          await new Promise((done) => setTimeout(done, 100));
          return [refused, window.ran ?? false];
        }"""
    )

    assert ran == [True, False]
    said = " ".join(visit.forgiven(page))
    assert "trusted-types" in said
    assert "connect-src https://example.org/" in said


def test_other_pages_cannot_frame_the_viewer(visit: Visit, english: RunningServer) -> None:
    page = visit(f"{english.url}/healthz", refused=True)

    page.evaluate(
        """(url) => new Promise((done) => {
      const frame = document.createElement("iframe");
      frame.src = url;
      frame.onload = done;
      document.body.append(frame);
    })""",
        english.url,
    )

    assert "frame-ancestors" in " ".join(visit.forgiven(page))
    assert page.frames[1].locator("#tabs").count() == 0
