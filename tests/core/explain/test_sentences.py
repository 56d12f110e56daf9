"""The sentences of tokens and words."""

from sentiment.explain.methods.sentences import sentence_numbers, sentence_starts, sentence_words
from sentiment.model.words import Encoded, Token, Word


def test_sentences_start_behind_white_space_and_the_first_at_the_start_of_the_text() -> None:
    assert sentence_starts(" It was bad.  I left!\n\nWhy? ") == [0, 14, 23]
    assert sentence_starts("") == [0]


def test_starts_after_a_place_are_left_out() -> None:
    assert sentence_starts("No. Yes. Why?", until=4) == [0, 4]
    assert sentence_starts("No. Yes. Why?", until=3) == [0]


def test_tokens_have_sentence_numbers_that_continue_in_a_pair() -> None:
    def token(start: int, special: bool = False, pair: bool = False) -> Token:
        return Token("x", start, start + 1, -1 if special else 0, special=special, unknown=False, pair=pair)

    tokens = (token(0, special=True), token(0), token(4), token(5), token(0, special=True), token(0, pair=True), token(5, pair=True))
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
