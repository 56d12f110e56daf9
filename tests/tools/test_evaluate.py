"""``sentiment evaluate``: how good the answers to labelled texts are, and what to do about it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentiment.cli.main import main
from sentiment_tools.watch.evaluation import ERRORS_MAX, Evaluation, Judged, advice, json_of
from tests.tiny import THREE, make_bundle

Captured = pytest.CaptureFixture[str]
# The tiny model's labels of these are right.
RIGHT = {"a good film": "positive", "awful": "negative", "the film": "neutral"}


def judged(label: str, *scores: float, abstained: bool = False, text: str = "a text", place: str = "line 1") -> Judged:
    return Judged(label, dict(zip(THREE, scores, strict=True)), abstained, text, place)


def of(*texts: Judged) -> Evaluation:
    found = Evaluation(THREE)
    for one in texts:
        found.add(one)
    return found


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("three")
    make_bundle(root, three=True)
    return root


@pytest.fixture
def evaluate(bundles: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the command; returns what it writes as JSON."""

    def run(path: Path, *arguments: str) -> dict[str, Any]:
        output = tmp_path / "found.json"
        assert main(["evaluate", str(path), "--model", "tiny", "--bundles", str(bundles), "--json", str(output), *arguments]) == 0
        found: dict[str, Any] = json.loads(output.read_text())
        return found

    return run


