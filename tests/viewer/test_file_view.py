"""A file on the page: read as the command line reads it, classified with a bound on what runs and is kept, sorted, filtered, and saved
as CSV.
"""

import base64
import csv
import gzip
import json
import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Request, Route, expect

from sentiment.client import Client
from sentiment.files.formats import json_row
from tests.conftest import RunningServer
from tests.core.files.odd_files import ODD_FILES, OddFile
from tests.core.grpc.gate import FixedCost, Gate, Start, set_cost
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import ask, show, until
from tests.viewer.texts import FOREIGN

pytestmark = pytest.mark.needs_tool("chromium")

TEXTS = ["good", "a great film", "bad", "awful, the film", 'a "good" film', "film\nand good", "=1+1 good", "  "]
# The page's own modules over a file, whose bytes come in pieces of some sizes. The column may be given by its name.
READ = """async ([name, content, sizes, {column, ...chosen}]) => {
  const {fileHead, fileTexts} = await import("/viewer/file_rows.js");
  const bytes = Uint8Array.from(atob(content), (sign) => sign.charCodeAt(0));
  const file = new File([bytes], name);
  file.stream = () => new ReadableStream({start(stream) {
    let place = 0;
    for (let piece = 0; place < bytes.length; piece += 1) {
      const size = sizes[piece % sizes.length];
      stream.enqueue(bytes.slice(place, place + size));
      place += size;
    }
    stream.close();
  }});
  const found = {texts: [], errors: [], stopped: ""};
  try {
    const head = await fileHead(file, {...chosen, ...(column >= 0 && {column})});
    Object.assign(found, head);
    if (head.columns.includes(column)) head.column = head.columns.indexOf(column);
    for await (const {text = null, error} of fileTexts(file, head, () => {})) {
      found.texts.push(text);
      if (error) found.errors.push(error);
    }
  } catch (error) {
    found.stopped = error.message;
  }
  return found;
}"""
UNREAD = (".parquet", ".xlsx", ".zst")
# The page offers the columns that there are, each by its place.
OFFERED = {"two columns of the name": ["text", "text_2"], "no such column": ["id", "review"], "a key that no row has": ["review"]}
EMPTY = "an empty file"


def csv_file(path: Path, texts: list[str], delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "Review"])
        writer.writerows(enumerate(texts))
    return path


def classify(page: Page, file: Any) -> None:  # a path, or a file by its bytes
    """Choose a file and classify it."""
    page.get_by_label("A file of texts").set_input_files(file)
    page.get_by_role("button", name="Classify the file").click()


def says(page: Page, text: str) -> None:
    expect(page.locator(".file-progress")).to_contain_text(text)


def full_at_first(page: Page, times: int) -> list[float]:
    """Let the server refuse the first texts; the instants in ms at which texts were sent are added to what is returned."""
    sent: list[float] = []

    def answer(route: Route) -> None:
        sent.append(page.evaluate("() => performance.now()"))
        if len(sent) > times:
            route.continue_()
        else:
            error = {"status": "RESOURCE_EXHAUSTED", "code": 8, "message": "the queue is full"}
            route.fulfill(status=429, headers={"Retry-After": "1"}, json={"error": error})

    page.route("**/v1/classify", answer)
    return sent


def saved(page: Page, folder: Path) -> list[dict[str, str]]:
    """The rows that the button saves."""
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save CSV").click()
    path = folder / saving.value.suggested_filename
    saving.value.save_as(path)
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read(page: Page, name: str, content: bytes, chosen: Mapping[str, Any] | None = None, sizes: Sequence[int] = (7,)) -> dict[str, Any]:
    """What the page's reader makes of a file."""
    found: dict[str, Any] = page.evaluate(READ, [name, base64.b64encode(content).decode(), list(sizes), dict(chosen or {})])
    return found


def on_the_page(reason: str) -> str:
    """A part of a reason in the page's words, which name no options."""
    return re.sub(r"^:\d+: | with --\w+( txt)?", "", reason).lower()


def chosen_for(odd: OddFile) -> dict[str, Any]:
    """The options of a file as choices on the page."""
    column = odd.options.get("column", "text")
    others = {{"format": "kind"}.get(name, name): value for name, value in odd.options.items() if name != "sheet"}
    return {**others, "column": int(column) - 1 if str(column).isdecimal() else column}


