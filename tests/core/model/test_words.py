"""Words and their positions in the caller's text, in three units."""

from pathlib import Path

import pytest

from sentiment.model.tokenizer import Tokenizer
from sentiment.model.words import Encoded, Piece, Units, group
from tests.english import ENGLISH
from tests.models.tiny_families import TINY


@pytest.fixture(scope="module")
def english() -> Tokenizer:
    return Tokenizer(ENGLISH / "tokenizer.json", 512)


def _words(encoded: Encoded, *texts: str) -> list[str]:
    return [texts[word.pair][word.start : word.end] for word in encoded.words]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I didn't like it.", ["I", "didn't", "like", "it", "."]),
        ("a well-made, so-so film - really", ["a", "well-made", ",", "so-so", "film", "-", "really"]),
        ("'quoted' don\u2019t -5", ["'", "quoted", "'", "don\u2019t", "-", "5"]),
        ("Unbelievably caf\u00e9-like!", ["Unbelievably", "caf\u00e9-like", "!"]),
        ("e\u0301t\u0101 na\u0308ive", ["e\u0301t\u0101", "na\u0308ive"]),
        ("\U0001f60d great \U0001f44d\U0001f3fd", ["\U0001f60d", "great", "\U0001f44d\U0001f3fd"]),
        ("\u5f88\u597d film", ["\u5f88", "\u597d", "film"]),
        ("  a\t\tb\n", ["a", "b"]),
        ("it 's n't", ["it", "'", "s", "n't"]),
        ("de\u0301ja\u0300 re\u0301sume\u0301.", ["de\u0301ja\u0300", "re\u0301sume\u0301", "."]),
        ("I \u2764\ufe0f it", ["I", "\u2764\ufe0f", "it"]),
        ("\u0939\u093f\u0928\u094d\u0926\u0940 ok", ["\u0939\u093f\u0928\u094d\u0926\u0940", "ok"]),
        ("a `good` film", ["a", "`", "good", "`", "film"]),
        ("", []),
    ],
)
def test_words_match_the_usual_idea_of_a_word(english: Tokenizer, text: str, words: list[str]) -> None:
    assert _words(english.encode_explained(text), text) == words


def test_explained_ids_are_the_classified_ones_and_every_piece_lies_in_its_word(english: Tokenizer) -> None:
    for text in ("An unputdownable tour-de-force, isn't it? \U0001f929", "x" * 300, "so good " * 600, "a"):
        encoded, row = english.encode_explained(text), english.encode(text)

        assert (list(encoded.ids), encoded.truncated) == (list(row.ids), row.truncated)
        assert [token.word for token in encoded.tokens if not token.special] == sorted(
            token.word for token in encoded.tokens if not token.special
        )
        for index, word in enumerate(encoded.words):
            assert all(encoded.tokens[place].word == index for place in word.tokens)
            assert all(word.start <= encoded.tokens[place].start <= encoded.tokens[place].end <= word.end for place in word.tokens)
        assert encoded.tokens[0].special
        assert encoded.tokens[-1].special


def test_an_unknown_word_is_marked_and_keeps_its_place(english: Tokenizer) -> None:
    encoded = english.encode_explained("ok \u1234\u1235 ok")

    assert [token.unknown for token in encoded.tokens[1:-1]] == [False, True, False]
    assert _words(encoded, "ok \u1234\u1235 ok") == ["ok", "\u1234\u1235", "ok"]


def test_the_words_of_a_pair_are_of_their_own_texts(english: Tokenizer) -> None:
    encoded = english.encode_explained("good film", "bad film")

    assert _words(encoded, "good film", "bad film") == ["good", "film", "bad", "film"]
    assert [word.pair for word in encoded.words] == [False, False, True, True]
    assert encoded.type_ids == (0, 0, 0, 0, 1, 1, 1)


@pytest.mark.parametrize("family", ["roberta", "albert", "xlnet", "mpnet", "xlm-roberta", "deberta-v2", "modernbert"])
def test_every_kind_of_tokenizer_gives_whole_words(family: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    TINY[family].tokens().save(str(path))
    text = "the film was not good at all"

    assert _words(Tokenizer(path, 64).encode_explained(text), text) == text.split()


def test_pieces_of_one_character_are_of_one_word() -> None:
    pieces = [Piece("a", 0, 1, 0, 0, unknown=False), Piece("b", 0, 1, 0, 0, unknown=False), Piece("c", 1, 2, 1, 0, unknown=False)]

    tokens, words = group(["\U0001f60d!"], pieces)

    assert [(word.start, word.end) for word in words] == [(0, 1), (1, 2)]
    assert [token.word for token in tokens] == [0, 0, 1]


def test_spans_are_given_in_three_units() -> None:
    text = "a\u00e9\u4e2d\U0001f60d!z"
    units = Units(text)

    for start in range(len(text) + 1):
        for end in range(start, len(text) + 1):
            span = units.span(start, end)
            assert span.code_points == (start, end)
            assert text.encode()[span.utf8[0] : span.utf8[1]].decode() == text[start:end]
            wide = text.encode("utf-16-le")[2 * span.utf16[0] : 2 * span.utf16[1]]
            assert wide.decode("utf-16-le") == text[start:end]
    assert Units("plain").span(1, 3).utf16 == (1, 3)
