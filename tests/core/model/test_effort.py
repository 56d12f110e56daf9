"""The rule of adaptive effort: which part of a text is read first, and what suffices."""

import math
from pathlib import Path

import pytest

from sentiment.errors import BadBundle
from sentiment.model.classifier import load_classifier, part_of
from sentiment.model.effort import EffortSpec, log_odds_of
from sentiment.model.tokenizer import Row
from tests.tiny import make_bundle

SPEC = EffortSpec(head=2, tail=3, tokens_min=7, log_odds=1.0)


def test_the_part_is_the_first_and_last_tokens_of_a_row() -> None:
    row = Row([*range(9)], [*range(10, 19)], True)

    part = part_of(row, SPEC)

    assert part == Row([0, 1, 6, 7, 8], [10, 11, 16, 17, 18], True)
    assert part_of(Row([*range(7)], None, False), SPEC) == Row([0, 1, 4, 5, 6], None, False)
    assert part_of(Row([*range(6)], None, False), SPEC) is None


def test_the_log_odds_are_of_the_best_label_against_all_other_outputs() -> None:
    # The last output is that of mixed texts.
    logits = [1.0, 3.0, -1.0, 5.0]
    others = math.exp(1.0) + math.exp(-1.0) + math.exp(5.0)

    assert log_odds_of(logits, 3) == pytest.approx(3.0 - math.log(others))
    assert log_odds_of([1000.0, -1000.0], 2) == 2000.0
    assert math.isnan(log_odds_of([math.nan, 1.0], 2))


@pytest.mark.parametrize("tokens_min", [5, 10**6])
def test_a_rule_that_cannot_be_is_refused(tokens_min: int, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, effort=SPEC.model_dump() | {"tokens_min": tokens_min})

    with pytest.raises(BadBundle, match=r"effort\.tokens_min must be more than the 5 tokens of head and tail, and at most max_tokens"):
        load_classifier(bundle)


def test_nothing_suffices_without_a_rule(tmp_path: Path) -> None:
    classifier = load_classifier(make_bundle(tmp_path))

    assert classifier.part_of(Row([*range(9)], None, False)) is None
    assert not classifier.suffices([9.0, -9.0])
