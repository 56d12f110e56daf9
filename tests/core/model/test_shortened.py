"""Kinds of characters, compared with the tokenizer itself."""

from collections.abc import Callable

import numpy as np
import pytest
import tokenizers

from sentiment.model.shortened import APART, BLANK, DROPPED, JOINER, OTHER, WORD, Shorten, Shortened, bert_kinds, shortener_of
from tests.core.model.test_tokenizer import make_byte_tokenizer, make_cased_tokenizer, make_piece_tokenizer
from tests.english import ENGLISH


@pytest.fixture(scope="module")
def english() -> tuple[tokenizers.Tokenizer, Shorten]:
    tokenizer = tokenizers.Tokenizer.from_file(str(ENGLISH / "tokenizer.json"))
    return tokenizer, shortener_of(tokenizer, (ENGLISH / "tokenizer.json").read_text(encoding="utf-8"))


# Checks "xcx" after normalization, and its words.
FOUND: dict[int, Callable[[str, list[str]], bool]] = {
    WORD: lambda normal, words: len(normal) >= 3 and words == [normal],
    DROPPED: lambda normal, words: normal == "xx",
    BLANK: lambda normal, words: words == ["x", "x"],
    APART: lambda normal, words: len(words) >= 3 and words[0] == words[-1] == "x",
}


# Each table of kinds in full; the other way to choose it with every eighth character.
@pytest.mark.parametrize(("lowercase", "strip_accents", "step"), [(True, None, 1), (False, None, 1), (True, False, 8), (False, True, 8)])
def test_bert_reads_each_character_as_its_kind_says(lowercase: bool, strip_accents: bool | None, step: int) -> None:
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
    kinds = bert_kinds(lowercase if strip_accents is None else strip_accents)
    # All code points that are assigned or reserved, and every hundredth of the others.
    assigned = [
        code for code in range(0x110000) if not 0xD800 <= code < 0xE000 and (code < 0x32000 or 0xE0000 <= code < 0xE1000 or code % 100 == 0)
    ]

    for code in assigned[::step]:
        kind = int(kinds[code])
        if kind != OTHER:
            normal = normalizer.normalize_str(f"x{chr(code)}x")
            assert FOUND[kind](normal, [word for word, _ in splitter.pre_tokenize_str(normal)]), (hex(code), kind)
    assert np.count_nonzero(kinds == OTHER) < 3000


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("a  \t\n  b", "a  b"),
        ("a\x00\x00b\u0301", "ab"),
        ("a" * 101 + " good", "\u1200 good"),
        ("a" * 100, "a" * 100),
        ("-" + "b" * 24 + "\u1000" + "-", "-\u1200-"),
        ("\uac00" * 101, "\u1200"),
        ("[SE\x00\x00\x00P]", "[SE\x00\x00P]"),
        ("x" * 300 + "\U0001f600", "x" * 101 + "x" * 6 + "\U0001f600"),
        ("\u2260" * 300, "\u2260" * 300),
    ],
)
def test_a_shortened_text_keeps_the_characters_that_make_tokens(
    english: tuple[tokenizers.Tokenizer, Shorten], text: str, short: str
) -> None:
    tokenizer, shortener = english

    found = shortener(text)

    assert found.text == short
    assert found.tokens <= len(tokenizer.encode(text, add_special_tokens=False).ids)
    assert found.span(0, len(short)) == (0 if short[0] == text[0] or short[0] == "\u1200" else 1, len(text.rstrip("\u0301")))


def test_joiners_of_added_tokens_are_kept_beside_other_characters_and_removed_from_long_runs() -> None:
    tokenizer = make_cased_tokenizer()

    short = shortener_of(tokenizer, tokenizer.to_str())("\U0001f469" + "\u200d" * 1000 + "\U0001f680")

    assert short.text.startswith("\U0001f469\u200d")
    assert short.text.endswith("\u200d\U0001f680")
    assert len(short.text) < 20


def test_the_dropped_characters_of_another_family_are_found_by_trial() -> None:
    pieces = make_piece_tokenizer()
    found = shortener_of(pieces, pieces.to_str())

    assert found is not Shortened
    assert found("a" + " " * 1000 + "b\u0301" + "\u0301" * 1000).text == "a  b"
    # Another token there.
    assert found("a\n\n\n\nb").text == "a\n\n\n\nb"


def test_texts_of_an_unknown_tokenizer_are_not_shortened() -> None:
    bytewise, single = make_byte_tokenizer(), make_cased_tokenizer()
    single.add_tokens([tokenizers.AddedToken("lol", single_word=True)])

    for tokenizer in (bytewise, single):
        assert shortener_of(tokenizer, tokenizer.to_str()) is Shortened


def test_a_text_is_cut_by_its_cost(english: tuple[tokenizers.Tokenizer, Shorten]) -> None:
    _, shortener = english
    hard = ("\u0b95" * 100 + " ") * 40
    easy = "good film " * 1000

    assert len(shortener(hard).head(4000).text) < 600
    assert len(shortener(hard).tail(4000).text) < 600
    assert len(shortener(easy).head(4000).text) == 4000
    assert shortener(easy).tail(4000).span(0, 1) == (6000, 6001)
    assert JOINER not in bert_kinds(True)
