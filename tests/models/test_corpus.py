"""What a run is shown: variants of its texts, soft targets, texts that have no label."""

import json
from pathlib import Path

import pytest

from sentiment_models.data import corpus
from sentiment_models.data.corpus import read_corpus, target_of, vary
from sentiment_models.data.erased import HOLE, MASK
from sentiment_models.data.labelled import Example, LabelledReading, read_examples, read_texts, read_undecided
from sentiment_models.errors import BadData
from sentiment_models.training.recipe import Recipe
from tests.models.tiny_bert import LABELS, sentences, write_tsv

TREEBANK = "it 's a film that ca n't be missed -lrb- really -rrb- ."


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def recipe(*sources: Path, **given: object) -> Recipe:
    return Recipe("base", tuple(str(source) for source in sources), **given)


def test_each_epoch_varies_a_text_differently_and_a_repeated_run_alike() -> None:
    varied = Recipe("base", (), recase=0.5, typos=0.5)
    texts = [f"A film number {number} that I would not like to see again" for number in range(40)]
    examples = [Example(text, 0) for text in texts]

    epochs = [vary(examples, varied, epoch) for epoch in range(2)]

    assert epochs[0] != epochs[1]
    assert epochs == [vary(examples, varied, epoch) for epoch in range(2)]
    assert 5 < sum(text in texts for text in epochs[0]) < 25  # a quarter, or a sixth more for what lower case leaves alone


def test_many_texts_vary_in_other_processes_as_they_would_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    varied = Recipe("base", (), recase=0.5, typos=0.5)
    examples = [Example(f"A film number {number} that I would not like to see again", 0) for number in range(8)]
    examples[4:4] = [Example("I would not like to see that film", 0, text_pair="I would really not like to see it")]
    alone = vary(examples, varied, 0)

    monkeypatch.setattr(corpus, "VARIED_AT_A_TIME", 3)

    assert vary(examples, varied, 0) == alone


@pytest.mark.parametrize(
    ("text_pair", "chances", "shown"),
    [
        (None, {}, TREEBANK),
        (None, {"detokenize": 1.0}, "it's a film that can't be missed (really)."),
        ("it 's fine .", {"detokenize": 1.0}, ("it's a film that can't be missed (really).", "it's fine.")),
    ],
    ids=["without chances as it is", "detokenized", "both texts of a pair"],
)
def test_a_text_is_shown_as_the_recipe_says(text_pair: str | None, chances: dict[str, float], shown: object) -> None:
    assert vary([Example(TREEBANK, 0, text_pair=text_pair)], Recipe("base", (), **chances), 0) == [shown]


def test_pairs_come_from_csv_and_jsonl(tmp_path: Path) -> None:
    jsonl = write_lines(tmp_path / "pairs.jsonl", {"text": "a", "text_pair": "b", "label": 1}, {"text": "c", "label": 0})
    table = write_lines(tmp_path / "pairs.csv", "text_pair,label,text", "b,1,a")

    assert list(read_examples(jsonl, LABELS)) == [Example("a", 1, text_pair="b"), Example("c", 0)]
    assert list(read_examples(table, LABELS)) == [Example("a", 1, text_pair="b")]
    with pytest.raises(BadData, match=r"pairs\.csv: line 2: the text is empty"):
        list(read_examples(write_lines(tmp_path / "pairs.csv", "text_pair,label,text", ",1,a"), LABELS))


SECOND = LabelledReading(pair="second")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("pairs.csv", ["second,label,text", "b,1,a"]),
        ("pairs.csv", ["text_pair,label,text", "b,1,a"]),
        ("pairs.jsonl", ['{"text": "a", "second": "b", "label": 1}']),
        ("pairs.jsonl", ['{"text": "a", "text_pair": "b", "label": 1}']),
    ],
)
def test_the_second_text_may_have_another_name(name: str, lines: list[str], tmp_path: Path) -> None:
    assert list(read_examples(write_lines(tmp_path / name, *lines), LABELS, reading=SECOND)) == [Example("a", 1, text_pair="b")]


