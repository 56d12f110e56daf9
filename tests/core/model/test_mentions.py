"""Where a text names a target."""

import unicodedata

import pytest

from sentiment.model.mentions import MISSES_MAX, Mentions


@pytest.mark.parametrize(
    ("text", "target", "named"),
    [
        ("The Battery died.", "battery", "Battery"),
        ("great BATTERY life", "Battery Life", "BATTERY life"),
        ("battery and battery", "battery", "battery"),
        ("a party of art", "art", "art"),
        ("(service)", "service", "service"),
        ("#iPhone5 rocks", "#iphone5", "#iPhone5"),
        ("the C++ docs", "c++", "C++"),
        ("C++11", "c++", "C++"),
        ("die Straße", "STRASSE", "Straße"),
        ("İstanbul is fine, food too", "food", "food"),
        ("İİİ café", "CAFÉ", "café"),
        ("food", " food ", "food"),
        ("Cafe\u0301 food", "caf\u00e9", "Cafe\u0301"),
        ("caf\u00e9 food", "CAFE\u0301", "caf\u00e9"),
        ("Ph\u1edf, x\u00ea\u0323 x", "X\u1ec7", "x\u00ea\u0323"),
        ("\u1e16 \u0130 \ufb03 \uac01 food", "food", "food"),
        ("\u6211\u559c\u6b22\u7535\u6c60", "\u7535\u6c60", "\u7535\u6c60"),
        ("\u96fb\u6c60\u304c\u597d\u304d", "\u96fb\u6c60", "\u96fb\u6c60"),
        (
            "\u65b0\u3057\u3044\u30d0\u30c3\u30c6\u30ea\u30fc\u3067\u3059",
            "\u30d0\u30c3\u30c6\u30ea\u30fc",
            "\u30d0\u30c3\u30c6\u30ea\u30fc",
        ),
        ("\u6211\u559c\u6b22iPhone\u7535\u6c60", "iphone", "iPhone"),
        (
            "\u0e41\u0e1a\u0e15\u0e40\u0e15\u0e2d\u0e23\u0e35\u0e48\u0e14\u0e35",
            "\u0e41\u0e1a\u0e15\u0e40\u0e15\u0e2d\u0e23\u0e35\u0e48",
            "\u0e41\u0e1a\u0e15\u0e40\u0e15\u0e2d\u0e23\u0e35\u0e48",
        ),
        ("\u0e81\u0eb4\u0e99\u0e94\u0eb5", "\u0e81\u0eb4\u0e99", "\u0e81\u0eb4\u0e99"),
        ("\u1021\u1005\u102c\u1038\u1000\u1031\u102c\u1004\u103a\u1038", "\u1021\u1005\u102c\u1038", "\u1021\u1005\u102c\u1038"),
        ("\u1798\u17d2\u17a0\u17bc\u1794\u179b\u17d2\u17a2", "\u1798\u17d2\u17a0\u17bc\u1794", "\u1798\u17d2\u17a0\u17bc\u1794"),
    ],
)
def test_the_first_mention_is_found_in_any_case_and_has_the_offsets_of_the_text(text: str, target: str, named: str) -> None:
    found = Mentions(text).find(target)

    assert found is not None
    assert text[slice(*found)] == named
    assert found[0] == text.index(named) if named != "art" else len("a party of ")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("party", "art"),
        ("food_court", "food"),
        ("iPhone5", "iphone"),
        ("cafe\u0301", "cafe"),
        ("good", "service"),
        ("Straße", "stras"),
        ("ß", "s"),
        ("\u0e01\u0e35\u0e48", "\u0e01"),
        ("\u304c", "\u304b"),
        ("\u2260", "="),
        ("\uac01", "\uac00"),
        ("\ubc30\ud130\ub9ac\uac00", "\ud130\ub9ac"),
    ],
)
def test_part_of_a_word_is_not_a_mention(text: str, target: str) -> None:
    assert Mentions(text).find(target) is None


def test_no_mention_begins_or_ends_within_a_character() -> None:
    for code in range(0x3000):
        folded = unicodedata.normalize("NFD", chr(code).casefold())
        if len(folded) > 1:
            assert [Mentions(chr(code)).find(part) for part in (folded[:1], folded[-1])] == [None, None], hex(code)


def test_a_target_that_stands_alone_behind_thousands_of_longer_words_is_found() -> None:
    text = "party " * 10_000 + "art"

    assert Mentions(text).find("art") == (60_000, 60_003)


def test_the_search_ends_however_often_a_target_stands_within_words() -> None:
    assert Mentions("-aa" * (MISSES_MAX + 1) + " -a").find("-a") is None
