"""Work by deadline."""

import random
from itertools import accumulate

import pytest

from sentiment.batching.deadlines import Demand


def test_the_work_due_by_a_deadline_is_all_that_is_due_no_later() -> None:
    demand = Demand()
    for deadline_at, work_s in ((3.0, 0.3), (1.0, 0.1), (2.0, 0.2)):
        demand.add(deadline_at, work_s, work_s)

    deadlines, due_s, dearest_s = demand.curve()

    assert list(deadlines) == [1.0, 2.0, 3.0]
    assert list(due_s) == pytest.approx([0.1, 0.3, 0.6])
    assert list(dearest_s) == [0.1, 0.2, 0.3]
    assert demand.first_at == 1.0
    assert demand.total_s == pytest.approx(0.6)


def test_rows_with_one_deadline_are_one_entry_with_the_most_expensive_row() -> None:
    demand = Demand()
    for work_s in (0.2, 0.5, 0.3):
        demand.add(1.0, work_s, work_s)

    deadlines, due_s, dearest_s = demand.curve()

    assert len(demand) == 1
    assert list(deadlines) == [1.0]
    assert list(due_s) == pytest.approx([1.0])
    assert list(dearest_s) == [0.5]


def test_removing_all_rows_leaves_no_rounding_error() -> None:
    demand = Demand()
    for number in range(100):
        demand.add(number % 7, 0.1 * number + 1e-9, 0.1 * number + 1e-9)

    for number in range(100):
        demand.remove(number % 7, 0.1 * number + 1e-9)

    assert (len(demand), demand.total_s) == (0, 0.0)


def test_a_row_that_was_not_added_cannot_be_removed() -> None:
    demand = Demand()
    demand.add(1.0, 0.1, 0.1)
    demand.add(2.0, 0.1, 0.1)

    for deadline_at in (0.5, 1.5, 2.5):
        with pytest.raises(AssertionError, match=r"^removed a row that was not added"):
            demand.remove(deadline_at, 0.1)


def test_a_curve_stays_as_it_was_when_rows_come() -> None:
    demand = Demand()
    demand.add(1.0, 0.1, 0.1)
    deadlines, due_s, dearest_s = demand.curve()

    demand.add(0.5, 0.2, 0.2)

    assert (list(deadlines), list(due_s), list(dearest_s)) == ([1.0], [0.1], [0.1])


def test_random_changes_agree_with_a_sorted_list() -> None:
    seed = 5
    print(f"seed {seed}")
    rng = random.Random(seed)
    demand, naive = Demand(), []
    for _ in range(400):
        if naive and rng.random() < 0.45:
            row = naive.pop(rng.randrange(len(naive)))
            demand.remove(*row)
        else:
            row = float(rng.randint(1, 12)), rng.uniform(0.001, 0.1)
            naive.append(row)
            demand.add(*row, row[1])

        deadlines, due_s, dearest_s = demand.curve()

        known = sorted({deadline_at for deadline_at, _ in naive})
        assert list(deadlines) == known
        assert list(due_s) == pytest.approx(list(accumulate(sum(work for at, work in naive if at == known_at) for known_at in known)))
        # An entry's most expensive row may have left, so its value may be too high but never too low.
        assert all(s >= max(work for at, work in naive if at == known_at) for known_at, s in zip(known, dearest_s, strict=True))
        assert demand.total_s == pytest.approx(sum(work for _, work in naive))