@pytest.mark.parametrize("odd", [odd for odd in ODD_FILES if odd.name not in (*OFFERED, EMPTY)], ids=lambda odd: odd.name)
def test_an_odd_file_is_read_as_by_the_command_line(modules: Page, odd: OddFile) -> None:
    found = read(modules, f"odd{odd.ending}", odd.content, chosen_for(odd))

    if odd.ending.endswith(UNREAD):
        ending = odd.ending[odd.ending.rindex(".") :]
        assert f"does not read {ending}: export it as .txt, .csv" in found["stopped"]
        assert "sentiment classify --input" in found["stopped"]
    else:
        # A page takes nothing of a packed piece that damage follows: a browser may not give it.
        assert found["texts"] == ([] if "cannot be decompressed" in odd.stops else odd.texts)
        assert on_the_page(odd.stops) in found["stopped"].lower()
        assert bool(odd.stops) == bool(found["stopped"])
        assert all(on_the_page(place) in error.lower() for place, error in zip(odd.places, found["errors"], strict=True))
        assert all(error.startswith("UNREADABLE: ") for error in found["errors"])


@pytest.mark.parametrize("name", OFFERED)
def test_the_columns_that_there_are_are_offered(modules: Page, name: str) -> None:
    odd = next(odd for odd in ODD_FILES if odd.name == name)

    assert read(modules, f"odd{odd.ending}", odd.content)["columns"] == OFFERED[name]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
def test_any_csv_of_pythons_writer_is_read_as_it_was_written_in_pieces_of_any_size(modules: Page, tmp_path: Path, delimiter: str) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    draw = random.Random(seed)
    texts = ["".join(draw.choices("ab ,;\t\"\n\r\u00e9\U0001f600\ufeff\ufffd'", k=draw.randint(1, 12))) for _ in range(60)]
    content = csv_file(tmp_path / "x.csv", texts, delimiter).read_bytes()

    for sizes in ([1], [3, 5], [10**6]):
        for encoded in (content, content.decode().encode("utf-16"), b"\xfe\xff" + content.decode().encode("utf-16-be")):
            found = read(modules, "x.csv", encoded, sizes=sizes)

            assert (found["columns"], found["column"], found["stopped"]) == (["id", "Review"], 1, "")
            assert found["texts"] == texts


@pytest.mark.parametrize(
    ("content", "delimiter", "columns", "column"),
    [
        (b"good\nbad\n", ",", ["1"], 0),
        (b"5,a good film\n1,a bad film\n", ",", ["1", "2"], 1),
        (b"Meinung;Sterne\nein guter Film, finde ich;5\nschlecht;\n", ";", ["Meinung", "Sterne"], 0),
        (b"a good film;pos\na bad film;neg\n", ";", ["1", "2"], 0),
        (b"Text\n", ",", ["Text"], 0),
        (b"Film,2\nbad,1\n", ",", ["1", "2"], 0),
    ],
)
def test_a_first_row_that_may_be_data_is_data(modules: Page, content: bytes, delimiter: str, columns: list[str], column: int) -> None:
    found = read(modules, "x.csv", content)

    assert (found["delimiter"], found["columns"], found["column"]) == (delimiter, columns, column)
    assert len(found["texts"]) == content.count(b"\n") - found["header"]


@pytest.mark.parametrize(
    ("name", "content", "chosen", "said"),
    [
        ("x.csv", b"", {}, "Its first row is empty."),
        ("x.csv", b'"a" b,c\n', {}, "Its first row a quoted field must end"),
        ("x.txt", b"\xff\xfe\0\0a\0\0\0", {}, "UTF-32"),
        ("x.json", b'["good", "caf\xe9"]', {}, "bytes that are not of the encoding utf-8"),
        ("x.json", b'["good", good]', {}, "not complete or not valid after row 1"),
        ("x.json", b'["good",]', {}, "not complete or not valid after row 1"),
        ("x.json", b'["' + b"x" * 2**23 + b'"]', {}, "Row 1 has more than 4,194,304 characters"),
        ("x.txt", b"good\n" + b"x" * 2**23, {}, "Line 2 has more than 4,194,304 bytes"),
        ("x.csv", b'text\n"' + b"x\n" * 2**22, {}, "The quote that opens in line 2 is not closed"),
    ],
    ids=["empty", "a bad first row", "utf-32", "json in another encoding", "no json", "a comma", "an element", "a line", "a record"],
)
def test_a_file_that_cannot_be_read_on_says_why(modules: Page, name: str, content: bytes, chosen: dict[str, Any], said: str) -> None:
    assert said in read(modules, name, content, chosen, sizes=[2**16])["stopped"]


