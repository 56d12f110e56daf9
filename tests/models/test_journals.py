"""A server's journal as labelled texts."""

from pathlib import Path
from typing import Any

import pytest

from sentiment.observability.journal import line_of
from sentiment_models.data.corpus import read_corpus
from sentiment_models.data.labelled import Example, LabelledReading, read_examples, read_texts
from sentiment_models.errors import BadData
from sentiment_models.training.recipe import Recipe
from tests.models.tiny_bert import LABELS


def answer(request_id: str, text: str | None = None) -> bytes:
    texts = {} if text is None else {"text": text}
    return line_of({"journal": "answer", "request_id": request_id, "item": 0, "label": "positive", **texts})


def feedback(label: str | None, request_id: str = "", item: int = 0, **fields: str) -> bytes:
    row: dict[str, Any] = {"journal": "feedback", "label": label, "predicted": "positive", **fields}
    return line_of(row | ({"request_id": request_id, "item": item} if request_id else {}))


def read(path: Path, *lines: bytes) -> list[Example]:
    path.write_bytes(b"".join(lines))
    return list(read_examples(path, LABELS))


def test_feedback_with_a_text_is_a_labelled_text_and_an_answer_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (
        answer("one", "good"),
        feedback("negative", "one", text="good \u2028\U0001f600"),
        feedback("negative", "two"),
        feedback("positive", text="a", text_pair="b"),
        feedback("positive", text="a"),
        answer("two"),
    )
    found = read(tmp_path / "journal.jsonl", *lines)

    assert found == [Example("good \u2028\U0001f600", 0), Example("a", 1, text_pair="b"), Example("a", 1)]
    assert capsys.readouterr().err == (
        f"{tmp_path / 'journal.jsonl'}: 3 labelled texts of a journal; left out: 2 answers, 1 labels without a text, 0 torn lines\n"
    )


def test_the_last_label_of_a_request_or_a_text_counts_and_those_it_replaced_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [feedback(label, name, item, text="good") for name, item in (("one", 0), ("one", 1)) for label in ("negative", "positive")]
    lines += [feedback("negative", "one", 1, text="good"), feedback("negative", text="bad"), feedback("positive", text="bad")]

    assert read(tmp_path / "a.jsonl", *lines) == [Example("good", 1), Example("good", 0), Example("bad", 1)]
    assert "3 labelled texts" in (told := capsys.readouterr().err)
    assert told.endswith("0 torn lines, 4 labels that a later one replaced\n")


def test_a_label_does_not_replace_that_of_another_caller_with_the_same_request_id_and_text(tmp_path: Path) -> None:
    lines = [feedback(label, "one", text="good", caller=name) for label, name in (("positive", "shop"), ("negative", "web"))]

    assert read(tmp_path / "a.jsonl", *lines) == [Example("good", 1), Example("good", 0)]


def test_feedback_that_no_label_is_right_removes_the_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        feedback("positive", text="so so"),
        feedback(None, text="so so"),
        feedback(None, text="good"),
        feedback("positive", text="good"),
    ]

    assert read(tmp_path / "a.jsonl", *lines) == [Example("good", 1)]
    assert capsys.readouterr().err.endswith("2 labels that a later one replaced, 1 texts of which no label is right\n")
    with pytest.raises(BadData, match="1 texts of which no label is right"):
        read(tmp_path / "b.jsonl", lines[1])


def test_the_latest_label_counts_in_whichever_order_the_files_were_put_together(tmp_path: Path) -> None:
    lines = [feedback(label, "one", text="good", time=f"2026-01-01T00:00:0{at}.000Z") for at, label in ((2, "positive"), (1, "negative"))]

    assert read(tmp_path / "a.jsonl", *lines) == [Example("good", 1)]


def test_torn_lines_of_files_that_were_put_together_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = feedback("negative", text="caf\u00e9")
    found = read(
        tmp_path / "a.jsonl", whole, answer("one")[:-20], whole, feedback("positive", text="good"), whole[: whole.index(b"u00") + 3]
    )

    assert found == [Example("caf\u00e9", 0), Example("good", 1)]
    assert "2 torn lines" in capsys.readouterr().err


def test_a_torn_first_line_is_left_out_and_a_line_that_is_not_torn_is_refused(tmp_path: Path) -> None:
    whole = feedback("negative", text="bad")

    assert read(tmp_path / "a.jsonl", answer("one")[:-20] + b"\n", whole, whole[:5] + b"\n", whole) == [Example("bad", 0)]
    for wrong in (b"\n", b"so so\n", b'{"label": 1, "te\n'):
        with pytest.raises(BadData, match=r"a\.jsonl: line 2: "):
            read(tmp_path / "a.jsonl", whole, wrong)


