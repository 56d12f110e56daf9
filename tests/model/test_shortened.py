"""Kinds of characters, all of them held against the tokenizer itself."""

from collections.abc import Callable

import numpy as np
import pytest
import tokenizers

from sentiment.model.shortened import APART, BLANK, DROPPED, JOINER, OTHER, WORD, ByKind, Unchanged, bert_kinds, shortener_of
from tests.model.test_tokenizer import ENGLISH, make_byte_tokenizer, make_cased_tokenizer, make_piece_tokenizer

# What is left of "xcx", and the words of it.
FOUND: dict[int, Callable[[str, list[str]], bool]] = {
    WORD: lambda normal, words: len(normal) >= 3 and words == [normal],
    DROPPED: lambda normal, words: normal == "xx",
    BLANK: lambda normal, words: words == ["x", "x"],
    APART: lambda normal, words: len(words) >= 3 and words[0] == words[-1] == "x",
}


@pytest.mark.parametrize(("lowercase", "strip_accents"), [(True, None), (False, None), (True, False), (False, True)])
def test_bert_reads_each_character_as_its_kind_says(lowercase: bool, strip_accents: bool | None) -> None:
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
    kinds = bert_kinds(lowercase if strip_accents is None else strip_accents)
    # All that have a name or an owner, and every hundredth of those that nobody has given away.
    assigned = [
        code for code in range(0x110000) if not 0xD800 <= code < 0xE000 and (code < 0x32000 or 0xE0000 <= code < 0xE1000 or code % 100 == 0)
    ]

    for code in assigned:
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
def test_a_text_is_left_what_tokens_come_of(text: str, short: str) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(ENGLISH))

    found = shortener_of(tokenizer, ENGLISH.read_text(encoding="utf-8")).shorten(text)

    assert found.text == short
    assert found.tokens <= len(tokenizer.encode(text, add_special_tokens=False).ids)
    assert found.span(0, len(short)) == (0 if short[0] == text[0] or short[0] == "\u1200" else 1, len(text.rstrip("\u0301")))


def test_joiners_of_added_tokens_are_left_beside_others_and_thinned_among_themselves() -> None:
    tokenizer = make_cased_tokenizer()

    short = shortener_of(tokenizer, tokenizer.to_str()).shorten("\U0001f469" + "\u200d" * 1000 + "\U0001f680")

    assert short.text.startswith("\U0001f469\u200d")
    assert short.text.endswith("\u200d\U0001f680")
    assert len(short.text) < 20


def test_of_a_tokenizer_of_another_family_it_is_tried_what_it_drops() -> None:
    pieces = make_piece_tokenizer()
    found = shortener_of(pieces, pieces.to_str())

    assert isinstance(found, ByKind)
    assert found.shorten("a" + " " * 1000 + "b\u0301" + "\u0301" * 1000).text == "a  b"
    # Another token there.
    assert found.shorten("a\n\n\n\nb").text == "a\n\n\n\nb"


def test_where_nothing_is_known_texts_are_left_as_they_are() -> None:
    bytewise, single = make_byte_tokenizer(), make_cased_tokenizer()
    single.add_tokens([tokenizers.AddedToken("lol", single_word=True)])

    for tokenizer in (bytewise, single):
        assert isinstance(shortener_of(tokenizer, tokenizer.to_str()), Unchanged)


def test_a_text_is_cut_by_what_it_costs() -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(ENGLISH))
    shortener = shortener_of(tokenizer, ENGLISH.read_text(encoding="utf-8"))
    hard = ("\u0b95" * 100 + " ") * 40
    easy = "good film " * 1000

    assert len(shortener.shorten(hard).head(4000).text) < 600
    assert len(shortener.shorten(hard).tail(4000).text) < 600
    assert len(shortener.shorten(easy).head(4000).text) == 4000
    assert shortener.shorten(easy).tail(4000).span(0, 1) == (6000, 6001)
    assert JOINER not in bert_kinds(True)
