"""Agreement with rationales: words are found by characters, figures are those worked out by hand, a killed run goes on."""

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sentiment_models.errors import BadData, ModelsError
from sentiment_models.explanations import plausibility as module
from sentiment_models.explanations import rankings
from sentiment_models.explanations.plausibility import (
    Document,
    average_precision,
    f1_of_chance,
    f1_of_first,
    plausibility_found,
    precision_of_chance,
    read_documents,
)
from sentiment_models.explanations.subject import Subject

LABELS = ("negative", "positive")


def line(tokens: str, *rationales: tuple[int, int], label: object = 1) -> dict[str, object]:
    return {"id": "x", "label": label, "tokens": tokens.split(), "sentence_starts": [0], "rationales": rationales}


LINES = [
    line("the film was not good at all , but i liked the end", (3, 7)),
    line("a very good film", (1, 3)),
    line("i did not like it", (1, 4), label=0),
    # Nothing of it is marked, and all of the next: neither can tell one order from another.
    line("the end was good"),
    line("good film", (0, 2)),
]


def write(path: Path, lines: list[dict[str, object]]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(one) + "\n" for one in lines)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "dev.jsonl.gz", LINES)


def test_words_are_marked_by_the_characters_of_their_tokens(subject: Subject) -> None:
    document = Document(label=1, tokens=("it", "is", "n't", "a", "well-made", "film", "."), rationales=((2, 3), (4, 6)))
    words = subject.read(document.text).encoded.words

    marks = document.marks(words)

    assert document.text == "it is n't a well-made film ."
    assert [document.text[word.start : word.end] for word, mark in zip(words, marks, strict=True) if mark] == ["n't", "well-made", "film"]


def test_rationales_beyond_the_read_part_of_a_text_are_not_counted(subject: Subject) -> None:
    long = Document(label=1, tokens=("good", *["film"] * 300, "end"), rationales=((0, 1), (301, 302)))
    words = subject.read(long.text).encoded.words

    marks = long.marks(words)

    assert len(marks) == len(words) < 302
    assert marks.sum() == 1


@pytest.mark.parametrize(
    ("values", "marks", "expected"),
    [
        # Hits at ranks 1 and 3: (1/1 + 2/3) / 2.
        ([4, 3, 2, 1], [1, 0, 1, 0], 5 / 6),
        ([1, 2, 3, 4], [1, 0, 0, 0], 1 / 4),
        ([3, 2, 1], [1, 1, 0], 1),
        # All values are equal: the share that is marked.
        ([0, 0, 0, 0], [1, 0, 0, 1], 1 / 2),
        # Rank 1 a hit; the two of equal score are one step: (1 + 2/3) / 2.
        ([2, 1, 1], [1, 1, 0], 5 / 6),
    ],
)
def test_average_precision_is_that_worked_out_by_hand(values: list[float], marks: list[int], expected: float) -> None:
    assert average_precision(np.array(values, np.float64), np.array(marks, np.bool_)) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "marked", "count"), [(5, 2, 1), (5, 2, 2), (6, 3, 4), (4, 1, 2)])
def test_chance_is_the_mean_over_all_orders(n: int, marked: int, count: int) -> None:
    marks = np.arange(n) < marked
    orders = [np.array(order) for order in itertools.permutations(range(n))]

    precision = np.mean([average_precision(-np.argsort(order).astype(np.float64), marks) for order in orders])
    f1 = np.mean([f1_of_first(order, marks, count) for order in orders])

    assert precision_of_chance(n, marked) == pytest.approx(precision)
    assert f1_of_chance(n, marked, count) == pytest.approx(f1)


def test_a_file_of_rationales_is_read_with_labels_by_index_or_name(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl.gz", [line("a good film", (1, 2)), line("bad", (0, 1), label="negative")])

    found = read_documents(path, LABELS)

    assert [(document.text, label) for document, label in found] == [("a good film", 1), ("bad", 0)]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            {"label": 1, "tokens": ["a"]},
            r"d\.jsonl\.gz: line 2: rationales: Field required; expected ERASER's tokens, rationales",
        ),
        (line("a good film", (1, 4)), r": line 2: rationale \[1, 4\) is outside the document's 3 tokens"),
        (line("a good film", (2, 2)), r": line 2: rationale \[2, 2\) is outside the document's 3 tokens"),
        (line("a good film", (1, 2), label=2), r": line 2: unknown label 2; the model has negative, positive"),
        (line(""), r": line 2: the text is empty"),
    ],
)
def test_the_error_of_a_bad_document_has_its_line(tmp_path: Path, broken: dict[str, object], said: str) -> None:
    path = write(tmp_path / "d.jsonl.gz", [LINES[0], broken])

    with pytest.raises(BadData, match=said):
        read_documents(path, LABELS)