@pytest.mark.parametrize(
    ("name", "lines", "told"),
    [
        (
            "pairs.csv",
            ["other,label,text", "b,1,a"],
            r"csv: line 2: has neither second \(--pair\) nor text_pair; it has other, label, text",
        ),
        ("pairs.csv", ["second,text_pair,label,text", "b,c,1,a"], r"csv: line 2: has both second \(--pair\) and text_pair"),
        ("pairs.jsonl", ['{"text": "a", "label": 1}'], r"jsonl: line 1: .*neither second \(--pair\) nor text_pair"),
        ("pairs.tsv", ["1\ta"], r"tsv: --pair second: the file has no names of columns; use a \.csv or \.jsonl"),
        ("pairs.txt", ["a"], r"txt: --pair second: the file has no names of columns"),
    ],
)
def test_a_second_text_that_is_not_there_is_not_left_out_silently(name: str, lines: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=told):
        list(read_texts(write_lines(tmp_path / name, *lines), reading=SECOND))


def test_probabilities_without_a_label_are_of_labels_whatever_their_names(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "soft.jsonl", {"text": "a", "label": None, "probabilities": [0.1, 0.7, 0.2]})

    assert list(read_examples(path, ("1", "2", "3"))) == [Example("a", 1, (0.1, 0.7, 0.2), judged=False)]


def test_a_text_with_words_erased_has_the_answer_of_the_whole_less_certainly(whole: Path) -> None:
    texts = [example.text for example in read_examples(whole, LABELS)]

    rows = read_corpus(recipe(whole, erased=(str(whole),), dev_fraction=0.2)).split.train

    erased = [row for row in rows if not row.judged]
    assert {row.text for row in erased}.isdisjoint(texts)
    kinds = [sum(mark in row.text for row in erased) for mark in (HOLE, MASK)]
    assert min(*kinds, len(erased) - sum(kinds)) > 0
    for row in erased:
        assert row.target is not None
        assert sum(row.target) == pytest.approx(1)
        assert row.target[row.label] == max(row.target) < 1


def test_each_time_that_a_text_is_shown_with_words_erased_it_lacks_others(whole: Path) -> None:
    rows = read_corpus(recipe(whole, erased=(f"{whole}:3",), dev_fraction=0.2)).split.train

    erased = [row.text for row in rows if not row.judged]
    assert len(set(erased)) > 0.8 * len(erased)


def test_the_ends_of_long_texts_are_shown_with_their_labels(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(200)]
    rows = [{"text": f"{number} {' '.join(words)}", "label": number % 2} for number in range(20)]
    path = write_lines(tmp_path / "long.jsonl", *rows, {"text": "short", "label": 1})

    shown = read_corpus(recipe(path, ends=(str(path),), dev_fraction=0.2)).split.train

    ends = [row for row in shown if len(row.text.split()) == 96]
    assert len(ends) == len([row for row in shown if len(row.text.split()) > 200]) > 10
    assert all(row.text.split()[1:] == [*words[:23], *words[-72:]] and row.label == int(row.text.split()[0]) % 2 for row in ends)


