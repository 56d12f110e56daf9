"""The sentence splitter, for texts of any length."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentiment.explain.methods.sentences import sentence_numbers, sentence_words
from sentiment.model.sentences import sentence_starts
from sentiment.model.words import Encoded, Token, Word


@pytest.mark.parametrize(
    "sentences",
    [
        ["It was bad.", " I left!", " Why?"],
        ["He said \u201cno.\u201d", " Then he left\u2026", ' "Fine?!"', " Yes"],
        ["Mr. Smith met J. R. Jones, e.g. in St. Louis.", " Then Dr. No came."],
        ["Is it good?", " No.", " I left."],
        ["It is no. 1 of all.", " Really."],
        ["It costs 3.50 at example.com or so."],
        ["So do I.", " And you?"],
        ["A title without a stop\n\n", "A line.", "\nAnother"],
        ["\u597d\u3002", "\u4e0d\u597d\uff01", "\u597d"],
        ["..."],
        [""],
    ],
)
def test_sentence_starts_of_examples(sentences: list[str]) -> None:
    starts = [sum(map(len, sentences[:count])) for count in range(len(sentences))]

    assert sentence_starts("".join(sentences)) == starts


PLAIN = re.compile(
    r"(?<![.!?\u2026])[.!?\u2026]+[\"'\u2019\u201d\u00bb)\]]*(?=\s|$)|[\u3002\uff01\uff1f]+[\u300d\u300f\u201d\uff09]*|\n\s*\n"
)


@given(text=st.text(st.sampled_from("ab.!?\u2026\"')\u3002\uff01\u300d \n\t\u2028"), max_size=60), cut=st.integers(0, 60))
def test_sentence_starts_match_a_search_through_the_whole_text(text: str, cut: int) -> None:
    found = [0, *(mark.end() for mark in PLAIN.finditer(text) if mark.end() < len(text))]

    assert sentence_starts(text) == found
    assert [start for start in sentence_starts(text, cut) if start <= cut] == [start for start in found if start <= cut]


@pytest.mark.parametrize(
    "text", ["." * 500_000 + "x", "!)" * 250_000, "a." * 250_000, "\n \n" * 150_000, " " * 500_000, '."' * 250_000 + "x"]
)
def test_the_time_for_a_huge_text_is_linear(text: str) -> None:
    begun = time.perf_counter()
    sentence_starts(text)

    assert time.perf_counter() - begun < 5


def test_tokens_have_sentence_numbers_that_continue_in_a_pair() -> None:
    def token(start: int, special: bool = False, pair: bool = False) -> Token:
        return Token("x", start, start + 1, -1 if special else 0, special=special, unknown=False, pair=pair)

    tokens = (token(0, special=True), token(0), token(3), token(5), token(0, special=True), token(0, pair=True), token(5, pair=True))
    encoded = Encoded((0,) * 7, None, tokens, (), False)

    assert sentence_numbers(encoded, ["No. yes", "Yes! no"]).tolist() == [-1, 0, 1, 1, -1, 2, 3]


def test_words_are_grouped_by_the_sentence_of_their_first_token() -> None:
    def token(start: int, word: int, pair: bool = False) -> Token:
        return Token("x", start, start + 1, word, special=word < 0, unknown=False, pair=pair)

    # The sentence between the two of the first text was not read.
    tokens = (token(0, -1), token(0, 0), token(1, 0), token(2, 1), token(8, 2), token(0, -1), token(0, 3, pair=True))
    words = (Word(0, 2, 1, 3, False), Word(2, 3, 3, 4, False), Word(8, 9, 4, 5, False), Word(0, 1, 6, 7, True))
    encoded = Encoded((0,) * 7, None, tokens, words, True)

    assert sentence_words(encoded, ["No. Hm. Yes", "A"]) == [range(2), range(2, 3), range(3, 4)]


def test_the_time_for_a_megabyte_of_abbreviations_is_linear() -> None:
    text = "no. " * 250_000

    begun = time.process_time()
    starts = sentence_starts(text)

    # Twenty seconds if each of them looked at all that follows; the bound leaves room for any machine.
    assert time.process_time() - begun < 10
    assert len(starts) == 250_001
