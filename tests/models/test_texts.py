"""The texts written for training and for judging: their form, their balance, and that no file repeats another."""

import json
import re
from collections import Counter
from importlib.resources import files
from itertools import combinations

import pytest

_PACKAGE = files("sentiment_models")
_LABELLED = {
    "idioms.tsv": 160,
    "texts/cases.tsv": 2700,
    "texts/domains.tsv": 2700,
    "texts/hard.tsv": 26_600,
    "texts/plain.tsv": 11_000,
    "texts/plain_test.tsv": 740,
    "texts/hard_test.tsv": 190,
}
_KINDS = {"texts/undecided.tsv": (900, 5000, 30), "texts/undecided_test.tsv": (150, 150, 25)}
# Texts by three labels, and those that praise and blame.
_EVERYDAY, _EVERYDAY_TEST = "texts/everyday.tsv", "texts/everyday_test.jsonl"
_ALL = (*_LABELLED, *_KINDS, _EVERYDAY, _EVERYDAY_TEST)
_JUDGES = {_EVERYDAY_TEST, "texts/plain_test.tsv", "texts/hard_test.tsv", "texts/undecided_test.tsv"}
_WORDS = 120


def _rows(name: str) -> list[tuple[str, str]]:
    """The label or kind and the text of each line."""
    content = (_PACKAGE / name).read_bytes().decode("utf-8")
    assert content.endswith("\n")
    assert "\r" not in content
    rows = []
    for line in content.removesuffix("\n").split("\n"):
        if name.endswith(".jsonl"):
            row = json.loads(line)
            rows.append((row["label"], row["text"]))
            continue
        first, tab, text = line.partition("\t")
        assert tab, line
        rows.append((first, text))
    return rows


def _letters(text: str) -> str:
    """The text without case, punctuation and symbols; the text itself where nothing else is in it."""
    return " ".join(re.findall(r"[^\W_]+", text.casefold())) or text


def _folded(text: str) -> str:
    """The text without case and the marks of sentences, but with emoticons and emoji; the text itself where nothing is left."""
    return " ".join(re.findall(r"[^\W_]+|[^\w\s.,!?\u2026'\"\u2019-]+", text.casefold())) or text


@pytest.mark.parametrize("name", _ALL)
def test_a_text_is_short_not_empty_and_has_no_tab(name: str) -> None:
    for _, text in _rows(name):
        assert text == text.strip() != ""
        assert "\t" not in text
        assert len(text.split()) <= _WORDS


@pytest.mark.parametrize("name", _LABELLED)
def test_labelled_texts_are_many_and_balanced(name: str) -> None:
    counts = Counter(label for label, _ in _rows(name))

    assert counts.keys() == {"0", "1"}
    assert counts.total() >= _LABELLED[name]
    assert 0.45 <= counts["1"] / counts.total() <= 0.55


@pytest.mark.parametrize(("name", "texts", "mixed"), [(_EVERYDAY, 1900, 240), (_EVERYDAY_TEST, 50, 0)])
def test_everyday_texts_are_a_third_neutral(name: str, texts: int, mixed: int) -> None:
    counts = Counter(label for label, _ in _rows(name))

    assert counts.total() >= texts
    assert counts.pop("mixed", 0) == mixed
    assert counts.keys() == {"negative", "neutral", "positive"}
    assert min(counts.values()) >= 0.28 * counts.total()


@pytest.mark.parametrize("name", _KINDS)
def test_undecided_texts_are_of_many_languages_and_english_without_sentiment(name: str) -> None:
    others, english, languages = _KINDS[name]
    counts = Counter(kind for kind, _ in _rows(name))

    assert all(re.fullmatch("[a-z]{2}", kind) for kind in counts)
    assert counts["en"] >= english
    assert counts.total() - counts["en"] >= others
    assert len(counts.keys() - {"en"}) >= languages


@pytest.mark.parametrize("name", _ALL)
def test_no_file_has_a_text_twice(name: str) -> None:
    counts = Counter(_folded(text) for _, text in _rows(name))

    assert [text for text, times in counts.items() if times > 1] == []


@pytest.mark.parametrize(("one", "other"), list(combinations(_ALL, 2)))
def test_no_text_is_in_two_files(one: str, other: str) -> None:
    # What judges shares not even its letters with what trains.
    fold = _letters if {one, other} & _JUDGES else _folded
    assert {fold(text) for _, text in _rows(one)} & {fold(text) for _, text in _rows(other)} == set()


def test_some_languages_are_judged_that_were_never_trained_on() -> None:
    trained, judged = ({kind for kind, _ in _rows(name)} for name in _KINDS)

    assert len(judged - trained) >= 5