def written(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{label}\t{text}\n" for label, text in [("label", "text"), *rows]))
    return path


def test_an_undecided_answer_is_counted_as_such_before_its_label_is_looked_at() -> None:
    found = of(judged("neutral", 0.1, 0.2, 0.7), judged("neutral", 0.3, 0.3, 0.4, abstained=True), judged("negative", 0.6, 0.2, 0.2))

    assert found.confusion("neutral") == {"negative": 0, "positive": 0, "neutral": 1, None: 1}
    assert (found.decided().right, found.decided().texts) == (2, 2)
    assert (found.everything().right, found.everything().texts) == (3, 3)


def test_a_file_of_two_labels_is_judged_by_the_likelier_of_them_too() -> None:
    found = of(judged("positive", 0.1, 0.3, 0.6), judged("negative", 0.9, 0.05, 0.05), judged("negative", 0.2, 0.3, 0.5))

    assert found.present == ("negative", "positive")
    assert found.everything().mean == pytest.approx(1 / 3)
    assert found.among_counting().mean == pytest.approx(2 / 3)
    assert any("no text labelled neutral" in line for line in advice(found))
    # An answer of a label that the file lacks is not an error of its two.
    assert found.errors() == []


def test_in_a_file_of_one_label_every_label_of_the_model_counts() -> None:
    found = of(judged("positive", 0.1, 0.3, 0.6), judged("positive", 0.1, 0.8, 0.1))

    shown = json_of(found, {}, [])

    assert shown["among_labels_of_file"] == shown["all"]
    assert [error["answered"] for error in shown["errors"]] == ["neutral"]


def test_a_label_named_undecided_is_distinguished_from_abstentions() -> None:
    found = Evaluation(("fine", "undecided"))
    for abstained in (False, False, True):
        found.add(Judged("fine", {"fine": 0.2, "undecided": 0.8}, abstained, "a text", "line 1"))

    shown = json_of(found, {}, [])

    assert shown["confusion"] == {"fine": {"fine": 0, "undecided": 2}}
    assert shown["undecided"] == {"fine": 1}


def test_macro_f1_is_the_mean_over_the_labels_of_the_file() -> None:
    found = of(judged("positive", 0.1, 0.8, 0.1), judged("negative", 0.1, 0.8, 0.1), judged("negative", 0.8, 0.1, 0.1))

    assert found.macro_f1() == pytest.approx(2 / 3)


def test_the_surest_errors_are_kept_and_those_that_abstain_are_not() -> None:
    texts = [judged("neutral", 0.5 + number / 100, 0.1, 0.1, place=f"line {number}") for number in range(2 * ERRORS_MAX)]

    errors = of(*texts, judged("negative", 0, 0.99, 0.01, abstained=True), judged("positive", 0.1, 0.8, 0.1)).errors()

    assert [wrong.place for wrong in errors] == [f"line {number}" for number in range(2 * ERRORS_MAX - 1, ERRORS_MAX - 1, -1)]
    assert {(wrong.label, wrong.answered) for wrong in errors} == {("neutral", "negative")}


def test_the_table_of_thresholds_counts_answers_that_are_at_least_so_probable() -> None:
    found = of(judged("positive", 0.05, 0.9, 0.05), judged("positive", 0.75, 0.2, 0.05))

    rows = {row["probability"]: row for row in json_of(found, {}, [])["thresholds"]}

    assert [rows[threshold]["texts"] for threshold in (0.5, 0.7, 0.8, 0.9, 0.95)] == [2, 2, 1, 1, 0]
    assert rows[0.5].keys() == {"probability", "texts", "accuracy", "low", "high"}
    assert (rows[0.5]["accuracy"], rows[0.95]["accuracy"], rows[0.95]["low"]) == (0.5, None, None)


@pytest.mark.parametrize(
    ("right", "texts", "says"),
    [(95, 100, "use the model as it is"), (70, 100, "Label 200 texts or more"), (210, 300, "New head: 300"), (1400, 2000, "Train: 2,000")],
)
def test_advice_fits_the_accuracy_and_the_number_of_labels(right: int, texts: int, says: str) -> None:
    found = of(*[judged("positive", 0.1, 0.8, 0.1)] * right, *[judged("negative", 0.1, 0.8, 0.1)] * (texts - right))

    assert any(says in line for line in advice(found))


def test_a_file_of_two_labels_that_the_likelier_of_them_answers_needs_no_training() -> None:
    lines = advice(of(*[judged("positive", 0.1, 0.4, 0.5)] * 100, *[judged("negative", 0.4, 0.1, 0.5)] * 100))

    assert [line.split(".")[0] for line in lines] == [
        "The file has no text labelled neutral",
        "The answers are right in 100 % of the texts",
    ]


def sure(right: int, of_sure: int, texts: int) -> Evaluation:
    """``of_sure`` of the answers are surer than the others, which are wrong."""
    surer = [judged("positive", 0.02, 0.96, 0.02)] * right + [judged("negative", 0.02, 0.96, 0.02)] * (of_sure - right)
    return of(*surer, *[judged("negative", 0.1, 0.6, 0.3)] * (texts - of_sure))


@pytest.mark.parametrize(
    ("right", "of_sure", "texts", "advised"), [(58, 60, 100, True), (53, 60, 100, False), (49, 49, 100, False), (100, 100, 600, False)]
)
def test_a_threshold_is_advised_where_enough_answers_are_so_sure_and_right(right: int, of_sure: int, texts: int, advised: bool) -> None:
    lines = advice(sure(right, of_sure, texts))

    assert any(line.startswith("Threshold: answers of at least 0.70 are right in 90 % or more") for line in lines) is advised
    assert any("--new-head" in line for line in lines)


@pytest.mark.parametrize("right", [4, 20])
def test_of_too_few_texts_no_figure_is_advised_upon(right: int) -> None:
    assert all(line.startswith("Label more texts") or "no text labelled" in line for line in advice(sure(right, right, 20)))


def test_a_file_is_answered_and_compared_label_by_label(evaluate: Any, tmp_path: Path, capsys: Captured) -> None:
    rows = [(label, text) for text, label in RIGHT.items()] * 20
    path = written(tmp_path / "own.tsv", [*rows, ("negative", "a great film"), ("", "never labelled")])

    found = evaluate(path)

    assert found["texts"] == 61
    assert found["confusion"]["negative"] == {"negative": 20, "positive": 1, "neutral": 0}
    assert found["undecided"] == {"negative": 0, "positive": 20, "neutral": 20}
    assert found["notes"] == ["left out: 1 texts without a label"]
    assert [error["text"] for error in found["errors"]] == ["a great film"]
    shown = capsys.readouterr().out
    assert "What to do next" in shown
    assert "positive, labelled negative, line 62: a great film" in shown


def test_labels_may_be_the_numbers_of_the_labels_and_columns_have_any_name(evaluate: Any, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"said": text, "right": THREE.index(label)}) + "\n" for text, label in RIGHT.items()))

    assert evaluate(path, "--column", "said", "--labels", "right")["all"]["accuracy"] == 1


def test_a_file_without_labels_or_with_others_says_so(bundles: Path, tmp_path: Path, capsys: Captured) -> None:
    arguments = ["--model", "tiny", "--bundles", str(bundles)]

    assert main(["evaluate", str(written(tmp_path / "none.tsv", [("", "good")])), *arguments]) == 1
    assert "has no labelled text with an answer (--labels label); left out: 1 texts without a label" in capsys.readouterr().err
    assert main(["evaluate", str(written(tmp_path / "other.tsv", [("mixed", "good")])), *arguments]) == 1
    assert f"the label must be 0 to 2 or one of {', '.join(THREE)}" in capsys.readouterr().err


def test_a_servers_journal_is_refused_since_its_labels_are_the_models_own(bundles: Path, tmp_path: Path, capsys: Captured) -> None:
    journal = tmp_path / "answers.jsonl"
    journal.write_text('{"journal":"answer","model":"tiny/1","label":"positive","text":"a good film"}\n')

    assert main(["evaluate", str(journal), "--model", "tiny", "--bundles", str(bundles)]) == 1
    assert "is a server's journal; sentiment watch measures" in capsys.readouterr().err
