"""What the values of a file's labels mean."""

import pytest

from sentiment.files.labels import Labels, WrongLabel

TWO, STARS = ("negative", "positive"), ("1", "2", "3", "4", "5")


def read(names: tuple[str, ...], *values: str) -> list[int]:
    labels = Labels(names)
    return [labels.place(value, f"line {number}") for number, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("names", "values", "places"),
    [
        (TWO, ("negative", "positive"), [0, 1]),
        (TWO, ("0", "1", "01"), [0, 1, 1]),
        # As pandas writes whole numbers of a column with gaps.
        (TWO, ("1.0", "0.0", "1.00"), [1, 0, 1]),
        (STARS, ("1", "5", "2.0"), [0, 4, 1]),
        (("-1", "1"), ("1", "-1"), [1, 0]),
        (("1 star", "2 stars"), ("0", "1"), [0, 1]),
    ],
)
def test_a_value_is_the_name_of_a_label_or_its_number(names: tuple[str, ...], values: tuple[str, ...], places: list[int]) -> None:
    assert read(names, *values) == places


@pytest.mark.parametrize(
    ("names", "values", "told"),
    [
        (TWO, ("2",), "must be 0 to 1 or one of negative, positive"),
        (TWO, ("-1",), "must be 0 to 1"),
        (TWO, ("0.5",), "must be 0 to 1"),
        (TWO, ("\u0661",), "must be 0 to 1"),
        (TWO, ("",), "must be 0 to 1"),
        (TWO, ("1" * 5000,), "must be 0 to 1"),
        # Not the first label: names that are numbers leave no other meaning to a number.
        (STARS, ("1", "0"), "must be one of 1, 2, 3, 4, 5"),
        (("0.5", "1.5"), ("0",), "must be one of 0.5, 1.5"),
        (TWO, ("1", "1", "positive"), "is a name, but line 1 has a number; use names or numbers throughout"),
        (TWO, ("positive", "0"), "is a number, but line 1 has a name"),
    ],
)
def test_any_other_value_is_refused_and_not_repeated(names: tuple[str, ...], values: tuple[str, ...], told: str) -> None:
    *before, last = values
    labels = Labels(names)
    for number, value in enumerate(before, 1):
        labels.place(value, f"line {number}")

    with pytest.raises(WrongLabel) as caught:
        labels.place(last, "line 9")

    assert str(caught.value).startswith(told)
