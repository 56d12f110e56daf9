"""``sentiment watch``: the server's own numbers of a file or a journal, and when they changed."""

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow
import pytest
from pyarrow import parquet

from sentiment.cli.main import main
from sentiment.observability.journal import line_of
from sentiment.observability.journal_files import by_last_write, files_of
from sentiment_tools.reports import svg_plots
from sentiment_tools.watch import journal, report
from sentiment_tools.watch.counts import OF_ANSWERS, WINDOWS_MAX, Seen, Told, Watch
from sentiment_tools.watch.reference import without_reference
from tests.core.grpc.gate import Start
from tests.tiny import make_bundle, read_manifest, write_manifest

Captured = pytest.CaptureFixture[str]
DRIFT = ("drift", "drift_threshold")
# No label, key or name has it.
SECRET = "zanzibar"
USUAL = ("a good film", "awful", "great and w9 film", "the bad w-30 film", "w20 film")
OTHERS = (f"a {SECRET} film {SECRET} {SECRET}", "film " * 40, "w1")


def texts(count: int, kinds: Sequence[str] = USUAL) -> list[str]:
    rng = random.Random(count)
    return [rng.choice(kinds) for _ in range(count)]


def written(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def watch(bundles: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the command with the tiny bundle; returns what it writes as JSON."""

    def run(*arguments: str | Path, code: int = 0, bundles: Path = bundles) -> dict[str, Any]:
        output = tmp_path / "watch.json"
        assert main(["watch", "--bundles", str(bundles), "--json", str(output), *map(str, arguments)]) == code
        return json.loads(output.read_text())

    return run


def test_a_file_and_a_journal_give_the_numbers_of_the_servers_metrics(start: Start, watch: Any, tmp_path: Path) -> None:
    some = [*texts(1500), *texts(100, OTHERS)]
    server = start(journal=str(tmp_path / "journal"))
    with server.client() as client:
        answers = list(client.classify_all(some))
        for number, text in enumerate(("a good film", "awful", "w1")):
            client.classify(text, request_id=f"own-{number}")
            client.feedback("positive", request_id=f"own-{number}")
        metric = lambda name, **labels: server.metric(f"sentiment_{name}", model="tiny/1", **labels)  # noqa: E731
        wanted = {
            "labels": {
                label: sum(
                    metric("predictions_total", label=label, abstained=abstained, priority=priority)
                    for abstained in ("true", "false")
                    for priority in ("interactive", "bulk")
                )
                for label in ("negative", "positive")
            },
            "abstained": metric("score_count", abstained="true"),
            "tokens": metric("text_tokens_sum"),
            "truncated": metric("truncated_texts_total"),
            **{name: metric(name) for name in ("expected_accuracy", "expected_accuracy_low", "expected_accuracy_high")},
            "expected_accuracy_texts": metric("expected_accuracy_texts"),
            "measured_accuracy": metric("measured_accuracy"),
            "measured_accuracy_texts": metric("measured_accuracy_texts"),
        }
        of_texts = {"unknown_tokens": metric("unknown_tokens_total"), "foreign": metric("foreign_texts_total")}
        drift = {name: {one: metric(name, signal=one) for one in ("label", "abstained", "score", "tokens")} for name in DRIFT}
        of_texts_drift = {name: {one: metric(name, signal=one) for one in ("unknown", "fragments")} for name in DRIFT}
    server.stop()
    assert wanted["measured_accuracy"] == 0.5
    assert all(value > 0 for value in (*of_texts.values(), wanted["truncated"], wanted["abstained"]))
    assert len(answers) == 1600

    journal = watch("--input", tmp_path / "journal")["whole"]
    own = [("a good film", "positive"), ("awful", "positive"), ("w1", "positive")]
    labelled = written(tmp_path / "texts.jsonl", [json.dumps({"text": text, "truth": ""}) for text in some])
    with labelled.open("a") as stream:
        stream.writelines(json.dumps({"text": text, "truth": label}) + "\n" for text, label in own)
    file = watch("--input", labelled, "--labels", "truth", "--model", "tiny")["whole"]

    # Probabilities are rounded in a journal.
    about = lambda value: pytest.approx(value, abs=1e-5)  # noqa: E731
    assert {name: file[name] for name in wanted} == {name: about(value) for name, value in wanted.items()}
    assert {name: journal[name] for name in wanted} == {name: about(value) for name, value in wanted.items()}
    assert {name: file[name] for name in of_texts} == of_texts
    assert {name: journal[name] for name in of_texts} == dict.fromkeys(of_texts)
    assert {name: file[name] for name in DRIFT} == {name: about(drift[name] | of_texts_drift[name]) for name in DRIFT}
    assert journal["drift"] == about(drift["drift"])
    # Of four signals instead of six.
    assert all(0.9 * most < journal["drift_threshold"][one] < most for one, most in drift["drift_threshold"].items())


def test_a_change_is_seen_in_its_window_and_fails_if_asked_to(watch: Any, tmp_path: Path, capsys: Captured) -> None:
    usual, same = (written(tmp_path / name, texts(count)) for name, count in (("usual.txt", 4000), ("same.txt", 3001)))
    changed = written(tmp_path / "changed.txt", [*texts(2000), *texts(2400, OTHERS)])
    asked = ("--reference", usual, "--model", "tiny", "--window", "1000", "--fail-on-drift")

    assert watch("--input", same, *asked)["whole"]["drifted"] == []
    assert "No signal drifted: none has a PSI over 0.25 and above chance." in capsys.readouterr().out
    found = watch("--input", changed, *asked, code=4)

    assert "Drifted: " in (shown := capsys.readouterr().out)
    assert "First window with drift: texts 2,001 to 3,000; " in shown
    # What is left is less than half a window.
    assert [window["texts"] for window in found["windows"]] == [1000, 1000, 1000, 1400]
    assert [bool(window["drifted"]) for window in found["windows"]] == [False, False, True, True]
    assert [window["expected_accuracy_withheld"] for window in found["windows"]] == [None, None, "drift", "drift"]
    assert [window["expected_accuracy"] is None for window in found["windows"]] == [False, False, True, True]
    assert set(found["windows"][2]["drift"]) == {"label", "abstained", "score", "tokens", "unknown", "fragments"}


@pytest.mark.filterwarnings("error:constrained_layout")
def test_texts_of_two_kinds_are_near_a_mixture_of_their_references(watch: Any, bundles: Path, tmp_path: Path, capsys: Captured) -> None:
    kinds = {"usual": USUAL, "others": OTHERS}
    files = {name: written(tmp_path / f"{name}.txt", texts(1500, of)) for name, of in kinds.items()}
    counts = {name: watch("--input", file, "--model", "tiny")["whole"]["signal_texts"] for name, file in files.items()}
    bundle = make_bundle(tmp_path / "two")
    write_manifest(bundle, read_manifest(bundle) | {"references": {name: reference_of(of) for name, of in counts.items()}})
    mixed = written(tmp_path / "mixed.txt", [*texts(1000), *texts(1000, OTHERS)])
    asked = ("--model", "tiny", "--window", "1000", "--html", tmp_path / "watch.html")

    capsys.readouterr()
    found = watch("--input", mixed, *asked, bundles=tmp_path / "two")

    assert found["references"] == counts
    assert found["whole"]["nearest"] == {"usual": pytest.approx(0.5, abs=0.05), "others": pytest.approx(0.5, abs=0.05)}
    assert sum(found["whole"]["nearest"].values()) == pytest.approx(1)
    assert [window["nearest"] for window in found["windows"]] == [{"usual": 1, "others": 0}, {"usual": 0, "others": 1}]
    assert found["whole"]["drifted"] == []
    shown = capsys.readouterr().out
    assert re.search(r"^Nearest to: usual \d\d %, others \d\d %\.$", shown, re.MULTILINE)
    page = (tmp_path / "watch.html").read_text()
    assert "reference usual" in page and "reference others" in page


def reference_of(counts: dict[str, dict[str, int]]) -> dict[str, object]:
    """A reference for a manifest, of the texts by signal and bin that the command reports."""
    numbers = {
        name: {"edges": [float(edge) for edge in bins if edge != "+Inf"], "counts": list(bins.values())}
        for name, bins in counts.items()
        if name not in ("label", "abstained")
    }
    label, abstained = counts["label"], counts["abstained"]
    return {"texts": sum(label.values()), "label": label, "abstained": abstained["true"], **numbers}


def test_yesterdays_journal_is_a_reference_for_todays(start: Start, watch: Any, tmp_path: Path) -> None:
    for day, kinds in (("yesterday", USUAL), ("today", USUAL + OTHERS)):
        server = start(journal=str(tmp_path / day), journal_texts=True)
        with server.client() as client:
            list(client.classify_all(texts(1200, kinds)))
        server.stop()
    usual = written(tmp_path / "usual.txt", texts(1200))

    by_journal, by_texts = (watch("--input", tmp_path / "today", "--reference", path) for path in (tmp_path / "yesterday", usual))

    assert by_journal["whole"]["drifted"] == by_texts["whole"]["drifted"] != []
    assert by_journal["whole"]["drift"] == by_texts["whole"]["drift"]
    assert "not known: unknown tokens, fragments and texts in another language" in by_journal["notes"]
    assert watch("--input", usual, "--reference", tmp_path / "yesterday", "--model", "tiny")["whole"]["drifted"] == []


def answer(at: float, text: str = "", **changes: object) -> bytes:
    """A line, ``at`` seconds after the start of a minute."""
    row = {
        "journal": "answer",
        "time": f"2026-11-26T02:14:{at:06.3f}Z",
        "model": "tiny/1",
        "digest": "d",
        "request_id": "id",
        "item": 0,
        "priority": "bulk",
        "tokens": 5,
        "truncated": False,
        "label": "positive",
        "abstain": False,
        "scores": {"negative": 0.1, "positive": 0.9},
    }
    return line_of(row | changes)


def told(at: float, label: str, **changes: object) -> bytes:
    row = {"journal": "feedback", "time": f"2026-11-26T02:14:{at:06.3f}Z", "model": "tiny/1", "digest": "d"}
    return line_of(row | {"label": label, "predicted": "positive", "abstain": False} | changes)


def test_the_files_of_several_processes_are_read_in_the_order_of_time(watch: Any, tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    files = {"000000Z-executor-7": range(0, 42, 2), "050000Z-front-end-0-8": range(1, 40, 2), "20.000000Z-executor-9": range(41, 60)}
    for name, seconds in files.items():
        begun = name if "." in name else f"00.{name}"
        lines = [answer(at, tokens=at) for at in seconds for _ in range(100)]
        (folder / f"20261126T0214{begun}.jsonl").write_bytes(b"".join(lines))
    assert len(files_of(folder)) == 3

    found = watch("--input", folder, "--window", "1000")

    assert [window["since"] for window in found["windows"]] == [f"2026-11-26T02:14:{at:02}.000Z" for at in range(0, 60, 10)]
    assert [window["tokens"] for window in found["windows"]] == [100 * sum(range(at, at + 10)) for at in range(0, 60, 10)]


def test_of_a_journal_the_model_that_answered_last_counts_and_the_last_label_of_an_answer(
    watch: Any, tmp_path: Path, capsys: Captured
) -> None:
    other = answer(0, model="tiny/2", digest="e")
    labels = [
        told(3, "negative", request_id="a", item=0),
        told(4, "positive", request_id="a", item=0),
        told(5, "negative", request_id="a", item=1),
        told(5, "positive", request_id="a", item=1, caller="shop"),
        told(6, "positive", request_id="a", item=1, caller="web"),
        told(6, "negative", request_id="a", item=1, caller="web"),
        told(5, "positive", text="x"),
        told(5, "positive", text="x"),
        told(6, "negative"),
        told(6, "negative"),
        told(7, "negative", model="tiny/2", digest="e"),
    ]
    file = tmp_path / "all.jsonl"
    file.write_bytes(other * 3 + answer(1) * 7 + answer(2)[:40] + b"\n" + b"".join(labels) + answer(8, model="tiny/2", digest="e")[:90])

    found = watch("--input", file)
    assert (found["whole"]["texts"], found["whole"]["measured_accuracy_texts"]) == (7, 7)
    assert found["whole"]["measured_accuracy"] == 3 / 7
    assert {"left out: 4 lines of other models or versions", "left out: 2 torn lines"} < set(found["notes"])
    assert any("here has the digest" in note for note in found["notes"])
    assert found["references"] == {} and "Drift is not reported" in capsys.readouterr().out

    assert watch("--input", file, "--model", "tiny/2")["whole"]["texts"] == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": [0.1, 0.9]}, "TypeError"),
        ({"scores": {"negative": 0.1, "positive": "much"}}, "a score must be a number from 0 to 1"),
        ({"scores": {"negative": 0.1, "positive": 1e9}}, "a score must be a number from 0 to 1"),
        ({"tokens": "many"}, "tokens must be a whole number of at least 0"),
    ],
)
def test_a_malformed_line_of_a_journal_is_an_error_and_not_a_traceback(
    changes: dict[str, Any], message: str, tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "journal.jsonl"

    file.write_bytes(answer(0) + answer(1, **changes) + answer(2))
    assert main(["watch", "--input", str(file)]) == 1

    errors = capsys.readouterr().err
    assert f"{file}:2: not a line of a journal: " in errors and message in errors


@pytest.mark.parametrize("changes", [{"scores": [0.1, 0.9]}, {"scores": None}, {"model": 3}, {"digest": None}, {"model": {"model": "a"}}])
def test_a_malformed_line_names_no_model(changes: dict[str, Any], tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_bytes(answer(0, **changes))

    assert main(["watch", "--input", str(file)]) == 1
    assert "the journal has no answer" in capsys.readouterr().err


def test_lines_that_are_nested_too_deeply_are_torn_and_any_request_id_is_one(watch: Any, tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_bytes(answer(0) + b"[" * 200_000 + b"\n" + told(1, "positive", request_id=["a"], item={}))

    found = watch("--input", file)

    assert found["whole"]["measured_accuracy_texts"] == 1
    assert "left out: 1 torn lines" in found["notes"]


def test_a_damaged_bundle_of_a_journal_is_said_with_the_damage(watch: Any, tmp_path: Path) -> None:
    with (make_bundle(tmp_path / "damaged") / "fp32.onnx").open("ab") as graph:
        graph.write(b"x")
    (tmp_path / "journal.jsonl").write_bytes(answer(0))

    found = watch("--input", tmp_path / "journal.jsonl", bundles=tmp_path / "damaged")

    (note,) = (note for note in found["notes"] if "tiny/1" in note)
    assert note.startswith("the bundle tiny/1 cannot be used (") and "fp32.onnx: has " in note


# A text, and the right label of it if there is one.
LABELLED = [("a good film", 1), ("awful", 1), ("great film", None), ("bad film", None), ("great and great film", 1)]


def as_json_lines(path: Path) -> Path:
    rows: list[dict[str, object]] = [{"text": text, "label": label} for text, label in LABELLED]
    # Without the key.
    del rows[3]["label"]
    return written(path.with_suffix(".jsonl"), [json.dumps(row) for row in rows])


def as_parquet(path: Path, labels: Sequence[object]) -> Path:
    path = path.with_suffix(".parquet")
    parquet.write_table(pyarrow.table({"text": [text for text, _ in LABELLED], "label": pyarrow.array(labels)}), path)
    return path


@pytest.mark.parametrize(
    "write",
    [
        as_json_lines,
        lambda path: as_parquet(path, [label for _, label in LABELLED]),
        # As pandas writes them.
        lambda path: as_parquet(path, [1.0, 1.0, math.nan, None, 1.0]),
        lambda path: as_parquet(path, ["positive", "positive", None, "", "positive"]),
    ],
    ids=["jsonl", "integers", "floats", "strings"],
)
def test_labels_are_names_or_numbers_and_texts_without_one_are_not_labelled(
    write: Callable[[Path], Path], watch: Any, tmp_path: Path
) -> None:
    found = watch("--input", write(tmp_path / "texts"), "--labels", "label", "--model", "tiny")["whole"]

    assert (found["texts"], found["measured_accuracy_texts"]) == (5, 3)
    assert found["measured_accuracy"] == pytest.approx(2 / 3)


def test_a_column_without_labels_is_said(watch: Any, tmp_path: Path) -> None:
    found = watch("--input", as_json_lines(tmp_path / "texts"), "--labels", "lable", "--model", "tiny")

    assert any("has a label (--labels lable)" in note for note in found["notes"])


def test_the_second_text_of_a_pair_is_read(watch: Any, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "pairs", pairs=True)
    file = written(tmp_path / "texts.tsv", ["text\tother", "good film\tbad", "good\ta bad film"])

    def tokens(*more: str) -> int:
        return watch("--input", file, "--model", "tiny", *more, bundles=bundle.parents[1])["whole"]["tokens"]

    # Those of "bad" and "a bad film", with a separator each.
    assert tokens("--pair", "other") - tokens() == 2 + 4


def test_no_text_is_in_what_it_writes(start: Start, watch: Any, tmp_path: Path, capsys: Captured) -> None:
    server = start(journal=str(tmp_path / "journal"), journal_texts=True)
    with server.client() as client:
        list(client.classify_all([*texts(30), f"good {SECRET}"]))
        client.feedback("positive", text=f"good {SECRET}")
    server.stop()
    assert any(SECRET in path.read_text() for path in files_of(tmp_path / "journal"))
    labelled = written(tmp_path / "texts.tsv", ["text\tlabel", *(f"{text}\t1" for text in [*texts(300), *OTHERS])])

    for arguments in (["--input", tmp_path / "journal"], ["--input", labelled, "--model", "tiny", "--labels", "label"]):
        found = watch(*arguments, "--html", tmp_path / "watch.html")
        page = (tmp_path / "watch.html").read_text()

        shown = capsys.readouterr()
        assert found["whole"]["measured_accuracy_texts"] > 0
        assert SECRET not in page + json.dumps(found) + shown.out + shown.err


def test_the_report_is_a_page_with_plots_that_needs_no_network(watch: Any, tmp_path: Path) -> None:
    usual = written(tmp_path / "usual.txt", texts(1500))
    rows = [f"{text}\t{number % 2}" for number, text in enumerate([*texts(1000), *texts(1000, OTHERS)])]
    file = written(tmp_path / "file.tsv", ["text\tlabel", *rows])

    watch("--input", file, "--reference", usual, "--labels", "label", "--model", "tiny", "--window", "1000", "--html", tmp_path / "a.html")

    page = (tmp_path / "a.html").read_text()
    body = ElementTree.fromstring(page[page.index("<body>") : page.index("</html>")])
    plots = [plot.get("aria-label") for plot in body.iter() if plot.tag.endswith("svg")]
    assert plots == [
        *("drift over the texts", "accuracy over the texts", "answers over the texts"),
        *(f"distribution of {signal}" for signal in ("score", "tokens", "unknown", "fragments")),
    ]
    assert all(name in "".join(body.itertext()) for name in ("measured", "expected", "reference", "these texts", "large"))
    assert "http:" not in page.replace("http://www.w3.org/", "") and "https:" not in page and "<script" not in page


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--input", "plain.txt", "--fail-on-drift"], 2, "--fail-on-drift needs a reference"),
        (["--input", "plain.txt", "--labels", "label"], 2, "has no other column"),
        (["--input", "plain.txt", "--pair", "other"], 2, "--pair other: plain.txt has no other column"),
        (["--input", "journal.jsonl", "--pair", "other"], 2, "--pair other: no file of texts is read"),
        (
            ["--input", "bad.tsv", "--labels", "label"],
            1,
            "bad.tsv: --labels label: line 3: the label must be 0 to 1 or one of negative, positive",
        ),
        (
            ["--input", "both.tsv", "--labels", "label"],
            1,
            "both.tsv: --labels label: line 3: the label is a number, but line 2 has a name; use names or numbers throughout",
        ),
        (
            ["--input", "bad.tsv", "--labels", "truth"],
            1,
            "no column 'truth'; the header has text, label (choose with --labels, or --no-header if it is data)",
        ),
        (
            ["--input", "odd.jsonl", "--labels", "label", "--model", "tiny"],
            1,
            "odd.jsonl: --labels label: line 2: 'label' must be a string or a whole number, got a boolean",
        ),
        (["--input", "journal.jsonl", "--labels", "label"], 2, "--labels label: journal.jsonl is a journal"),
        (["--input", "journal.jsonl", "--truncation", "head"], 2, "--truncation head: no file of texts is read"),
        (
            ["--input", "journal.jsonl", "--truncation", "head", "--reference", "journal.jsonl"],
            2,
            "--truncation head: no file of texts is read",
        ),
        (["--input", "blank.txt"], 1, "has no answered text; left out: 2 texts without an answer (INVALID_ARGUMENT)"),
        (["--input", "plain.txt", "--reference", "blank.txt"], 1, "blank.txt: has no answered text"),
        (["--input", "plain.txt", "--reference", "journal.jsonl"], 2, "not comparable"),
        (["--input", "broken.jsonl"], 1, "broken.jsonl:2: not a line of a journal: KeyError: 'tokens'"),
        (["--input", "empty"], 1, "the folder has no files of a journal"),
        (["--input", "nowhere.txt"], 1, "cannot be read"),
        (["--input", "journal.jsonl", "--model", "nosuch"], 1, "the journal has no answer of nosuch"),
    ],
)
def test_what_cannot_be_watched_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = make_bundle(tmp_path / "bundles")
    manifest = read_manifest(bundle)
    del manifest["references"]
    write_manifest(bundle, manifest)
    written(tmp_path / "plain.txt", texts(10))
    written(tmp_path / "bad.tsv", ["text\tlabel", "good\tpositive", "good\t2"])
    written(tmp_path / "both.tsv", ["text\tlabel", "good\tpositive", "good\t1"])
    written(tmp_path / "odd.jsonl", ['{"text": "good", "label": 1}', '{"text": "good", "label": true}'])
    written(tmp_path / "blank.txt", ["", " "])
    (tmp_path / "journal.jsonl").write_bytes(answer(0))
    (tmp_path / "broken.jsonl").write_bytes(answer(0) + answer(0).replace(b"tokens", b"taken"))
    (tmp_path / "empty").mkdir()
    model = [] if "--model" in arguments or arguments[1].endswith(".jsonl") else ["--model", "tiny"]

    assert main(["watch", "--bundles", "bundles", *model, "--html", "watch.html", *arguments]) == code

    out, errors = capsys.readouterr()
    assert out == "" and message in errors
    assert not (tmp_path / "watch.html").exists()


def test_the_times_in_a_plot_are_at_the_starts_of_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(without_reference(("negative", "positive"), OF_ANSWERS), 2)
    for minute in range(6):
        watch.add(Seen("positive", False, 0.75, 3, False, at=f"2026-11-26T02:1{minute}:00Z"))
    watch.end()
    axes: list[svg_plots.Axis] = []

    def lines(_series: object, x: svg_plots.Axis, *_rest: object) -> str:
        axes.append(x)
        return ""

    monkeypatch.setattr(svg_plots, "lines", lines)
    report.html_of(report.Found({}, watch, OF_ANSWERS, math.nan, []))

    assert axes[0].label == "start of the window (UTC)"
    assert axes[0].ticks == [(0, "11-26\n02:10"), (2, "11-26\n02:12"), (4, "11-26\n02:14")]


def test_a_page_has_any_number_of_labels() -> None:
    labels = tuple(f"emotion{number}" for number in range(28))
    watch = Watch(without_reference(labels, OF_ANSWERS), 2)
    for label in labels[:6]:
        watch.add(Seen(label, False, 0.75, 3, False))
    watch.end()

    page = report.html_of(report.Found({}, watch, OF_ANSWERS, math.nan, []))

    assert all(label in page for label in labels)


def test_a_journal_of_any_length_has_a_bounded_number_of_windows_and_loses_nothing() -> None:
    watch = Watch(without_reference(("negative", "positive"), ("label", "abstained", "score", "tokens")), 2)
    count = 4 * WINDOWS_MAX + 1

    for number in range(count):
        watch.add(Told(number % 3, "positive", right=number >= count - 2, abstained=False))
        watch.add(Seen("positive", number % 2 == 0, 0.75, number % 9, False, at=f"{number:06}"))
        assert len(watch.windows) < WINDOWS_MAX
    watch.end()

    assert watch.whole.texts == sum(window.texts for window in watch.windows) == count
    assert [window.since for window in watch.windows[:2]] == ["000000", f"{watch.window_texts:06}"]
    assert watch.whole.bins[0] == [0, count] and watch.whole.bins[1] == [count // 2, count // 2 + 1]
    assert watch.whole.tokens == sum(number % 9 for number in range(count))
    assert (watch.whole.decided, watch.whole.probability) == (count // 2, 0.75 * (count // 2))
    # Of each answer, the last label.
    assert (watch.whole.labelled, watch.whole.right) == (3, 2)


def test_lines_are_found_from_the_last_to_the_first_wherever_blocks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(200):
        monkeypatch.setattr(journal, "BLOCK_BYTES", rng.randint(1, 80))
        lines = [b"%d" % number + rng.choice((b"", b"yes", b"yesyes")) + b"." * rng.randint(0, 30) + b"\n" for number in range(20)]
        torn = rng.choice((b"", b"yes"))
        names = [f"20260101T00000{number}.000000Z-server-1.jsonl" for number in range(2)]
        for name, part in zip(names, (lines[:10], lines[10:]), strict=True):
            (tmp_path / name).write_bytes(b"".join(part) + torn)

        assert [line for _, path in by_last_write(tmp_path) for line in journal.find(path, b"yes")] == [
            line for line in reversed(lines) if b"yes" in line
        ]