def test_a_journal_without_a_labelled_text_is_refused_and_the_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData) as caught:
        read(tmp_path / "a.jsonl", answer("one", "good"), answer("two", "bad"), feedback("negative", "one"))

    assert str(caught.value) == (
        f"{tmp_path / 'a.jsonl'}: a journal without a labelled text (2 answers, 1 labels without a text, 0 torn lines); "
        "it needs feedback, and texts (the server's setting journal_texts)"
    )


def test_a_file_of_labelled_texts_that_is_not_a_journal_is_read_strictly(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"a\.jsonl: line 2: is no JSON"):
        read(tmp_path / "a.jsonl", line_of({"label": 1, "text": "good", "journal": "Nature"}), b'{"label": 1, "te\n')


def test_a_label_of_another_model_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"a\.jsonl: line 2: label must be 0 to 1 or one of negative, positive, got 'neutral'"):
        read(tmp_path / "a.jsonl", answer("one"), feedback("neutral", text="so so"))


def test_without_labels_every_answer_with_a_text_is_a_text_and_feedback_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b"".join([answer("one", "good"), answer("one", "good"), feedback("negative", "one", text="good"), answer("two"), answer("x")[:-9]])
    )

    assert list(read_texts(path)) == ["good", "good"]
    assert capsys.readouterr().err == f"{path}: 2 texts of a journal; left out: 1 labels, 1 answers without a text, 1 torn lines\n"


def test_without_labels_a_journal_without_texts_is_refused_and_the_setting_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(answer("one") + feedback("negative", text="good"))

    with pytest.raises(BadData, match=r"without a text \(1 labels, 1 answers without a text, .*; it needs texts \(.*journal_texts"):
        list(read_texts(path))


def of_models(path: Path) -> Path:
    """Feedback of three versions of two models. The last line is not the latest."""
    told = [("mine/1", "negative", 1), ("mine/2", "positive", 3), ("other/1", "negative", 4), ("mine/1", "positive", 2)]
    lines = [
        feedback(label, text=f"film {number}", model=model, time=f"2026-01-01T00:00:0{at}.000Z")
        for number, (model, label, at) in enumerate(told)
    ]
    path.write_bytes(b"".join(lines))
    return path


@pytest.mark.parametrize(
    ("model", "texts", "said"),
    [
        (
            "",
            ["film 2"],
            "1 labelled texts of other/1 of a journal; left out: {none}; of other models: 2 of mine/1, 1 of mine/2 ({choose})",
        ),
        ("mine/1", ["film 0", "film 3"], "2 labelled texts of mine/1 of a journal; left out: {none}; of other models: 1 of mine/2, "),
        (
            "mine",
            ["film 0", "film 1", "film 3"],
            "3 labelled texts of mine/1, mine/2 of a journal; left out: {none}; of other models: 1 of ",
        ),
    ],
)
def test_of_several_models_the_lines_of_one_count_and_it_is_named(
    model: str, texts: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_models(tmp_path / "a.jsonl")

    found = [example.text for example in read_examples(path, LABELS, reading=LabelledReading(journal_model=model))]

    none, choose = "0 answers, 0 labels without a text, 0 torn lines", "choose with --journal-model"
    assert found == texts
    assert capsys.readouterr().err.startswith(f"{path}: " + said.format(none=none, choose=choose))


def test_of_a_text_that_two_versions_answered_the_latest_label_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        feedback("positive", text="good", model="mine/2", time="2026-01-02T00:00:00.000Z")
        + feedback("negative", text="good", model="mine/1", time="2026-01-01T00:00:00.000Z")
    )

    assert list(read_examples(path, LABELS, reading=LabelledReading(journal_model="mine"))) == [Example("good", 1)]


def test_a_model_that_the_journal_lacks_is_refused_with_those_it_has(tmp_path: Path) -> None:
    with pytest.raises(
        BadData, match=r"the journal has no labelled text of min \(--journal-model\); it has 2 of mine/1, 1 of mine/2, 1 of ot"
    ):
        list(read_examples(of_models(tmp_path / "a.jsonl"), LABELS, reading=LabelledReading(journal_model="min")))


def test_a_run_trains_on_the_labels_of_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(feedback(LABELS[number % 2], f"id-{number}", text=f"film number {number}") for number in range(200)))

    corpus = read_corpus(Recipe("base", (str(path),), labels=tuple(LABELS)))

    assert len(corpus.split.train) + len(corpus.split.dev) == corpus.files[0]["rows"] == 200
