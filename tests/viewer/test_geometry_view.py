"""The geometry view: points and nearest words are those that the server sent, by pointer, by keyboard and in the table."""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.conftest import RunningServer
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import change, number, saved_svg, settled
from tests.viewer.texts import PAIR

pytestmark = pytest.mark.needs_tool("chromium")

# None of the golden texts.
TEXT = "A slow first half, but the brilliant cast and a lovely score make this film a joy."
LAYERS = 7
PATH = "{http://www.w3.org/2000/svg}path"
LABEL = "{http://www.w3.org/2000/svg}text"
Points = npt.NDArray[np.float64]
# The pictures that a layer's change shows, each as the places of its dots, which do not depend on how a browser paints them.
_PICTURES = """([slider, value]) => new Promise((done) => {
  const {arc} = CanvasRenderingContext2D.prototype;
  const seen = new Map();
  const stage = document.querySelector(".geometry-stage");
  let [places, last, begun] = [[], 0, performance.now()];
  CanvasRenderingContext2D.prototype.arc = function (x, y, ...rest) {
    places.push(x, y);
    arc.call(this, x, y, ...rest);
  };
  slider.value = value;
  slider.dispatchEvent(new Event("input", {bubbles: true}));
  const look = () => {
    if (places.length) [last, places] = [performance.now(), void seen.set(places.join(" ")) ?? []];
    const still = last && performance.now() - last > 1000;
    if (!still && performance.now() - begun < 60000) return requestAnimationFrame(look);
    CanvasRenderingContext2D.prototype.arc = arc;
    done(seen.size);
  };
  look();
})"""


