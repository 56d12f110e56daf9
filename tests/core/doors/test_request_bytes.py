"""The budget of request bytes: bounded, exact, and with room for callers that hold little."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentiment.call.request_bytes import RequestBytes
from sentiment.errors import Refused

TOTAL = 1000
Steps = list[tuple[str, int, bool]]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 400), st.booleans()), max_size=80))
def test_what_is_held_is_exact_and_as_much_stays_free_as_who_takes_holds(steps: Steps) -> None:
    requests, held = RequestBytes(TOTAL), Counter[str]()
    taken: list[tuple[str, int]] = []
    for caller, size, gives_back in steps:
        if gives_back and taken:
            requests.give_back(*taken[-1])
            held.subtract({taken[-1][0]: taken.pop()[1]})
            continue
        fits = held[caller] + size <= TOTAL - held.total() - size
        try:
            requests.take(caller, size)
        except Refused as error:
            assert not fits
            assert (error.reason, error.retry_after_s > 0) == ("request_bytes", True)
            continue
        assert fits or not size
        taken.append((caller, size))
        held[caller] += size

        assert requests.used == held.total()
        assert not size or held[caller] <= TOTAL - requests.used
    for caller, size in taken:
        requests.give_back(caller, size)
    assert requests.used == 0


def test_a_caller_gets_as_much_as_stays_free() -> None:
    requests = RequestBytes(900)

    def fill(caller: str) -> int:
        taken = 0
        while True:
            try:
                requests.take(caller, 1)
            except Refused:
                return taken
            taken += 1

    assert fill("a") == 450
    # As much as stays free.
    assert fill("b") == 225


def test_bytes_are_counted_within_a_context_or_until_somebody_gives_them_back() -> None:
    requests = RequestBytes(100)

    with requests.held("a", 10):
        assert requests.used == 10
    with requests.held("a", 20) as held:
        kept = held.keep()
    used = requests.used
    requests.give_back("a", kept)

    assert (kept, used, requests.used) == (20, 20, 0)


def test_giving_back_more_than_is_held_is_a_bug() -> None:
    requests = RequestBytes(100)
    requests.take("a", 1)

    with pytest.raises(AssertionError, match="2 bytes were given back, 1 were held"):
        requests.give_back("a", 2)
