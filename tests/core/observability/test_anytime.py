"""The interval of a share that is watched as it grows."""

import random

import pytest

from sentiment.observability.anytime import AnytimeShare


def seen(hits: int, of: int) -> AnytimeShare:
    share = AnytimeShare()
    for place in range(of):
        share.add(place < hits)
    return share


@pytest.mark.parametrize(("hits", "of"), [(0, 1), (0, 5000), (3, 300), (20, 1000), (7, 7)])
def test_the_interval_holds_what_was_seen_and_narrows(hits: int, of: int) -> None:
    low, high = seen(hits, of).interval()
    lower, higher = seen(10 * hits, 10 * of).interval()

    assert 0 <= low <= hits / of <= high <= 1
    assert higher - lower < high - low
    assert AnytimeShare().interval() == (0.0, 1.0)


def leaves_out(share: float, below: float, texts: int, seed: int) -> bool:
    """Whether at any time the interval is above ``below``."""
    rng, watched = random.Random(seed), AnytimeShare()
    for _ in range(texts):
        watched.add(rng.random() < share)
        # Its lower end rises with a hit only.
        if watched.hits and watched.interval()[0] > below:
            return True
    return False


def test_a_broken_bound_is_found() -> None:
    assert leaves_out(0.02, 0.01, 4000, 1)
    assert leaves_out(0.05, 0.01, 400, 1)


def test_the_true_share_is_left_out_at_most_once_in_twenty_however_often_one_looks() -> None:
    assert sum(leaves_out(0.01, 0.01, 1000, seed) for seed in range(40)) <= 2
