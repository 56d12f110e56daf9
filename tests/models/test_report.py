"""Pages that load nothing, tables in three forms, plots that are equal for equal input."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from sentiment.errors import BadSettings
from sentiment.files.errors import BadFile
from sentiment_models.errors import ModelsError
from sentiment_models.evaluation.metrics import Bin
from sentiment_models.reports.plots import confusion, curves, reliability
from sentiment_models.reports.report import check_writable, picture
from sentiment_tools.reports.html_report import Section, markdown, page, paragraph, plain, table

PNG = b"\x89PNG\r\n\x1a\n"
VOID = {"meta", "img", "br"}


class Strict(HTMLParser):
    """Keeps the tags that are open, every attribute, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Strict:
    parser = Strict()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def test_a_page_is_well_formed_runs_nothing_loads_nothing_and_links_only_to_itself() -> None:
    plot = picture(curves({"a": [(1, 0.5), (2, 0.6)]}, "epoch", "accuracy", "t"), "accuracy rises")
    sections = [Section("One", paragraph("x")), Section("Two", table(("a",), [(1,)])), Section("Three", plot)]

    parser = read(page("All <of> it", sections))

    tags = {tag for tag, _, _ in parser.attributes}
    assert "script" not in tags
    assert "link" not in tags
    assert [name for _, name, _ in parser.attributes if name.startswith("on")] == []
    links = [value for _, name, value in parser.attributes if name in ("src", "href")]
    assert links
    assert all(link.startswith(("data:image/png;base64,", "#s")) for link in links)
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in parser.attributes
    assert "All <of> it" in parser.text
    targets = {value for _, name, value in parser.attributes if name == "id"}
    assert {value for _, name, value in parser.attributes if name == "href"} == {"#" + target for target in targets}


def test_texts_cannot_become_markup() -> None:
    evil = '<script>alert("x")</script> & \'"'

    for html in (table((evil,), [(evil,)]), picture(PNG, evil), paragraph(evil), page(evil, [Section(evil, "")])):
        assert "<script" not in html
        read(html)
    assert markdown((evil,), [("5 < 6",)]) == '| \\<script>alert("x")\\</script> & \'" |\n| --- |\n| 5 < 6 |'
    assert markdown(("a",), [("\\<b>",)]).splitlines()[2] == "| \\\\\\<b> |"


@pytest.mark.parametrize(
    ("cells", "right"),
    [
        ((1, 2500, None), True),
        ((0.5, 1.25), True),
        (("12.5 %", "3 ms", "-1,204"), True),
        (("0.91 to 0.93",), True),
        (("+0.0031", "\u22120.2"), True),
        (("1", "x"), False),
        (("3 films that I saw",), False),
        ((None, ""), False),
        ((True,), False),
    ],
)
def test_columns_of_numbers_stand_to_the_right(cells: tuple[object, ...], right: bool) -> None:
    assert ('class="number"' in table(("a",), [(cell,) for cell in cells])) is right
    assert ("---:" in markdown(("a",), [(cell,) for cell in cells])) is right


def test_a_cell_is_written_the_same_everywhere() -> None:
    rows = [("a|b", 1234567, 0.5, None)]

    assert plain(("x", "rows", "share", "none"), rows) == "x         rows   share  none\na|b  1,234,567  0.5000"
    assert markdown(("x", "rows", "share", "none"), rows).splitlines()[2] == "| a\\|b | 1,234,567 | 0.5000 |  |"
    assert '<td class="number">1,234,567</td>' in table(("x", "rows", "share", "none"), rows)


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a row has 1 cells; the header has 2"):
        table(("a", "b"), [(1,)])


def test_plots_are_pngs_and_equal_for_equal_input() -> None:
    bins = [Bin(0.4, 0.6, 10, 0.5, 0.0), Bin(0.6, 0.8, 5, 0.7, 1.0), Bin(0.8, 1.0, 30, 0.95, 0.9)]
    drawn = [
        (
            curves({"a": [(1, 0.5), (2, 0.6)], "b": []}, "epoch", "accuracy", "t"),
            reliability(bins, "t"),
            confusion([[3, 1], [0, 0]], ["no", "yes"], "t"),
        )
        for _ in range(2)
    ]

    assert drawn[0] == drawn[1]
    assert all(png.startswith(PNG) for png in drawn[0])
    assert len(set(drawn[0])) == 3


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ModelsError, match="the folder does not exist; create it first"):
        check_writable(json=None, html=tmp_path / "nowhere" / "a.html")
    with pytest.raises(BadFile, match="expected a file, got a folder"):
        check_writable(json=tmp_path, html=None)
    with pytest.raises(BadSettings, match="--json and --html are the same file"):
        check_writable(json=tmp_path / "a", html=tmp_path / "a")

    check_writable(json=Path("-"), html=tmp_path / "a.html")
    assert list(tmp_path.iterdir()) == []