@pytest.fixture(scope="module")
def messages(english: RunningServer) -> list[dict[str, Any]]:  # JSON's values are of many kinds
    """What the server answers."""
    body = json.dumps({"text": TEXT, "options": {"geometry": True}}).encode()
    # The first explanation loads the graph, which takes long on a busy machine.
    asked = urllib.request.Request(f"{english.url}/v1/explain", body, {"Grpc-Timeout": "600S"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return [json.loads(line) for line in answer]


@pytest.fixture(scope="module")
def layers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [message["geometry"] for message in messages if "geometry" in message]
    assert [layer["layer"] for layer in found] == list(range(LAYERS))
    return found


@pytest.fixture(scope="module")
def words(messages: list[dict[str, Any]]) -> list[str]:
    spans = [word["span"] for word in messages[0]["header"]["words"]]
    return [TEXT[span["code_point_start"] : span["code_point_end"]] for span in spans]


def nearest(layer: dict[str, Any], words: list[str], word: int) -> list[tuple[str, float]]:
    """The golden words that the server names for a word, with their cosines."""
    count = len(layer["nearest"]) // len(words)
    part = slice(word * count, (word + 1) * count)
    return [(layer["golden"][place], cosine) for place, cosine in zip(layer["nearest"][part], layer["cosines"][part], strict=True)]


def points(layer: dict[str, Any]) -> Points:
    """x and y of the words and, after them, of the golden words."""
    return np.array([*layer["points"], *layer["golden_points"]]).reshape(-1, 2)


def centres(path: Any, radius: float) -> Points:
    """The centres of a path's dots."""
    starts = re.findall(r"M([-\d.]+) ([-\d.]+)a", path.get("d"))
    return np.array(starts, np.float64) + np.array([radius, 0])


def on_page(canvas: Locator, layer: dict[str, Any]) -> Points:
    """Where the page should draw the points: one scale for both axes, the middle of all points and of their mean in its middle."""
    box = canvas.bounding_box()
    assert box is not None
    found = points(layer)
    low, high = (edge(np.vstack([found, [0, 0]]), axis=0) for edge in (np.min, np.max))
    size = np.array([box["width"], box["height"]])
    scale = np.min((size - 0.08 * box["width"]) / (high - low))
    return np.array([box["x"], box["y"]]) + size / 2 + (found - (low + high) / 2) * [scale, -scale]


def listed(region: Locator) -> list[tuple[str, float]]:
    """The nearest words of the chosen word, as the panel lists them."""
    return [
        (item.locator("bdi").inner_text(), number(item.locator(".number").inner_text())) for item in region.get_by_role("listitem").all()
    ]


def agrees(found: list[tuple[str, float]], wanted: list[tuple[str, float]]) -> None:
    assert [text for text, _ in found] == [text for text, _ in wanted]
    assert [cosine for _, cosine in found] == pytest.approx([cosine for _, cosine in wanted], abs=0.00501)


def chosen(page: Page) -> Locator:
    return page.get_by_role("region", name="The chosen word")


def option(page: Page) -> Locator:
    return page.get_by_role("listbox", name="Words of the text").get_by_role("option")


def test_points_stand_where_the_data_says(
    visit: Visit, english: RunningServer, layers: list[dict[str, Any]], words: list[str], tmp_path: Path
) -> None:
    page = visit.settled(address(english.url, "geometry", text=TEXT, geometry_layer=3))

    paths = list(saved_svg(page, tmp_path).iter(PATH))

    own = [centres(path, 5) for path in paths if "a5 5 " in path.get("d") and path.get("stroke") != "none"]
    golden = next(centres(path, 2) for path in paths if "a2 2 " in path.get("d"))
    drawn = np.vstack([*own, golden])
    assert len(own) == len(words)
    assert len(golden) == len(layers[3]["golden"])
    # One scale for both axes, y upwards: the same as the data but for where it is and how large.
    data = points(layers[3]) * [1, -1]
    scale = np.ptp(drawn[:, 0]) / np.ptp(data[:, 0])
    moved = drawn - scale * data
    assert np.abs(moved - moved.mean(0)).max() < 0.05


def test_the_slider_shows_each_layers_nearest_words_by_keyboard(
    visit: Visit, english: RunningServer, layers: list[dict[str, Any]], words: list[str]
) -> None:
    page = visit.settled(address(english.url, "geometry", text=TEXT))
    slider = page.get_by_role("slider", name="Layer")
    table = page.get_by_role("region", name="nearest golden words")
    panel = page.get_by_role("tabpanel")

    for layer, key, said in ((0, "Home", "embeddings"), (1, "ArrowRight", "after 1 of 6 layers"), (6, "End", "after 6 of 6 layers")):
        slider.press(key)
        expect(slider).to_have_attribute("aria-valuetext", re.compile(said))
        rows = table.locator("tbody tr").all()
        assert [row.locator("th").inner_text() for row in rows] == words
        for word, row in enumerate(rows):
            cells = [cell.rsplit(" ", 1) for cell in row.locator("td").all_inner_texts()]
            agrees([(text, number(cosine)) for text, cosine in cells], nearest(layers[layer], words, word))
        shares = [number(found) for found in re.findall(r"[\d.]+(?=\u202f%)", panel.inner_text())[:2]]
        assert shares == pytest.approx([100 * share for share in layers[layer]["variance"]], abs=0.501)
    assert "geometry_layer=6" in page.url


def test_a_word_is_chosen_by_keyboard_and_its_lines_lead_to_its_nearest(
    visit: Visit, english: RunningServer, layers: list[dict[str, Any]], words: list[str], tmp_path: Path
) -> None:
    page = visit.settled(address(english.url, "geometry", text=TEXT, geometry_layer=4))
    word = words.index("lovely")

    page.get_by_role("listbox", name="Words of the text").press("Home")
    for _ in range(word):
        page.keyboard.press("ArrowRight")

    wanted = nearest(layers[4], words, word)
    expect(chosen(page).get_by_role("heading")).to_have_text(re.compile("^lovely"))
    agrees(listed(chosen(page)), wanted)
    expect(option(page)).to_have_text(f"lovely, nearest {', '.join(f'{text} {cosine:.2f}' for text, cosine in wanted)}")
    accent = page.evaluate("() => getComputedStyle(document.documentElement).getPropertyValue('--accent').trim()")
    paths = list(saved_svg(page, tmp_path).iter(PATH))
    own = [centres(path, 5)[0] for path in paths if "a5 5 " in path.get("d") and path.get("stroke") != "none"]
    golden = next(centres(path, 2) for path in paths if "a2 2 " in path.get("d"))
    lines = [path.get("d") for path in paths if path.get("stroke") == accent and path.get("stroke-width") == "1.5"]
    ends = np.array([re.findall(r"[-\d.]+", line) for line in lines], np.float64)
    assert np.abs(ends[:, :2] - own[word]).max() < 0.05
    assert np.abs(ends[:, 2:] - golden[layers[4]["nearest"][word * len(wanted) : (word + 1) * len(wanted)]]).max() < 0.05

    expect(option(page)).to_have_attribute("aria-posinset", str(word + 1))
    expect(option(page)).to_have_attribute("aria-setsize", str(len(words)))
    found = points(layers[4])
    around = np.linalg.norm(found[len(words) :] - found[word], axis=1)
    page.get_by_role("listbox", name="Words of the text").press("ArrowDown")
    expect(option(page)).to_have_text(f"golden word {layers[4]['golden'][int(np.argmin(around))]}")
    assert option(page).get_attribute("aria-posinset") is None
    assert option(page).get_attribute("aria-setsize") is None
    page.keyboard.press("Escape")
    expect(option(page)).to_contain_text("lovely, nearest")
    expect(option(page)).to_have_attribute("aria-posinset", str(word + 1))


def test_a_word_is_held_by_pointer_and_released_beside_all_points_and_by_escape(
    visit: Visit, english: RunningServer, layers: list[dict[str, Any]], words: list[str]
) -> None:
    page = visit.settled(address(english.url, "geometry", text=TEXT, geometry_layer=2))
    canvas = page.locator(".geometry-canvas")
    canvas.scroll_into_view_if_needed()
    places = on_page(canvas, layers[2])
    apart = np.linalg.norm(places[:, None] - places, axis=2) + np.diag(np.full(len(places), np.inf))
    # The word that stands most alone.
    word = int(apart.min(1)[: len(words)].argmax())
    box = canvas.bounding_box()
    assert box is not None
    # No point, and no name of one, is in the margin.
    beside = box["x"] + 1, box["y"] + box["height"] - 1
    assert np.linalg.norm(places - beside, axis=1).min() > 12

    page.mouse.move(*places[word])
    agrees(listed(chosen(page)), nearest(layers[2], words, word))
    for release in ("click", "Escape", "again"):
        page.mouse.click(*places[word])
        expect(chosen(page)).to_contain_text("(held)")
        if release == "Escape":
            page.keyboard.press("Escape")
        else:
            page.mouse.click(*(beside if release == "click" else places[word]))
        expect(chosen(page)).not_to_contain_text("(held)")
        expect(chosen(page).get_by_role("heading")).to_have_text(re.compile(f"^{re.escape(words[word])}"))


def test_a_geometry_that_was_cut_short_is_a_note_with_a_retry(visit: Visit, english: RunningServer, words: list[str]) -> None:
    def cut(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for message in messages:
            if "geometry" in message:
                message["geometry"]["layers"] = LAYERS - 1
        return [message for message in messages if "geometry" not in message or message["geometry"]["layer"] < 3]

    page = visit.blank(english.url)
    change(page, "geometry", cut)
    page.goto(address(english.url, "geometry", text=TEXT, geometry_layer=2))

    panel = page.get_by_role("tabpanel")
    note = panel.locator(".note:visible").filter(has=page.get_by_role("button", name="Try again"))
    expect(note).to_contain_text("Geometry: The server cut it short after 2 of 6 layers; its notes say why.")
    expect(page.locator(".geometry-shown")).to_be_hidden()
    page.unroute("**/v1/explain")
    note.get_by_role("button", name="Try again").click()
    settled(page)
    expect(page.locator(".geometry-table tbody tr")).to_have_count(len(words))
    expect(page.get_by_role("slider", name="Layer")).to_have_attribute("aria-valuetext", "after 2 of 6 layers")
    expect(note).to_have_count(0)


def test_words_of_a_second_text_are_named_as_such(visit: Visit, paired: RunningServer, tmp_path: Path) -> None:
    page = visit.settled(address(paired.url, "geometry", text=PAIR[0], pair=PAIR[1]))
    first, second = (text.split() for text in PAIR)
    listbox = page.get_by_role("listbox", name="Words of the text")

    listbox.press("Home")

    expect(option(page)).to_have_text(re.compile(f"^{first[0]}, nearest "))
    expect(chosen(page).get_by_role("heading")).to_have_text(re.compile(f"^{first[0]}(,|$)"))
    listbox.press("End")
    named = f"{second[-1]} (2nd text)"
    expect(option(page)).to_have_text(re.compile(f"^{re.escape(named)}, nearest "))
    expect(chosen(page).get_by_role("heading")).to_have_text(re.compile(f"^{re.escape(named)}(,|$)"))
    expect(page.locator(".geometry-table tbody th").last).to_have_text(named)
    labels = [label.text for label in saved_svg(page, tmp_path).iter(LABEL)]
    assert named in labels
    assert not {f"{word} (2nd text)" for word in first if word not in second} & set(labels)


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_points_move_between_layers_unless_the_reader_wants_no_motion(visit: Visit, english: RunningServer, motion: str) -> None:
    page = visit.settled(address(english.url, "geometry", text=TEXT), reduced_motion=motion)

    pictures = page.evaluate(_PICTURES, [page.get_by_role("slider").element_handle(), "5"])

    # What is there after, or what is between, too.
    assert pictures == 1 if motion == "reduce" else pictures > 1, pictures
