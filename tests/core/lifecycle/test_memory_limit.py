"""What a server makes of the memory limit of its container."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest
from structlog.testing import capture_logs

from sentiment.client import CallFailed
from sentiment.lifecycle import lifecycle
from sentiment.lifecycle.loading import Loaded, load
from sentiment.lifecycle.memory_limit import MIB, explanation_bytes, within_memory
from sentiment.settings import Settings
from tests.conftest import RunningServer
from tests.english import ENGLISH

USED = 200 * MIB


@contextmanager
def loaded(settings: Settings) -> Iterator[Loaded]:
    found = load(settings, 0)
    yield found
    for runner in found.runners:
        runner.close()


@pytest.mark.parametrize(
    ("limit_mib", "changes", "explains", "needed_mib"),
    [
        (None, {}, True, None),
        (1536, {}, True, None),
        (1300, {}, True, 1419),
        (1100, {}, False, 1419),
        (400, {"explain": False}, False, 456),
        (500, {"explain": False}, False, None),
        (500, {"explain": False, "answer_cache_bytes": 100 * MIB}, False, 556),
        (1536, {"request_bytes_max": 700 * MIB}, True, 1600),
    ],
)
def test_what_does_not_fit_is_said_and_explanations_that_cannot_fit_are_off(
    settings: Settings, limit_mib: int | None, changes: dict[str, object], explains: bool, needed_mib: int | None
) -> None:
    asked = settings.model_copy(update={"model": "english", "bundles": (ENGLISH.parents[1],), **changes})
    with loaded(asked) as found, capture_logs() as logs:
        kept = within_memory(asked, [found], limit_mib and limit_mib * MIB, USED)
        assert explanation_bytes(found, asked) // MIB == 975

    assert kept == asked.model_copy(update={"explain": explains, "hidden_drift_share": 0.0})
    said = [(line["event"], line["needed_mib"], line["explain"]) for line in logs]
    assert said == ([("memory_limit_low", needed_mib, "on" if explains else "off")] if needed_mib else [])


def test_a_server_without_room_for_an_explanation_classifies(start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "memory_used", lambda: USED)
    monkeypatch.setattr(lifecycle, "memory_granted", lambda: USED - 1)

    with start().client() as client:
        assert client.classify("good").label == "positive"
        with pytest.raises(CallFailed, match="memory limit leaves no room") as refused:
            client.explain("good")
    assert refused.value.code == grpc.StatusCode.FAILED_PRECONDITION
