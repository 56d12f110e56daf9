"""Where a text names a target."""

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
    ],
)
def test_a_part_of_a_word_is_no_mention(text: str, target: str) -> None:
    assert Mentions(text).find(target) is None


def test_a_target_that_stands_alone_behind_thousands_of_longer_words_is_found() -> None:
    text = "party " * 10_000 + "art"

    assert Mentions(text).find("art") == (60_000, 60_003)


def test_the_search_ends_however_often_a_target_stands_within_words() -> None:
    assert Mentions("-aa" * (MISSES_MAX + 1) + " -a").find("-a") is None
