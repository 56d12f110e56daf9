"""The scheduler's promises, at every instant of thousands of seeded days. ``SIM_SEEDS=1000000 pytest`` runs more of them."""

import os
from collections import Counter

import pytest

from tests.simtime import simulate

SEEDS = int(os.environ.get("SIM_SEEDS", "3000"))


def test_every_promise_holds_at_every_instant_of_every_day() -> None:
    fates: Counter[str] = Counter()

    for seed in range(SEEDS):
        fates += simulate(seed)

    # The days are varied enough to mean something: each fate is common.
    assert set(fates) == {"answered", "refused", "expired", "cancelled", "failed"}
    assert min(fates.values()) > sum(fates.values()) / 500, fates


@pytest.mark.parametrize(
    "breakage",
    ["rows_at", "_expire", "fail", "cancel", "finish"],
)
def test_a_broken_scheduler_is_found(breakage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sentiment.batching import scheduler

    broken = {
        "rows_at": (scheduler.BatchLimits, lambda self, length: self.rows + 1),
        "_expire": (scheduler.Scheduler, lambda self, now: []),
        "fail": (scheduler.Scheduler, lambda self, batch: [t for t in batch.tickets if self._end(t, scheduler.State.FAILED)]),
        "cancel": (scheduler.Scheduler, lambda self, ticket: True),
        "finish": (scheduler.Scheduler, lambda self, batch: batch.tickets),
    }
    owner, replacement = broken[breakage]
    monkeypatch.setattr(owner, breakage, replacement)

    with pytest.raises(Exception):  # noqa: B017  # a broken promise, or the scheduler's own state gone wrong
        for seed in range(300):
            simulate(seed)