def test_a_long_number_of_json_keeps_its_digits(modules: Page) -> None:
    cells = modules.evaluate(
        """async () => {
          const {fileHead, fileTexts} = await import("/viewer/file_rows.js");
          const {cellText} = await import("/viewer/file_csv.js");
          const file = new File(['{"text": "good", "id": 12345678901234567890, "n": 1.0, "m": {"k": 2.50}}'], "x.jsonl");
          const {value} = await fileTexts(file, await fileHead(file), () => {}).next();
          return [...value.values.values()].map(cellText);
        }"""
    )

    assert cells == ["good", "12345678901234567890", "1.0", '{"k":2.50}']


def test_numbers_that_json_lacks_are_read_as_the_command_line_does(modules: Page) -> None:
    line = '{"text": "NaN \\" -Infinity", "a": NaN, "b": -Infinity, "c": [Infinity], "d": nan}'
    cells = modules.evaluate(
        """async (lines) => {
          const {fileHead, fileTexts} = await import("/viewer/file_rows.js");
          const {cellText} = await import("/viewer/file_csv.js");
          const file = new File([lines], "x.jsonl");
          const rows = await Array.fromAsync(fileTexts(file, await fileHead(file), () => {}));
          return rows.map(({values, error}) => error ?? [...values.values()].map(cellText));
        }""",
        line.replace("nan", "1") + "\n" + line,
    )

    read = json_row("line 1", line.replace("nan", "1")).values
    assert read == {"text": 'NaN " -Infinity', "a": None, "b": "-inf", "c": ["inf"], "d": 1}
    assert cells[0] == ['NaN " -Infinity', "", "-inf", '["inf"]', "1"]
    assert cells[1] == "UNREADABLE: line 2: is no JSON"


def test_a_file_of_another_kind_is_refused_in_words(visit: Visit, server: RunningServer) -> None:
    page = visit(address(server.url, "file"))

    page.get_by_label("A file of texts").set_input_files({"name": "x.pdf", "mimeType": "", "buffer": b"good"})

    expect(page.get_by_role("alert")).to_contain_text("x.pdf cannot be read. A page does not read .pdf")
    expect(page.get_by_role("button", name="Classify the file")).to_be_hidden()


