"""The sentence that says how two versions differ, and its interval."""

import pytest

from sentiment.observability.agreement import verdict, wilson

PAIR = ("negative", "positive")


@pytest.mark.parametrize(
    ("part", "whole", "low", "high"), [(0, 10, 0, 0.2775), (50, 100, 0.4038, 0.5962), (10, 10, 0.7225, 1), (62, 2000, 0.0243, 0.0396)]
)
def test_wilsons_interval_is_correct_at_the_ends_too(part: int, whole: int, low: float, high: float) -> None:
    assert wilson(part, whole) == pytest.approx((low, high), abs=1e-4)


def test_the_sentence_has_texts_share_interval_flips_shift_and_failures() -> None:
    flips = {PAIR: 40.0, PAIR[::-1]: 22.0}

    assert verdict("english/2", 2000, flips, -8.0, 3) == (
        "differs from english/2 on 3.1 % (2.4 to 4.0) of 2,000 texts: negative to positive 40, positive to negative 22; "
        "accuracy differs by at most 4.0 points; mean shift -0.004; did not answer 3 more"
    )
    assert verdict("english/2", 1000, dict.fromkeys(flips, 0.0), 0.0, 0) == (
        "differs from english/2 on 0.0 % (0.0 to 0.4) of 1,000 texts; accuracy differs by at most 0.4 points; mean shift +0.000"
    )


def test_without_answers_it_says_nothing_about_a_share() -> None:
    assert verdict("english/2", 0, {}, 0.0, 0) == ""
    assert verdict("english/2", 0, {}, 0.0, 3) == "answered none of 3 texts that english/2 answered"


def test_of_many_labels_the_most_frequent_flips_are_named() -> None:
    flips = {("a", label): float(count) for count, label in enumerate("bcdefg")}

    assert "a to g 5, a to f 4, a to e 3, a to d 2, others 1;" in verdict("many/1", 100, flips, 0.0, 0)
