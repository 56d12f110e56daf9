"""The rule that splits texts into sentences, on texts of many kinds and on any text."""

import re
from collections import Counter
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentiment.model import sentences as rule
from sentiment.model.sentences import sentences
from tests.core.model.sentence_texts import marked_texts

# What the rule gets wrong; it would need the meaning.
KNOWN = {
    "Good morning!! \u2600\ufe0f Let's do this",
    "I'd go with plan B. Plan A is too risky.",
    "I think... I think I love you.",
    "Yahoo! was once worth more than all of them.",
    "the room was clean.the staff was nice.",
    "I bought it in\nMarch and it still works.",
    "lol xD That was fun",
    "No. 1 is not enough.",
    "i bought two ( one for my mom . ) both work .",
    "he said `` no . '' then he left .",
    "\u201c\u592a\u597d\u4e86\uff01\u201d\u6211\u8bf4\u3002",
    "Ich war am 3. Mai dort. Es war voll.",
}
SIGNS = [
    *("a", "B", "I", "Mr", "etc", "no", "p.m", "www", "3", "http", "#", "@", "/", " ", "\n", "\r\n", "\u2028", "\t", ",", "-", ":)", "<3"),
    *".!?\u2026\"'()[]\u201c\u201d\u00bb\u3002\uff01\u300c\u300d\u597d\u3068_",
    *("\U0001f60d", "\u2764\ufe0f", "\U0001f1ee\U0001f1f9", "\u200d"),
]
TEXTS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(SIGNS), max_size=40).map("".join))


def test_sentences_end_where_a_reader_ends_them() -> None:
    wrong = {marked.text for marked in marked_texts() if tuple(start for start, _ in list(sentences(marked.text))[1:]) != marked.starts}

    assert wrong == KNOWN


@given(TEXTS)
def test_spans_cover_all_but_white_space_in_order(text: str) -> None:
    spans = list(sentences(text))

    assert all(start < end for start, end in spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(text[start:end] == text[start:end].strip() for start, end in spans)
    covered = {place for start, end in spans for place in range(start, end)}
    assert all(text[place].isspace() for place in range(len(text)) if place not in covered)


@given(TEXTS)
def test_each_of_several_sentences_holds_a_letter_or_a_digit(text: str) -> None:
    spans = list(sentences(text))

    assert len(spans) < 2 or all(re.search(r"[^\W_]", text[start:end]) for start, end in spans)


@given(TEXTS, st.sampled_from(["", " ", "\n", " \n\t"]), st.sampled_from(["", " ", "\n\n"]))
def test_white_space_around_a_text_only_moves_its_sentences(text: str, before: str, behind: str) -> None:
    moved = [(start + len(before), end + len(before)) for start, end in sentences(text)]

    assert list(sentences(before + text + behind)) == moved


@given(TEXTS, TEXTS)
def test_texts_in_paragraphs_of_their_own_share_no_sentence_and_change_none(first: str, second: str) -> None:
    # A text without a word joins its neighbour, and tags behind a post belong to it only at its end.
    first, second = f"a {first} a.", f"A {second}"
    moved = [(start + len(first) + 2, end + len(first) + 2) for start, end in sentences(second)]

    assert list(sentences(f"{first}\n\n{second}")) == list(sentences(first)) + moved


@given(TEXTS)
def test_a_sentence_alone_is_one_sentence(text: str) -> None:
    for start, end in sentences(text):
        assert list(sentences(text[start:end])) == [(0, end - start)]


class Counted:
    """A pattern that counts its calls and the code points that its matches read."""

    def __init__(self, pattern: "re.Pattern[str]", work: Counter[str]) -> None:
        self._pattern, self._work = pattern, work

    def _count(self, found: "re.Match[str] | None") -> "re.Match[str] | None":
        self._work["calls"] += 1
        self._work["read"] += len(found[0]) if found else 0
        return found

    def match(self, *where: Any) -> "re.Match[str] | None":  # Any: str, int, int
        return self._count(self._pattern.match(*where))

    def search(self, *where: Any) -> "re.Match[str] | None":  # Any: as above
        return self._count(self._pattern.search(*where))

    def fullmatch(self, *where: Any) -> "re.Match[str] | None":  # Any: as above
        return self._count(self._pattern.fullmatch(*where))

    def finditer(self, *where: Any) -> Any:  # Any: as above; an iterator of matches
        return filter(self._count, self._pattern.finditer(*where))


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what the patterns of the rule do. None of them reads far without a match: their repetitions are possessive."""
    found: Counter[str] = Counter()
    for name, value in list(vars(rule).items()):
        if isinstance(value, re.Pattern):
            monkeypatch.setattr(rule, name, Counted(value, found))
    return found


HARD = [".", "a.", "A.", "! ", "!)", '"a. ', '."', "no. ", " ", "\n \n", "a\n", "\n", "\r\n", "1. ", "\u597d\u3002", "\U0001f60d "]
HARD += [
    "a \U0001f60d",
    ". #a",
    " #a",
    ". http",
    ":)",
    ":",
    "A :) ",
    "(",
    ". . ",
    "a!/",
    "Mr. A",
    "\u2764\ufe0f\u200d",
    "_",
    ". '' ",
    "a...A",
]


@pytest.mark.parametrize("unit", HARD)
def test_the_work_grows_with_the_length_of_a_text(unit: str, work: Counter[str]) -> None:
    length = 20_000

    list(sentences((unit * length)[:length]))

    assert work["calls"] < 20 * length
    assert work["read"] < 40 * length


def test_the_first_sentences_do_not_wait_for_the_rest(work: Counter[str]) -> None:
    assert len(list(islice(sentences("It is so. " * 100_000), 3))) == 3
    assert work["read"] < 1_000


def test_splitting_a_text_finds_no_sentence_in_white_space() -> None:
    assert list(sentences(" \n\n ")) == []
    assert list(sentences(" a.\n\n\n b ")) == [(1, 3), (7, 8)]