def test_how_a_file_is_read_can_be_changed_and_its_first_text_is_shown(visit: Visit, server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes("good, caf\u00e9;pos\nbad;neg\n".encode("cp1252"))
    page = visit(address(server.url, "file"))
    page.get_by_label("A file of texts").set_input_files(file)
    first = page.locator(".file-first")
    expect(first).to_have_text("UNREADABLE: line 1: has bytes that are not of the file's encoding; choose it")

    page.get_by_label("Encoding").select_option("Western (windows-1252)")
    expect(first).to_have_text("First text: caf\u00e9;pos")
    page.get_by_label("Delimiter").select_option("semicolon")
    expect(first).to_have_text("First text: good, caf\u00e9")
    expect(page.get_by_label("First row")).to_have_value("data")
    page.get_by_label("First row").select_option("column names")
    expect(first).to_have_text("First text: bad")
    page.get_by_label("Column with the text").select_option("pos")
    expect(first).to_have_text("First text: neg")
    page.get_by_label("Delimiter").select_option("none, a text a line")
    expect(first).to_have_text("First text: good, caf\u00e9;pos")
    expect(page.get_by_label("First row")).to_be_hidden()
    page.get_by_role("button", name="Classify the file").click()

    says(page, "Done: 2 texts answered.")


def test_a_file_that_cannot_be_read_can_be_read_in_another_way(visit: Visit, server: RunningServer) -> None:
    page = visit(address(server.url, "file"))
    content = 'text,id\n"good,1\nbad,2\n'.encode("utf-16-le")
    page.get_by_label("A file of texts").set_input_files({"name": "x.csv", "mimeType": "", "buffer": content})
    expect(page.get_by_role("alert")).to_contain_text("if it is UTF-16, choose that")

    page.get_by_label("Encoding").select_option("UTF-16")
    expect(page.locator(".file-first")).to_contain_text("The quote that opens in line 2 is not closed")
    page.get_by_label("Quotes").select_option("part of texts")

    expect(page.locator(".file-first")).to_have_text('First text: "good')


def test_a_quote_that_is_not_closed_ends_the_run_after_the_rows_before_it_are_answered(
    visit: Visit, server: RunningServer, tmp_path: Path
) -> None:
    file = tmp_path / "open.csv"
    file.write_text('text\ngood\nbad\n"good\nbad\n')
    page = visit(address(server.url, "file"), refused=True)
    full_at_first(page, 2)

    classify(page, file)

    says(page, "Ended early: 2 texts answered, refusals sent again: 2. The quote that opens in line 4 is not closed")


def test_a_run_ends_before_its_rows_need_more_memory_than_it_may_have(modules: Page) -> None:
    run: list[Any] = modules.evaluate(
        """async () => {
          const {FileRun} = await import("/viewer/file_run.js");
          async function* texts() {
            for (let row = 1; ; row += 1) yield {row, values: new Map(), chars: 2 ** 24, error: "UNREADABLE: row"};
          }
          const run = new FileRun(texts(), null, 4);
          await run.run();
          return [run.rows.length, run.limited];
        }"""
    )

    assert run[0] == 2
    assert run[1].startswith("This page takes 20,000 rows and 32 million characters of a file; the rest was not read.")


def test_saved_rows_are_those_of_the_command_line(visit: Visit, server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "reviews.csv"
    rows = [[place, text, "kept", "a,b", "2"] for place, text in enumerate(TEXTS)]
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([["label", "Review", "text", "score_positive", "label"], *rows])
        stream.write("1,too short\r\n")
    page = visit(address(server.url, "file"), refused=True)
    page.get_by_label("A file of texts").set_input_files(file)
    page.get_by_label("Column with the text").select_option("Review")
    page.get_by_role("button", name="Classify the file").click()
    says(page, "Done: 7 texts answered, 2 not answered.")
    page.get_by_label("Escape formulas").uncheck()
    found = saved(page, tmp_path)

    wanted = tmp_path / "wanted.csv"
    command = ["classify", "--target", server.target, "--input", file, "--column", "Review", "--output", wanted]
    subprocess.run([sys.executable, "-m", "sentiment", *map(str, command)], timeout=120, check=False, capture_output=True)
    with wanted.open(newline="", encoding="utf-8") as stream:
        rows_wanted = list(csv.DictReader(stream))
    assert len(found) == len(rows_wanted) == 9
    for row, row_wanted in zip(found, rows_wanted, strict=True):
        assert list(row) == list(row_wanted)
        for name, value in row_wanted.items():
            exact = name not in ("score", "score_negative", "score_positive") or not value
            assert row[name] == value if exact else float(row[name]) == pytest.approx(float(value), abs=1e-6)


def test_the_columns_of_a_file_without_an_answer_are_those_of_the_model(visit: Visit, server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": null, "n": 1}\n\n')
    page = visit(address(server.url, "file"))

    classify(page, file)
    says(page, "Done: 0 texts answered, 2 not answered.")

    first, second = saved(page, tmp_path)
    assert list(first) == ["n", "text", "label", "score", "abstain", "mixed", "score_negative", "score_positive", "tokens", "truncated",
                           "language_suspect", "early", "model", "model_digest", "error"]  # fmt: skip
    assert (first["n"], first["error"]) == ("1", "UNREADABLE: line 1: 'text' is missing")
    assert second["error"] == "UNREADABLE: line 2: the line is empty"


def test_formulas_are_escaped_unless_it_is_switched_off(visit: Visit, server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "x.csv.gz"
    file.write_bytes(gzip.compress(b"text,=id\n=1+1 good,-5\ngood,5\n"))
    page = visit(address(server.url, "file"))
    classify(page, file)
    says(page, "Done: 2 texts answered.")

    first, second = saved(page, tmp_path)
    expect(page.locator("#toast")).to_have_text("2 rows are saved. Cells that have an apostrophe now: 3.")
    assert [first["text"], first["'=id"], second["'=id"]] == ["'=1+1 good", "'-5", "5"]

    page.get_by_label("Escape formulas").uncheck()
    first, _ = saved(page, tmp_path)
    assert [first["text"], first["=id"]] == ["=1+1 good", "-5"]


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t=", " =", "\r", "\uff1d"])
def test_no_escaped_cell_is_a_formula(modules: Page, sign: str) -> None:
    parts: list[str] = modules.evaluate(
        """async (sign) => (await import("/viewer/file_csv.js")).csvOf([{values: new Map(), text: `${sign}HYPERLINK("x",1)`}],
          {columns: [], text: "text", labels: [], escapes: true, explanations: new Map()}).parts""",
        sign,
    )

    assert next(csv.DictReader([*parts[0].splitlines(), parts[1]]))["text"] == f'\'{sign}HYPERLINK("x",1)'


def test_answers_are_sorted_and_filtered_and_what_is_shown_is_saved(visit: Visit, server: RunningServer, tmp_path: Path) -> None:
    texts = [f"w{place - 30}" for place in range(60)]
    page = visit(address(server.url, "file"))
    classify(page, csv_file(tmp_path / "many.csv", texts))
    says(page, "Done: 60 texts")
    table = page.get_by_role("region", name="answers to the file").locator("tbody tr")
    expect(table).to_have_count(25)

    page.get_by_role("button", name="Next").click()
    expect(table.first).to_contain_text("w-5")
    page.get_by_label("Label", exact=True).select_option("=negative")
    page.get_by_label("Sort by").select_option("high")
    expect(table.first).to_contain_text("w-30")
    page.get_by_label("Score from").fill("0.6")
    found = saved(page, tmp_path)

    scores = [float(row["score"]) for row in found]
    assert {row["label"] for row in found} == {"negative"}
    assert scores == sorted(scores, reverse=True)
    assert min(scores) >= 0.6
    expect(page.get_by_role("status").filter(has_text=f"{len(found)} of 60 texts")).to_be_visible()
    page.get_by_role("button", name="Explain row").first.click()
    expect(page.locator("#tab-text")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".answer .label")).to_have_text("negative")


def test_a_run_keeps_what_was_chosen_at_its_start_and_names_the_model_of_each_answer(
    visit: Visit, server: RunningServer, tmp_path: Path
) -> None:
    page = visit(address(server.url, "file"))
    held: list[Route] = []
    asked: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        request = json.loads(route.request.post_data or "")
        asked.append(request)
        if request.get("priority") != "PRIORITY_BULK":
            route.continue_()
            return
        response = route.fetch()
        said = response.json()
        if request["text"] == "bad":
            # As after an exchange of the server's model.
            said["model"] |= {"version": "2", "digest": "f" * 64}
        route.fulfill(response=response, json=said)

    page.route("**/v1/classify", lambda route: answer(route) if len(held) == 4 else held.append(route))
    classify(page, csv_file(tmp_path / "x.csv", ["good"] * 6 + ["bad"] * 6))
    until(page, lambda: len(held) == 4, "four texts are under way")
    page.get_by_label("Long text").select_option("head")
    ask(page, "film")
    until(page, lambda: bool(asked), "the change is in force")
    for route in held:
        answer(route)

    says(page, "Done: 12 texts answered")
    says(page, "The model changed during the run: the answers are from tiny/1 (")
    says(page, "), tiny/2 (ffffffffffff).")
    assert [request.get("truncation") for request in asked] == ["TRUNCATION_HEAD"] + [None] * 12
    rows = saved(page, tmp_path)
    assert [(row["text"], row["model"]) for row in rows] == [("good", "tiny/1")] * 6 + [("bad", "tiny/2")] * 6
    assert {len(row["model_digest"]) for row in rows} == {64}


def test_undecided_answers_can_be_looked_at_alone(visit: Visit, english: RunningServer, reader: Client, tmp_path: Path) -> None:
    texts = ["a wonderful film", "it was a disaster", *FOREIGN]
    wanted = [text for text in texts if reader.classify(text).abstain]
    page = visit(address(english.url, "file"))
    file = tmp_path / "x.txt"
    file.write_text("\n".join(texts), encoding="utf-8")

    classify(page, file)
    says(page, "Done")
    page.get_by_label("Certainty").select_option("undecided")

    assert [row["text"] for row in saved(page, tmp_path)] == wanted != []


def test_a_dropped_file_is_taken_on_any_view(visit: Visit, server: RunningServer) -> None:
    page = visit(server.url)
    show(page, "card")

    page.evaluate("""() => {
      const dataTransfer = new DataTransfer();
      dataTransfer.items.add(new File(["good\\nbad\\n"], "dropped.txt"));
      const options = {bubbles: true, cancelable: true, dataTransfer};
      for (const type of ["dragover", "drop"]) document.body.dispatchEvent(new DragEvent(type, options));
    }""")
    expect(page.locator(".file-named")).to_contain_text("dropped.txt")
    page.get_by_role("button", name="Classify the file").click()

    says(page, "Done: 2 texts answered.")


def test_few_texts_are_in_flight_and_cancelling_withdraws_them(
    visit: Visit, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    page = visit(address(server.url, "file"))
    gate = Gate(server, monkeypatch)
    open_calls = lambda: server.calls.open  # noqa: E731
    try:
        classify(page, csv_file(tmp_path / "x.csv", ["good"] * 500))
        until(page, lambda: open_calls() == 4, "four texts are in flight")
        page.wait_for_timeout(300)
        assert open_calls() == 4
        page.get_by_role("button", name="Cancel").click()
        says(page, "Cancelled: 0 texts answered, 4 not answered.")
        until(page, lambda: open_calls() == 0, "the calls are withdrawn")
    finally:
        gate.open()
    expect(page.get_by_role("button", name="Classify the file")).to_be_enabled()


def test_refused_texts_are_sent_again_when_the_server_says(visit: Visit, server: RunningServer, tmp_path: Path) -> None:
    page = visit(address(server.url, "file"), refused=True)
    sent = full_at_first(page, 4)

    classify(page, csv_file(tmp_path / "x.csv", ["good", "bad"] * 10))

    says(page, "Done: 20 texts answered, refusals sent again: 4.")
    assert len(sent) == 24
    assert sent[4] - sent[0] >= 900


def test_a_real_refusal_of_a_full_server_loses_no_text(visit: Visit, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(queue_rows_max=1, runners=1)
    # Refusals say "in half a second": of its eight tries a text has some left when the page has shown the first.
    set_cost(server, FixedCost(0.5))
    page = visit(address(server.url, "file"), refused=True)
    gate = Gate(server, monkeypatch)
    try:
        classify(page, csv_file(tmp_path / "x.csv", ["good"] * 12))
        says(page, "refusals sent again")
    finally:
        gate.open()

    says(page, "Done: 12 texts answered, refusals sent again")


def test_a_server_that_goes_away_ends_the_run_and_keeps_the_answers(visit: Visit, start: Start, tmp_path: Path) -> None:
    server = start()
    page = visit(address(server.url, "file"), refused=True)
    page.route("**/v1/classify", lambda route: route.abort() if "bad" in (route.request.post_data or "") else route.continue_())
    # Its waits for another try are not waited out. While it waits for an answer no time passes, which would be too long.
    asked: set[Request] = set()

    def begun(request: Request) -> None:
        asked.add(request)

    def ended(request: Request) -> None:
        asked.discard(request)

    page.on("request", begun)
    page.on("requestfinished", ended)
    page.on("requestfailed", ended)
    page.clock.install()
    classify(page, csv_file(tmp_path / "x.csv", ["good"] * 6 + ["bad"] * 6))
    while "Ended" not in page.locator(".file-progress").inner_text():
        until(page, lambda: not asked, "every request has ended")
        page.clock.run_for(1_000)

    says(page, "Ended early: 6 texts answered, 4 not answered")
    says(page, "cannot be reached")
    # No row of the file is missing between two others.
    kept = page.get_by_role("region", name="answers to the file").locator("tbody tr")
    expect(kept).to_have_count(10)
    expect(kept.last).to_contain_text("CANCELLED: the run ended before there was an answer")