@pytest.mark.parametrize(
    ("content", "said"), [(gzip.compress(b"", mtime=0), "has no documents"), (b"{}\n", "cannot be decompressed: Not a gzipped file")]
)
def test_an_empty_file_and_one_that_is_not_gzip_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "d.jsonl.gz").write_bytes(content)

    with pytest.raises(BadData, match=rf"d\.jsonl\.gz: {said}"):
        read_documents(tmp_path / "d.jsonl.gz", LABELS)


def test_every_method_is_held_against_documents_that_can_tell(subject: Subject, file: Path, tmp_path: Path) -> None:
    train = tmp_path / "train.tsv"
    train.write_text("1\tgood\n0\tbad\n")

    found = plausibility_found(subject, file, seed=3, train=[train], threads=2)

    assert found.documents == 3
    # 4 of 13, 2 of 4 and 3 of 5 words.
    assert found.prevalence == pytest.approx((4 / 13 + 2 / 4 + 3 / 5) / 3, abs=1e-5)
    assert set(found.methods) == {
        *("integrated_gradients", "gradient_x_input", "occlusion", "two_step_shapley"),
        *("attention_last_cls", "attention_mean_cls", "rollout"),
        *("rollout_value_norms", "rollout_gradient", "position_first", "position_last", "lexicon", "random"),
    }
    chance = np.mean([precision_of_chance(*sizes) for sizes in ((13, 4), (4, 2), (5, 3))])
    assert found.methods["random"].auprc == pytest.approx(chance, abs=1e-5)
    for one in found.methods.values():
        low, high = one.auprc_interval
        assert 0 <= low <= one.auprc <= high <= 1
        assert 0 <= one.f1_at_20 <= 1
    # The words of each in order, the last ones first: marked are 3 to 6, 1 and 2, 1 to 3.
    by_hand = [average_precision(np.arange(len(marks), dtype=np.float64), np.array(marks)) for marks in _marks()]
    assert found.methods["position_last"].auprc == pytest.approx(np.mean(by_hand), abs=1e-5)


def _marks() -> list[list[bool]]:
    return [[3 <= word < 7 for word in range(13)], [1 <= word < 3 for word in range(4)], [1 <= word < 4 for word in range(5)]]


def test_scores_are_towards_the_right_label_whatever_is_answered(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = rankings.attributions
    monkeypatch.setattr(rankings, "attributions", lambda *given: asked.append(given[2].label) or real(*given))

    for label in (0, 1):
        plausibility_found(subject, write(tmp_path / f"{label}.jsonl.gz", [line("a very good film", (1, 3), label=label)]))

    assert asked == [0, 1]


def test_a_run_that_was_killed_goes_on_and_another_is_refused(
    subject: Subject, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resume, real, done = tmp_path / "journal", module._scores, []

    def killed(*given: object) -> object:
        done.append(1)
        if len(done) > 1:
            raise KeyboardInterrupt
        return real(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "_scores", killed)
        plausibility_found(subject, file, seed=3, resume=resume, threads=1)
    left: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(module, "_scores", lambda *given: left.append(1) or real(*given))
        found = plausibility_found(subject, file, seed=3, resume=resume, threads=1)

    assert len(left) == 2
    assert found == plausibility_found(subject, file, seed=3, threads=2)
    with pytest.raises(ModelsError, match=r"other settings \(documents\)"):
        plausibility_found(subject, file, documents=2, seed=3, resume=resume)


def test_without_an_explain_graph_only_methods_that_erase_are_held_against_them(make_subject: Callable[[str], Subject], file: Path) -> None:
    found = plausibility_found(make_subject("xlnet"), file, documents=1)

    assert found.documents == 1
    assert set(found.methods) == {"occlusion", "two_step_shapley", "position_first", "position_last", "random"}


def test_documents_without_both_marked_and_unmarked_words_are_refused(subject: Subject, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no document has both marked and unmarked words"):
        plausibility_found(subject, write(tmp_path / "d.jsonl.gz", LINES[3:]))
