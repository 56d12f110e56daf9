"""A file on the page: read in pieces, classified with a bound on what runs and is kept, sorted, filtered, and saved as CSV."""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from sentiment.client import Client
from tests.api_grpc.gate import FixedCost, Gate, set_cost
from tests.conftest import RunningServer
from tests.viewer.browser import address
from tests.viewer.conftest import Visit
from tests.viewer.reading import ask, show, until

pytestmark = pytest.mark.needs_tool("chromium")

Start = Callable[..., RunningServer]
TEXTS = ["good", "a great film", "bad", "awful, the film", 'a "good" film', "film\nand good", "=1+1 good", "  "]
# The page's own modules over a file, whose bytes come in pieces of some sizes.
READ = """async ([name, content, sizes]) => {
  const {fileHead, fileTexts} = await import("/viewer/file_rows.js");
  const bytes = new TextEncoder().encode(content);
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
  const head = await fileHead(file);
  const found = [];
  for await (const {text = null} of fileTexts(file, head, () => {})) found.push(text);
  return {columns: head.columns, column: head.column, texts: found};
}"""


@pytest.fixture(scope="module")
def server(settings: Any) -> Any:
    running = RunningServer(settings)
    yield running
    running.stop()


def csv_file(path: Path, texts: list[str], delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "Review"])
        writer.writerows(enumerate(texts))
    return path


def classify(page: Page, file: Path) -> None:
    """Choose a file and classify it."""
    page.get_by_label("A file of texts").set_input_files(file)
    page.get_by_role("button", name="Classify").click()


def says(page: Page, text: str) -> None:
    expect(page.locator(".file-progress")).to_contain_text(text)


def saved(page: Page, folder: Path) -> list[dict[str, str]]:
    """The rows that the button saves."""
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save CSV").click()
    path = folder / saving.value.suggested_filename
    saving.value.save_as(path)
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
def test_any_csv_of_pythons_writer_is_read_as_it_was_written_in_pieces_of_any_size(
    visit: Visit, server: RunningServer, tmp_path: Path, delimiter: str
) -> None:
    page = visit(server.url)
    seed = random.randrange(10**6)
    print("seed", seed)
    draw = random.Random(seed)
    texts = ["".join(draw.choices("ab ,;\t\"\n\r\u00e9\U0001f600'", k=draw.randint(1, 12))) for _ in range(60)]
    content = csv_file(tmp_path / "x.csv", texts, delimiter).read_bytes().decode()

    for sizes in ([1], [3, 5], [10**6]):
        found = page.evaluate(READ, ["x.csv", content, sizes])

        assert (found["columns"], found["column"]) == (["id", "Review"], 1)
        # Outside of quotes a line ends with CR LF.
        assert found["texts"] == [text if text.strip() else None for text in texts]


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("x.txt", "good\r\n\n  bad \nfilm", ["good", "bad", "film"]),
        ("x.jsonl", '{"n": 1, "text": "good"}\n\n{"text": 3}\nno\n{"text": "bad"}', ["good", None, None, "bad"]),
        ("x.tsv", "text\tn\ngood\t1\nbad\t2\n", ["good", "bad"]),
        ("x.tsv", "text\nGood, but long\n", ["Good, but long"]),
        ("x.tsv", 'n\ttext\r\n1\tgood\r\n2\t"open quote\r\n\r\n3\t"Nice" film\n4', ["good", '"open quote', '"Nice" film', None]),
    ],
    ids=["txt", "jsonl", "tsv", "tsv with a comma", "tsv with quotes"],
)
def test_lines_and_objects_are_read(visit: Visit, server: RunningServer, name: str, content: str, texts: list[str | None]) -> None:
    assert visit(server.url).evaluate(READ, [name, content, [7]])["texts"] == texts


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.pdf", b"good", "must end in .txt, .csv, .tsv or .jsonl"),
        ("x.txt", b"\xff\xfe\x00", "not UTF-8"),
        ("x.csv", b" \n", "no text"),
        ("x.jsonl", b"[1]\n", "no JSON object with a text"),
    ],
)
def test_another_file_is_refused_in_words(visit: Visit, server: RunningServer, name: str, content: bytes, said: str) -> None:
    page = visit(address(server.url, "file"))

    page.get_by_label("A file of texts").set_input_files({"name": name, "mimeType": "", "buffer": content})

    expect(page.get_by_role("alert")).to_contain_text(said)
    expect(page.get_by_role("button", name="Classify")).to_be_hidden()


