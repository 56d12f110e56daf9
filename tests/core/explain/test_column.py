"""What a column of explained texts says together."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sentiment.explain.methods import column as module
from sentiment.explain.methods.column import Column, Explained, Reasons, Row, Term, Unexplained, column
from sentiment.explain.methods.student import quantile

LABELS = ["negative", "positive"]
CASES = json.loads(Path(__file__).with_name("column_cases.json").read_text(encoding="utf-8"))


def explained(text: str, values: Sequence[float], *, label: str = "negative", against: str | None = "positive", **fields: Any) -> Explained:
    words = text.split()
    given = {"abstain": False, "verdict": "BETTER_THAN_RANDOM", "errors": [0.0] * len(words), "sentences": [0] * len(words)}
    return Explained(text, label, towards=label, against=against, words=words, values=values, **{**given, **fields})


def summed(*rows: Row, labels: Sequence[str] = LABELS) -> Column:
    return column(lambda: rows, labels)


def of(found: Column, label: str) -> Reasons:
    return next(reasons for reasons in found.whole.reasons if reasons.label == label)


def sums(terms: Sequence[Term]) -> dict[str, tuple[int, float]]:
    return {term.text: (term.rows, round(term.total, 6)) for term in terms}


def row_of_case(row: dict[str, Any]) -> Row:
    if "label" not in row:
        return Unexplained(row["group"])
    return Explained(**{**row, "errors": [math.inf if error is None else error for error in row["errors"]]})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_case_for_other_languages_holds(case: dict[str, Any]) -> None:
    rows = [row_of_case(row) for row in case["rows"]]

    found = asdict(column(lambda: rows, case["labels"], grouped=case["grouped"]))

    assert json.loads(json.dumps(found)) == approximately(case["column"])


def approximately(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: approximately(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [approximately(inner) for inner in value]
    return pytest.approx(value, abs=1e-6) if isinstance(value, float) else value


def test_a_value_counts_for_its_label_and_against_the_other() -> None:
    found = summed(
        explained("late 1", [1.0, 0.0]),
        explained("late 2", [2.0, 0.0]),
        explained("late 3", [-0.5, 0.0], label="positive", against="negative"),
        explained("late 4", [-9.0, 0.0], label="positive", against="neutral"),
    )

    assert sums(of(found, "negative").words) == {"late": (3, 3.5)}
    assert of(found, "negative").rows == 3
    assert sums(of(found, "neutral").words) == {}
    assert of(found, "neutral").rows == 1


def test_words_are_compared_in_lower_case_and_punctuation_alone_is_left_out() -> None:
    found = summed(*(explained(text, [1.0, 1.0, 1.0]) for text in ("Late ! 1", "LATE ! 2", "late ! 3")))

    assert sums(of(found, "negative").words) == {"late": (3, 3.0)}
    assert found.whole.reasons[0].phrases == ()


def test_names_behind_an_at_sign_are_left_out_and_no_phrase_goes_over_them() -> None:
    found = summed(*(explained(f"late @ user again @user{number}", [1.0, 0.0, 1.0, 1.0, 1.0]) for number in range(3)))

    assert sums(of(found, "negative").words) == {"again": (3, 3.0), "late": (3, 3.0)}
    assert found.whole.reasons[0].phrases == ()


def test_an_undecided_answer_counts_for_no_label() -> None:
    found = summed(explained("a", [1.0]), explained("b", [1.0], abstain=True), Unexplained()).whole

    assert (found.answered, found.undecided, found.failed) == (2, 1, 1)
    assert [(share.rows, share.share) for share in found.shares] == [(1, 0.5), (0, 0.0)]


def test_an_emoji_counts_and_a_word_twice_in_a_row_counts_once_with_its_sum() -> None:
    found = summed(*(explained(f"so so \U0001f620 {number}", [0.25, 0.5, 1.0, 0.0]) for number in range(3)))

    assert sums(of(found, "negative").words) == {"\U0001f620": (3, 3.0), "so": (3, 2.25)}


def test_a_value_within_two_standard_errors_counts_as_zero() -> None:
    rows = [explained(f"late {number}", [value, 0.0], errors=[0.5, 0.0]) for number, value in enumerate((1.0, 1.1, -0.9, 3.0))]

    assert sums(of(summed(*rows), "negative").words) == {"late": (4, 4.1)}
    unknown = [explained(f"late {number}", [9.0, 0.0], errors=[math.inf, 0.0]) for number in range(3)]
    assert of(summed(*unknown), "negative").words == ()


def test_rows_that_cannot_be_relied_on_count_as_answers_only() -> None:
    kept = [explained(f"late {number}", [1.0, 0.0]) for number in range(3)]
    others = [explained(f"late {verdict}", [9.0, 0.0], verdict=verdict) for verdict in ("NOT_FAITHFUL", "FLAT")]
    repeated = explained(" LATE  0", [9.0, 0.0])

    found = summed(*kept, *others, repeated, Unexplained())

    part = found.whole
    assert (part.answered, part.failed, part.not_faithful, part.flat, part.repeated) == (6, 1, 1, 1, 1)
    assert part.shares[0].rows == 6
    assert sums(of(found, "negative").words) == {"late": (3, 3.0)}


def test_a_word_of_fewer_rows_is_not_listed() -> None:
    assert of(summed(*(explained(f"late {number}", [1.0, 0.0]) for number in range(2))), "negative").words_of == 0


def test_a_phrase_counts_in_every_row_that_has_it() -> None:
    rows = [explained(f"not good {number}", [value, 1.0, 0.0]) for number, value in enumerate((1.0, 0.5, 0.2, -3.0))]

    assert sums(of(summed(*rows), "negative").phrases) == {"not good": (4, 2.7)}
    # In two rows alone both words speak for the label.
    assert of(summed(*rows[1:]), "negative").phrases == ()


def test_a_phrase_does_not_go_over_a_sentence_or_a_punctuation_mark() -> None:
    apart = [explained(f"not good {number}", [1.0, 1.0, 0.0], sentences=[0, 1, 1]) for number in range(3)]
    marked = [explained(f"not , good {number}", [1.0, 0.0, 1.0, 0.0]) for number in range(3)]

    assert of(summed(*apart), "negative").phrases == of(summed(*marked), "negative").phrases == ()


def test_of_phrases_within_each_other_the_one_with_the_larger_sum_is_listed() -> None:
    rows = [explained(f"not good at all {number}", [1.0, 1.0, 0.1, -0.5, 0.0]) for number in range(3)]

    assert list(sums(of(summed(*rows), "negative").phrases)) == ["not good at"]


def test_equal_values_have_no_interval() -> None:
    (word,) = of(summed(*(explained(f"late {number}", [1.0, 0.0]) for number in range(3))), "negative").words

    assert (word.low, word.high) == (None, None)


def test_the_examples_are_the_rows_in_which_a_word_says_most() -> None:
    values = [0.5, 3.0, -1.0, 2.0, 3.0]
    (word,) = of(summed(*(explained(f"late {number}", [value, 0.0]) for number, value in enumerate(values))), "negative").words

    assert word.examples == (2, 5, 4)


def test_intervals_of_noise_miss_in_at_most_five_per_cent() -> None:
    """Also with values that are far from normal: most are zero, as those within two standard errors are. The true means are all 0."""
    seed = 58
    source = random.Random(seed)
    missed, listed = 0, 0
    for _ in range(60):
        rows = []
        for number in range(40):
            words = [*source.sample([f"w{word}" for word in range(30)], 8), str(number)]
            values = [source.choice((0.0, source.gauss(0, 1))) for _ in words]
            rows.append(explained(" ".join(words), values, against=source.choice(("positive", None))))
        terms = of(summed(*rows), "negative").words
        listed += len(terms)
        missed += sum(term.low is not None and term.low > 0 for term in terms)

    assert missed / listed <= 0.05, (seed, missed, listed)


def test_a_word_that_really_speaks_for_a_label_has_an_interval_above_zero() -> None:
    source = random.Random(58)
    rows = [explained(f"late {number}", [source.gauss(1, 0.3), source.gauss(0, 0.3)]) for number in range(20)]

    (word,) = of(summed(*rows), "negative").words
    assert word.low is not None
    assert 0.5 < word.low < 1 < (word.high or 0)


def test_groups_are_the_largest_ones_and_the_others_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUPS_MAX", 1)
    rows = [explained(f"late {number}", [1.0, 0.0], group=group) for number, group in enumerate("abbbc")]

    found = column(lambda: [*rows, Unexplained("c")], LABELS, grouped=True)

    assert [(part.name, part.answered, part.failed) for part in found.groups] == [("b", 3, 0), ("", 2, 1)]
    assert found.lumped == 2
    assert sums(found.groups[0].reasons[0].words) == {"late": (3, 3.0)}


@pytest.mark.parametrize("limit", ["TERMS_MAX", "TEXTS_MAX"])
def test_what_is_beyond_a_limit_is_said(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, limit, 3)
    rows = [explained(f"late {number}", [1.0, 0.0]) for number in range(6)]

    found = summed(*rows)

    assert found.limited
    assert sums(of(found, "negative").words)["late"][0] == 6


def test_groups_beyond_the_limit_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUPS_SEEN_MAX", 1)
    rows = [explained(f"late {number}", [1.0, 0.0], group=group) for number, group in enumerate("abb")]

    assert column(lambda: rows, LABELS, grouped=True).limited


def test_a_file_without_an_answer_has_no_share() -> None:
    found = summed(Unexplained())

    assert [(share.rows, share.share, share.low, share.high) for share in found.whole.shares] == [(0, 0.0, 0.0, 1.0)] * 2


@pytest.mark.parametrize(
    ("outside", "freedom", "t"),
    # As in printed tables of Student's distribution.
    [(0.05, 1, 12.706), (0.05, 2, 4.3027), (0.01, 10, 3.1693), (0.001, 2, 31.599), (0.05, 1000, 1.9623), (1e-6, 5, 28.4785)],
)
def test_quantiles_are_those_of_the_tables(outside: float, freedom: int, t: float) -> None:
    assert quantile(outside, freedom) == pytest.approx(t, rel=2e-5)