def test_a_label_without_a_text_is_said(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read_corpus(recipe(whole, labels=("negative", "positive", "neutral"), dev_fraction=0.2))

    assert capsys.readouterr().err == "no training text has the label neutral: the model learns not to answer it\n"


def test_an_unknown_label_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.tsv", "positive\tgood", "neutral\tso so")

    with pytest.raises(BadData, match=r"a\.tsv: line 2: label must be .*, got 'neutral'; name the labels of the data with --labels"):
        read_corpus(recipe(path))


def test_a_target_mixes_the_label_with_the_teachers_answer() -> None:
    judged = Example("text", 1, (0.4, 0.6))

    assert target_of(Example("text", 1), 2, 0.7) == [0.0, 1.0]
    assert target_of(judged, 2, 0.5) == pytest.approx([0.2, 0.8])
    assert target_of(Example("text", 1, (0.4, 0.6), judged=False), 2, 0.5) == [0.4, 0.6]


def test_probabilities_come_with_a_label_or_make_one(tmp_path: Path) -> None:
    rows = ({"text": "a", "label": "negative", "probabilities": [0.4, 0.6]}, {"text": "b", "probabilities": [0.4, 0.6]})
    path = write_lines(tmp_path / "soft.jsonl", *rows)

    found = list(read_examples(path, LABELS))

    assert found == [Example("a", 0, (0.4, 0.6)), Example("b", 1, (0.4, 0.6), judged=False)]


@pytest.mark.parametrize("given", [[0.4], [0.5, 0.4], [-0.1, 1.1], [0.2, 0.3, 0.5]])
def test_invalid_probabilities_are_refused_with_their_line(tmp_path: Path, given: list[float]) -> None:
    path = write_lines(tmp_path / "soft.jsonl", {"text": "a", "label": 1}, {"text": "b", "probabilities": given})

    with pytest.raises(BadData, match=r"soft\.jsonl: line 2: expected 2 probabilities that sum to 1"):
        list(read_examples(path, LABELS))


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_tsv(tmp_path / "train.tsv", sentences(200, seed=1))


def test_texts_without_sentiment_make_all_labels_equally_likely_and_are_never_in_dev(whole: Path, tmp_path: Path) -> None:
    undecided = write_lines(tmp_path / "undecided.tsv", *(f"en\tThe bus {number} leaves at noon." for number in range(100)))

    corpus = read_corpus(recipe(whole, undecided=(f"{undecided}:2",), dev_fraction=0.3))

    even = [example for example in corpus.split.train if example.target == (0.5, 0.5)]
    assert len(even) == 200
    assert all(target_of(example, 2, 0.1) == [0.5, 0.5] for example in even)
    assert not any("bus" in example.text for example in corpus.split.dev)
    assert [file["undecided"] for file in corpus.files] == [False, True]


def test_a_file_of_texts_without_sentiment_has_a_kind_a_line(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"plain\.tsv: line 1: expected kind<TAB>text"):
        list(read_undecided(write_lines(tmp_path / "plain.tsv", "The bus leaves at noon."), LABELS))
    with pytest.raises(BadData, match=r"plain\.txt: .*\.tsv"):
        list(read_undecided(write_lines(tmp_path / "plain.txt", "The bus leaves at noon."), LABELS))


def test_texts_labelled_only_by_a_teacher_are_never_in_dev(whole: Path, tmp_path: Path) -> None:
    reviews = ({"text": f"Review {number} is here.", "probabilities": [0.1, 0.9]} for number in range(200))
    soft = write_lines(tmp_path / "soft.jsonl", *reviews)

    split = read_corpus(recipe(whole, soft, dev_fraction=0.3)).split

    assert not any("Review" in example.text for example in split.dev)
    assert sum("Review" in example.text for example in split.train) == 200


def test_a_small_file_of_tails_needs_no_dev_of_its_own_and_keeps_the_teacher_s_probabilities(whole: Path, tmp_path: Path) -> None:
    tails = write_lines(tmp_path / "tails.jsonl", {"text": "Much happens. The end is good.", "probabilities": [0.1, 0.9]})

    split = read_corpus(recipe(whole, tails=(str(tails),), dev_fraction=0.2)).split

    assert [example for example in split.train if example.target] == [
        Example("Much happens. The end is good.", 1, (0.1, 0.9), judged=False)
    ]


def test_the_tail_of_a_development_text_is_not_trained_on(whole: Path) -> None:
    split = read_corpus(recipe(whole, tails=(str(whole),), dev_fraction=0.3)).split

    assert split.dev
    assert not {example.text for example in split.dev} & {example.text for example in split.train}