def test_a_quote_that_is_not_closed_ends_the_run_and_not_the_memory(visit: Visit, server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "open.csv"
    file.write_text('text\ngood\n"' + "x" * (5 * 2**20))
    page = visit(address(server.url, "file"))

    classify(page, file)

    says(page, "Ended early: 1 texts answered. A record has more than 4,194,304 characters. Is a quote not closed?")


def test_a_column_is_classified_as_by_the_python_client_and_saved_without_formulas(
    visit: Visit, server: RunningServer, tmp_path: Path
) -> None:
    page = visit(address(server.url, "file"))
    file = csv_file(tmp_path / "reviews.csv", TEXTS)
    page.get_by_label("A file of texts").set_input_files(file)
    expect(page.get_by_label("Column with the text")).to_have_value("1")

    page.get_by_role("button", name="Classify").click()
    says(page, "Done: 7 texts answered, 1 not answered.")

    found = saved(page, tmp_path)
    assert [row["text"] for row in found] == [*TEXTS[:6], "'" + TEXTS[6], ""]
    assert [row["row"] for row in found] == [str(place + 2) for place in range(8)]
    assert found[7]["error"] == "The column is empty."
    with server.client() as client:
        for row, text in zip(found, TEXTS[:7], strict=False):
            answer = client.classify(text)
            assert (row["label"], row["abstain"], row["tokens"]) == (answer.label, str(answer.abstain).lower(), str(answer.tokens))
            assert float(row["score positive"]) == pytest.approx(answer.scores["positive"], abs=1e-6)


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t=", " =", "\r", "\uff1d"])
def test_no_cell_is_a_formula(visit: Visit, server: RunningServer, sign: str) -> None:
    cells = visit(server.url).evaluate(
        """async (sign) => (await import("/viewer/file_rows.js")).csvCell(`${sign}HYPERLINK("x",1)`)""", sign
    )

    assert cells.startswith("\"'")
    assert cells.count('"') % 2 == 0


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
    assert {len(row["model digest"]) for row in rows} == {64}


def test_undecided_answers_can_be_looked_at_alone(visit: Visit, english: RunningServer, reader: Client, tmp_path: Path) -> None:
    texts = ["a wonderful film", "it was a disaster", "The hotel is ten minutes from the station."]
    wanted = [text for text in texts if reader.classify(text).abstain]
    page = visit(address(english.url, "file"))
    file = tmp_path / "x.txt"
    file.write_text("\n".join(texts))

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
    page.get_by_role("button", name="Classify").click()

    says(page, "Done: 2 texts answered.")


def test_few_texts_are_in_flight_and_cancelling_withdraws_them(
    visit: Visit, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    page = visit(address(server.url, "file"))
    gate = Gate(server, monkeypatch)
    open_calls = lambda: server.app._grpc.calls._open  # noqa: E731
    try:
        classify(page, csv_file(tmp_path / "x.csv", ["good"] * 500))
        until(page, lambda: open_calls() == 4, "four texts are in flight")
        page.wait_for_timeout(300)
        assert open_calls() == 4
        page.get_by_role("button", name="Cancel").click()
        says(page, "Cancelled: 0 texts answered.")
        until(page, lambda: open_calls() == 0, "the calls are withdrawn")
    finally:
        gate.open()
    expect(page.get_by_role("button", name="Classify")).to_be_enabled()


def test_refused_texts_are_sent_again_when_the_server_says(visit: Visit, server: RunningServer, tmp_path: Path) -> None:
    page = visit(address(server.url, "file"), refused=True)
    refused: list[float] = []
    sent: list[float] = []
    body = json.dumps({"error": {"status": "RESOURCE_EXHAUSTED", "code": 8, "message": "the queue is full"}})

    def full(route: Route) -> None:
        now = page.evaluate("() => performance.now()")
        sent.append(now)
        if len(refused) < 4:
            refused.append(now)
            route.fulfill(status=429, headers={"Retry-After": "1", "Content-Type": "application/json"}, body=body)
        else:
            route.continue_()

    page.route("**/v1/classify", full)
    classify(page, csv_file(tmp_path / "x.csv", ["good", "bad"] * 10))

    says(page, "Done: 20 texts answered, refusals sent again: 4.")
    assert len(sent) == 24
    assert sent[4] - refused[0] >= 900


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
    # Its waits for another try are not waited out.
    page.clock.install()
    classify(page, csv_file(tmp_path / "x.csv", ["good"] * 6 + ["bad"] * 6))
    for _ in range(40):
        page.clock.run_for(10_000)
        if "Ended" in page.locator(".file-progress").inner_text():
            break

    says(page, "Ended early: 6 texts answered")
    says(page, "cannot be reached")
    kept = page.get_by_role("region", name="answers to the file").locator("tbody tr")
    expect(kept).to_have_count(6)
